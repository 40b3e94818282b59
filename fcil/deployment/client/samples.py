"""A site's samples in memory; a retired one keeps its index and its label but no pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples


class SiteSamples(Samples):
    """Samples with sparse pixels; retired ones read as zeros, since inference computes whole blocks.

    The first row of `_images` is an image of zeros, which stands for all retired samples.
    """

    def __init__(self, image_shape: tuple[int, int, int], dtype: torch.dtype = torch.uint8) -> None:
        none = torch.empty(0, dtype=torch.int64)
        super().__init__(Split(torch.zeros(0, *image_shape, dtype=dtype), none), ())
        self._images = torch.zeros(1, *image_shape, dtype=dtype)
        self._rows = none  # of each sample in `_images`
        self.retired: Mapping[str, str] = {}  # classes that were withdrawn (to nothing) or merged into others

    @classmethod
    def restored(
        cls, labels: Tensor, ids: Sequence[str], starts: Sequence[int], held: Tensor, pixels: Tensor
    ) -> SiteSamples:
        """Return stored samples: all labels, the first sample of each scan, and the pixels of those not retired."""
        channels, height, width = pixels.shape[1:]
        samples = cls((channels, height, width), pixels.dtype)
        samples.ids, samples.starts = tuple(ids), tuple(starts)
        samples._labels = labels
        samples._images = torch.cat([samples._images, pixels])
        samples._rows = torch.zeros(len(labels), dtype=torch.int64)
        samples._rows[held] = torch.arange(1, len(held) + 1)
        return samples

    def retire_classes(self, retired: Mapping[str, str]) -> None:
        """Give samples of retired classes the output of the class that they became part of, or none."""
        self.retired, self._outputs = dict(retired), None

    @property
    def withdrawn(self) -> Tensor:
        """Return the samples of withdrawn classes."""
        labels = [label for label, name in enumerate(self.ids) if self.retired.get(name, name) == ""]
        return torch.isin(self._labels, torch.tensor(labels, dtype=torch.int64)).nonzero().squeeze(1)

    def unknown(self, indices: Tensor, catalogue: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in super().unknown(indices, catalogue) if name not in self.retired)

    def _place_of(self, identity: str, places: Mapping[str, int]) -> int:
        return places.get(self.retired.get(identity, identity), -1)

    @property
    def split(self) -> Split:
        """Return all images and labels, with zeros for retired images."""
        return Split(self.pixels(torch.arange(len(self))), self._labels)

    @property
    def held(self) -> Tensor:
        """Return the samples that have pixels."""
        return self._rows.nonzero().squeeze(1)

    def pixels(self, indices: Tensor) -> Tensor:
        return self._images[self._rows[indices]]

    def has_pixels(self, indices: Tensor) -> bool:
        return bool((self._rows[indices] > 0).all())

    def _add_pixels(self, images: Tensor) -> None:
        first = len(self._images)
        super()._add_pixels(images)
        self._rows = torch.cat([self._rows, torch.arange(first, len(self._images))])

    def keep_only(self, indices: Tensor) -> None:
        """Delete the pixels of all other samples."""
        held = self.held
        stays = held[torch.isin(held, indices)]
        self._images = torch.cat([self._images[:1], self.pixels(stays)])
        self._rows = torch.zeros_like(self._rows)
        self._rows[stays] = torch.arange(1, len(stays) + 1)
        self.blocks.forget_digests()
