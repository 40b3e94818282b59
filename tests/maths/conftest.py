from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden"


class Golden:
    """One file of arrays measured on the released code, as tensors."""

    def __init__(self, name: str) -> None:
        with numpy.load(GOLDEN / name) as arrays:
            self.arrays = {key: torch.from_numpy(numpy.asarray(arrays[key])) for key in arrays.files}

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]


@pytest.fixture(scope="session")
def golden_losses() -> Golden:
    return Golden("a_b_loss.npz")


@pytest.fixture(scope="session")
def golden_entropy() -> Golden:
    return Golden("c_entropy.npz")


@pytest.fixture(scope="session")
def golden_herding() -> Golden:
    return Golden("d_herding.npz")


@pytest.fixture(scope="session")
def golden_lenet() -> Golden:
    return Golden("g_lenet.npz")
