"""The images that a site holds, referred to by index for good: images may be added, never moved or removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fcil.core.messages import RoundContext
from fcil.data.blocks import Blocks
from fcil.data.datasets.dataset import Source, Split


class Samples:
    """Images with a label each, and the class id that each label stands for on the wire.

    An index names the same image for ever, so that lists of indices stay valid while a folder grows. How pixels are
    held is a matter of `split`, `pixels` and `_add_pixels` alone: all else is about labels.
    """

    def __init__(self, split: Split, ids: Sequence[str]) -> None:
        _check_labels(split.labels, ids)
        self.ids = tuple(ids)
        self.starts: tuple[int, ...] = (0,)  # the first image of each addition
        self._images, self._labels = split.images, split.labels
        self._outputs: tuple[Sequence[str], Tensor] | None = None  # of each label, for the catalogue asked about last
        self.blocks = Blocks(self)

    @classmethod
    def of(cls, source: Source) -> Samples:
        """Return a data set's training images, each class known by its number."""
        return cls(source.train, [str(label) for label in range(source.classes)])

    @property
    def split(self) -> Split:
        """Return all images and labels."""
        return Split(self._images, self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def append(self, more: Split, ids: Sequence[str] | None = None) -> Tensor:
        """Add images at the end and return their indices; `ids` replaces the list of class ids by a longer one."""
        known = self.ids if ids is None else tuple(ids)
        if known[: len(self.ids)] != self.ids:
            raise ValueError("class ids can be added, not changed")
        _check_labels(more.labels, known)
        first = len(self)
        self._add_pixels(more.images)
        self._labels = torch.cat([self._labels, more.labels])
        self.ids = known
        if len(more):
            self.starts = (*self.starts, first)
        return torch.arange(first, len(self))

    def _add_pixels(self, images: Tensor) -> None:
        """Hold the pixels of the images that come next; on an error the former pixels stay."""
        self._images = torch.cat([self._images, images])

    def pixels(self, indices: Tensor) -> Tensor:
        """Return images as they are stored, uint8; other samples are standardised float32 values."""
        return self._images[indices]

    @property
    def are_images(self) -> bool:
        """Say whether the samples are images, which can be mirrored."""
        return self._images.dtype == torch.uint8

    def has_pixels(self, indices: Tensor) -> bool:
        """Say whether the pixels of all these images are still there."""
        return True

    def labels(self, indices: Tensor) -> Tensor:
        """Return the labels of images: positions in `ids`."""
        return self._labels[indices]

    def classes(self, indices: Tensor) -> set[int]:
        """Return the labels that occur among images."""
        counts = torch.bincount(self._labels[indices])
        return set(counts.nonzero().squeeze(1).tolist())

    def outputs(self, indices: Tensor, context: RoundContext) -> Tensor:
        """Return the output of each image's class; -1 where the catalogue lacks it."""
        return self._table(context.catalogue)[self._labels[indices]]

    def unknown(self, indices: Tensor, catalogue: Sequence[str]) -> tuple[str, ...]:
        """Return the ids of the images' classes that a catalogue lacks, by label."""
        labels = self._labels[indices]
        without = labels[self._table(catalogue)[labels] < 0]
        return tuple(self.ids[label] for label in sorted(set(without.tolist())))

    def _table(self, catalogue: Sequence[str]) -> Tensor:
        """Return the output of each label, -1 where the catalogue lacks it; made once for many clients."""
        if self._outputs is None or self._outputs[0] is not catalogue or len(self._outputs[1]) != len(self.ids):
            places = {identity: output for output, identity in enumerate(catalogue)}
            table = torch.tensor([self._place_of(identity, places) for identity in self.ids], dtype=torch.int64)
            self._outputs = catalogue, table
        return self._outputs[1]

    def _place_of(self, identity: str, places: Mapping[str, int]) -> int:
        """Return the output of a class, or -1."""
        return places.get(identity, -1)


def _check_labels(labels: Tensor, ids: Sequence[str]) -> None:
    """Refuse images whose label stands for no id."""
    highest = int(labels.max()) if len(labels) else -1
    if highest >= len(ids):
        raise ValueError(f"an image has the label {highest}, but there are {len(ids)} class ids")
