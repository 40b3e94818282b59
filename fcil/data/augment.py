"""Augmentation of a whole batch at once, from a named generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fcil.core.settings_table import SettingsTable


class AugmentConfig(SettingsTable):
    """Augmentation of each training image, drawn anew every time."""

    crop_padding: int = Field(0, ge=0, le=64, description="pixels of zeros around the image before a random crop")
    flip: bool = Field(False, description="mirror every second image, left to right")
    brightness: float = Field(
        0.0, ge=0, lt=1, description="b: multiply the brightness by a random factor from [1 - b, 1 + b]"
    )
    views: int = Field(
        0,
        ge=0,
        le=64,
        description="with model.freeze: versions of each image to draw from; 0: no augmentation",
    )

    @property
    def changes(self) -> bool:
        """Say whether an image can look different afterwards."""
        return bool(self.crop_padding or self.flip or self.brightness)


def as_floats(images: Tensor) -> Tensor:
    """Return uint8 images as floats in [0, 1]; other samples are floats already."""
    return images.to(torch.float32).div_(255) if images.dtype == torch.uint8 else images


@dataclass(frozen=True)
class Draws:
    """The random numbers that augment some images, one row per image; None where nothing is drawn."""

    corners: Tensor | None = None  # of the windows in the padded images
    mirrored: Tensor | None = None
    factors: Tensor | None = None  # of the brightness

    @classmethod
    def of(cls, images: int, config: AugmentConfig, generator: torch.Generator) -> Draws:
        """Return the draws for that many images; they come from the generator alone."""
        corners = mirrored = factors = None
        if config.crop_padding:
            corners = torch.randint(0, 2 * config.crop_padding + 1, (2, images), generator=generator).T
        if config.flip:
            mirrored = torch.rand(images, generator=generator) < 0.5
        if config.brightness:
            low, span = 1 - config.brightness, 2 * config.brightness
            factors = low + span * torch.rand(images, 1, 1, 1, generator=generator)
        return cls(corners, mirrored, factors)

    def to(self, device: torch.device) -> Draws:
        """Return the draws on a device."""
        return self._each(lambda tensor: tensor.to(device))

    def rows(self, first: int, last: int) -> Draws:
        """Return the draws of some of the images."""
        return self._each(lambda tensor: tensor[first:last])

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Return the draws of several batches as those of one."""
        columns = zip(*((part.corners, part.mirrored, part.factors) for part in parts), strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Draws:
        return Draws(*(None if t is None else change(t) for t in (self.corners, self.mirrored, self.factors)))


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Return each image cropped, mirrored and brightened on its own; the draws come from the generator alone."""
    return augmented(images, config, Draws.of(len(images), config, generator).to(images.device))


def augmented(images: Tensor, config: AugmentConfig, draws: Draws) -> Tensor:
    """Return images cropped, mirrored and brightened as drawn, on the device that has both."""
    if draws.corners is not None:
        images = _cropped(images, config.crop_padding, draws.corners)
    if draws.mirrored is not None:
        images = torch.where(draws.mirrored[:, None, None, None], images.flip(3), images)
    if draws.factors is not None:
        images = (images * draws.factors.to(images.dtype)).clamp(0, 1)
    return images


def _cropped(images: Tensor, padding: int, corners: Tensor) -> Tensor:
    """Return windows of the original size, at a place of their own in the zero-padded images."""
    count, channels, height, width = images.shape
    padded, device = F.pad(images, [padding] * 4), images.device
    rows = corners[:, :1] + torch.arange(height, device=device)
    columns = corners[:, 1:] + torch.arange(width, device=device)
    picture = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    return padded[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]
