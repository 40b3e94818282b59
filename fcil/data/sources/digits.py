"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels that come with its wheel."""

from __future__ import annotations

import torch

from fcil.data.source import Source, Split

TEST_EVERY = 5  # every fifth image of a class, in file order, is a test image
FULL_SCALE = 16  # the images count ink from 0 to 16


def load_digits() -> Source:
    """Return the ten digits, four fifths for training and one fifth for testing."""
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 (slow, so only when asked for)

    bunch = load()
    images = torch.from_numpy(bunch.images).mul(255 / FULL_SCALE).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).to(torch.int64)
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
