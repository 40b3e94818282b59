"""A data set: images with one bright bar, whose place is the class."""

from __future__ import annotations

import torch
from pydantic import Field

from fcil.core.messages import generator
from fcil.core.settings_table import SettingsTable
from fcil.data.datasets import DataConfig, Dataset, register_dataset
from fcil.data.datasets.dataset import Source, Split

CLASSES, SIZE = 6, 8


class BarsSettings(SettingsTable):
    """The table `[data.bars]`."""

    per_class: int = Field(40, ge=2, description="training images per class; a quarter as many test images")
    noise: float = Field(0.2, ge=0, le=1, description="deviation of the noise, of full brightness")


def build(config: DataConfig) -> Source:
    """Return the images; every draw comes from a seeded generator."""
    own = config.own
    assert isinstance(own, BarsSettings)
    draw = generator(0)

    def split(count: int) -> Split:
        labels = torch.arange(CLASSES).repeat(count)
        images = own.noise * torch.randn(len(labels), 1, SIZE, SIZE, generator=draw)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[:, label] += 0.8
        return Split((images.clamp(0, 1) * 255).to(torch.uint8), labels)

    names = tuple(f"row {row}" for row in range(CLASSES))
    return Source("bars", split(own.per_class), split(max(1, own.per_class // 4)), names)


register_dataset(Dataset("bars", "bars in six places", build, BarsSettings, ready=lambda _: True))
