"""The handwritten digits of the UCI repository: 1,797 grey images of 8 x 8 pixels, shipped as `digits.npz`.

They are the images that `sklearn.datasets.load_digits` returns, in the same order; `digits.LICENSE.txt` has the origin.
"""

from __future__ import annotations

import importlib.resources

import numpy as np
import torch

from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source, Split
from fcil.data.datasets.registry import Dataset, register_dataset

TEST_EVERY = 5  # every fifth image of a class, in file order, is a test image
FULL_SCALE = 16  # the images count ink from 0 to 16
FILE = "digits.npz"  # `images`, (1797, 8, 8), and `labels`, (1797,), both unsigned bytes


def load_digits() -> Source:
    """Return the ten digits, four fifths for training and one fifth for testing."""
    with importlib.resources.files(__package__).joinpath(FILE).open("rb") as file, np.load(file) as arrays:
        ink, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    images = ink.unsqueeze(1).double().mul(255 / FULL_SCALE).round().to(torch.uint8)
    labels = labels.to(torch.int64)
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


def _build(config: DataConfig) -> Source:
    return load_digits()


register_dataset(Dataset("digits", "handwritten digits, 8 x 8 grey pixels, ten classes; part of fcil", _build))
