"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels that come with its wheel."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fcil.data.datasets.dataset import Source, Split

TEST_EVERY = 5  # every fifth image of a class, in file order, is a test image
FULL_SCALE = 16  # the images count ink from 0 to 16
TABLE = Path("datasets", "data", "digits.csv.gz")  # within scikit-learn: 64 pixels and the digit in each row


def load_digits() -> Source:
    """Return the ten digits, four fifths for training and one fifth for testing."""
    table = torch.from_numpy(_table())
    images = table[:, :-1].reshape(-1, 1, 8, 8).mul(255 / FULL_SCALE).round().to(torch.uint8)
    labels = table[:, -1].to(torch.int64)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        held_out[(labels == digit).nonzero().squeeze(1)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    everything = Split(images, labels)
    return Source(
        "digits",
        everything.select((~held_out).nonzero().squeeze(1)),
        everything.select(held_out.nonzero().squeeze(1)),
        tuple(str(digit) for digit in range(10)),
    )


def _table() -> NDArray[np.float64]:
    """Read the file itself: importing scikit-learn for it takes longer than the first round of a small run."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None and (path := Path(package.origin).parent / TABLE).is_file():
        return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 (slow)

    bunch = load()  # another release may keep the file elsewhere
    return np.column_stack([bunch.data, bunch.target])
