"""Augmentation of a whole batch at once, from a named generator."""

from __future__ import annotations

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


def as_floats(images: Tensor) -> Tensor:
    """Return uint8 images as floats in [0, 1]."""
    return images.to(torch.float32).div_(255)


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Return each image cropped, mirrored and brightened on its own; the draws come from the generator alone."""
    if config.crop_padding:
        images = random_crop(images, config.crop_padding, generator)
    if config.flip:
        mirrored = torch.rand(len(images), generator=generator) < 0.5
        images = torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)
    if config.brightness:
        low, span = 1 - config.brightness, 2 * config.brightness
        factor = low + span * torch.rand(len(images), 1, 1, 1, generator=generator)
        images = (images * factor.to(images)).clamp(0, 1)
    return images


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Return windows of the original size, at a place of their own in the zero-padded images."""
    count, channels, height, width = images.shape
    top, left = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
    padded = F.pad(images, [padding] * 4)
    rows = (top[:, None] + torch.arange(height)).to(images.device)
    columns = (left[:, None] + torch.arange(width)).to(images.device)
    picture = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]
