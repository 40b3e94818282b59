"""A data set in memory: its samples once, which every simulated client refers to by index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.errors import DataError
from fcil.data.columns import Columns, Kind, RawTable, TableSums, agree

PART = 4096  # images that are counted at once


@dataclass(frozen=True)
class Split:
    """Images (samples, channels, height, width) as uint8, and one class id each.

    Other samples are standardised float32 values of the same axes (`fcil.data.columns`).
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype not in (torch.uint8, torch.float32) or self.images.ndim != 4:
            raise DataError(
                f"samples must be uint8 or float32 of four dimensions, found {self.images.dtype} {self.images.shape}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(f"labels must be one int64 an image, found {self.labels.dtype} {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Split:
        """Return the split with only these samples."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Source:
    """A named data set: training samples, test samples and class names.

    A table or series is `raw` until its parties have agreed on an encoding, `columns`; images have neither.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # what the user should know of how it was read
    columns: Columns | None = None
    raw: RawParts | None = None

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)

    @property
    def kind(self) -> Kind:
        """Return the kind of its samples."""
        known = self.raw or self.columns
        return known.kind if known else "image"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width)."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def mean(self) -> tuple[float, ...]:
        """Return the mean of each channel over the training images, in [0, 1]."""
        if self.kind != "image":  # standardised already
            return (0.0,) * self.image_shape[0]
        return tuple(self._moments()[0].tolist())

    @cached_property
    def deviation(self) -> tuple[float, ...]:
        """Return the standard deviation of each channel over the training images, at least 1/255."""
        if self.kind != "image":
            return (1.0,) * self.image_shape[0]
        return tuple(self._moments()[1].clamp(min=1 / 255).tolist())

    @cached_property
    def digest(self) -> str:
        """Return a name for the data that depends on every bit of it."""
        total = hashlib.sha256()
        for tensor in (self.train.images, self.train.labels, self.test.images, self.test.labels):
            total.update(tensor.contiguous().numpy().data)
        return total.hexdigest()[:32]

    def encoded(self, columns: Columns) -> Source:
        """Return the source with its raw samples encoded."""
        assert self.raw is not None
        train, test = Split(columns.encode(self.raw.train), self.train.labels), self.test.labels
        return replace(self, train=train, test=Split(columns.encode(self.raw.test), test), columns=columns, raw=None)

    def standardised(self, holdings: Iterable[Tensor]) -> Source:
        """Return the source with its raw samples encoded by the sums of clients that hold these training samples."""
        if self.raw is None:
            return self
        raw = self.raw
        sums = [TableSums.of(raw.train.select(rows), raw.kind, raw.label) for rows in holdings if len(rows)]
        return self.encoded(agree(sums))

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
        raw = self.raw and replace(self.raw, train=self.raw.train.select(indices))
        return replace(self, train=self.train.select(indices), raw=raw)


@dataclass(frozen=True)
class RawParts:
    """Samples before they are encoded, of both parts."""

    train: RawTable
    test: RawTable
    kind: Literal["vector", "series"]
    label: str = ""  # the column of the classes


def raw_source(
    name: str,
    raw: RawTable,
    kind: Literal["vector", "series"],
    labels: Sequence[int],
    held_out: Sequence[bool],
    class_names: tuple[str, ...],
    label: str = "",
    warnings: tuple[str, ...] = (),
) -> Source:
    """Return a data set of samples that are not encoded yet; `held_out` says which are for testing."""
    ids, testing = torch.tensor(labels, dtype=torch.int64), torch.tensor(held_out, dtype=torch.bool)
    rows = [mask.nonzero().squeeze(1) for mask in (~testing, testing)]
    none = torch.zeros(1, 1, 1, 1)
    train, test = (Split(none.expand(len(part), -1, -1, -1), ids[part]) for part in rows)
    parts = RawParts(raw.select(rows[0]), raw.select(rows[1]), kind, label)
    return Source(name, train, test, class_names, warnings, raw=parts)


def _resize(images: Tensor, size: int) -> Tensor:
    shrink = size < min(images.shape[2:])
    resized = F.interpolate(images.float(), (size, size), mode="area" if shrink else "nearest")
    return resized.round().clamp(0, 255).to(torch.uint8)
