"""Blocks: the fixed batches in which samples go through a network where the result must not depend on the caller."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fcil.data.samples import Samples

BLOCK = 256  # a sample's last bits depend on its batch, so inference always runs on whole blocks of samples


class Blocks:
    """The blocks of a store of samples; they stay as they were cut while samples are added.

    They are cut from samples sorted by class, so a client with few classes needs few blocks.
    """

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self._sorted = torch.empty(0, dtype=torch.int64)  # samples by place; -1: no sample
        self._places = torch.empty(0, dtype=torch.int64)  # of each sample
        self._digests: dict[int, str] = {}

    def parts(self, indices: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each block that samples lie in, with their positions in `indices` and where they are in the block."""
        self._take_in()
        places = self._places[indices]
        if len(places) == 0:
            return
        ascending, order = places.sort()
        numbers, counts = torch.unique_consecutive(ascending // BLOCK, return_counts=True)
        start = 0
        for block, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            yield block, order[start : start + count], ascending[start : start + count] - block * BLOCK
            start += count

    def members(self, block: int) -> Tensor:
        """Return the samples of a block."""
        self._take_in()
        members = self._sorted[block * BLOCK : (block + 1) * BLOCK]
        return members[members >= 0]

    def digest(self, block: int) -> str:
        """Return a name for the pixels of a block, in their order."""
        if block not in self._digests:
            pixels = self.samples.pixels(self.members(block)).contiguous()
            found = hashlib.sha256(f"{tuple(pixels.shape)};".encode())
            found.update(pixels.reshape(-1).numpy().data)
            self._digests[block] = found.hexdigest()[:32]
        return self._digests[block]

    def forget_digests(self) -> None:
        """Take the digests anew when they are asked for: some pixels are gone."""
        self._digests = {}

    def _take_in(self) -> None:
        """Give places to samples that have none yet, from the start of a block on."""
        known = len(self._places)
        if known == len(self.samples):
            return
        # Each addition has blocks of its own, so that a site which starts again cuts them as they were cut before.
        starts = [start for start in self.samples.starts if start >= known]
        for start, end in pairwise([*starts, len(self.samples)]):
            self._place(start, end)

    def _place(self, start: int, end: int) -> None:
        fresh = start + self.samples.labels(torch.arange(start, end)).argsort(stable=True)
        gap = torch.full((-len(self._sorted) % BLOCK,), -1)
        places = torch.empty_like(fresh)
        places[fresh - start] = torch.arange(len(fresh)) + len(self._sorted) + len(gap)
        self._sorted = torch.cat([self._sorted, gap, fresh])
        self._places = torch.cat([self._places, places])
