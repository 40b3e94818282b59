"""A data set in memory: uint8 images once, which every simulated client refers to by index."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.errors import DataError

PART = 4096  # images that are counted at once


@dataclass(frozen=True)
class Split:
    """Images (samples, channels, height, width) as uint8, and one class id each."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DataError(f"images must be uint8 of four dimensions, found {self.images.dtype} {self.images.shape}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(f"labels must be one int64 an image, found {self.labels.dtype} {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Split:
        """Return the split with only these samples."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Source:
    """A named data set: what is trained on, what is tested on, and what its classes are called."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # what the user should know of how it was read

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width)."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def mean(self) -> tuple[float, ...]:
        """Return the mean of each channel over the training images, in [0, 1]."""
        return tuple(self._moments()[0].tolist())

    @cached_property
    def deviation(self) -> tuple[float, ...]:
        """Return the standard deviation of each channel over the training images, at least 1/255."""
        return tuple(self._moments()[1].clamp(min=1 / 255).tolist())

    @cached_property
    def digest(self) -> str:
        """Return a name for the data that depends on every bit of it."""
        total = hashlib.sha256()
        for tensor in (self.train.images, self.train.labels, self.test.images, self.test.labels):
            total.update(tensor.contiguous().numpy().data)
        return total.hexdigest()[:32]

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of each channel, from counts of the 256 values, so that no float copy is made."""
        counts = torch.zeros(self.image_shape[0], 256, dtype=torch.int64)
        for start in range(0, len(self.train), PART):  # the images may be mapped from a file larger than the memory
            part = self.train.images[start : start + PART]
            counts += torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in part.unbind(1)])
        share = counts.to(torch.float64) / counts[0].sum()
        value = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ value
        return mean, (share * (value - mean[:, None]).square()).sum(1).sqrt()

    def resized(self, size: int) -> Source:
        """Return the source with images of `size` x `size` pixels, averaged over areas when shrinking."""
        if self.image_shape[1:] == (size, size):
            return self
        return replace(
            self,
            train=Split(_resize(self.train.images, size), self.train.labels),
            test=Split(_resize(self.test.images, size), self.test.labels),
        )

    def reduced(self, samples_per_class: int) -> Source:
        """Return the source with the first `samples_per_class` training images of each class."""
        kept = [(self.train.labels == label).nonzero().squeeze(1)[:samples_per_class] for label in range(self.classes)]
        indices = torch.cat(kept).sort().values
        return replace(self, train=self.train.select(indices))


def _resize(images: Tensor, size: int) -> Tensor:
    shrink = size < min(images.shape[2:])
    resized = F.interpolate(images.float(), (size, size), mode="area" if shrink else "nearest")
    return resized.round().clamp(0, 255).to(torch.uint8)
