from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("fcil", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("fcil")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
