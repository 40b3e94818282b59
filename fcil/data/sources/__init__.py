"""The data sets by name, and the options every one of them takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fcil.data.source import Source
from fcil.data.sources.cifar100 import load_cifar100
from fcil.data.sources.digits import load_digits

SOURCES: dict[str, Callable[[], Source]] = {"digits": load_digits, "cifar100": load_cifar100}


class DataConfig(BaseModel):
    """Which data set, and how much of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    source: Literal["digits", "cifar100"] = Field("digits", description="the data set")
    image_size: int | None = Field(None, ge=4, le=1024, description="pixels a side; the data set's own if absent")
    samples_per_class: int | None = Field(None, ge=1, description="training images a class; all if absent")


def load_source(config: DataConfig) -> Source:
    """Return the data set as configured."""
    source = SOURCES[config.source]()
    if config.samples_per_class is not None:
        source = source.reduced(config.samples_per_class)
    if config.image_size is not None:
        source = source.resized(config.image_size)
    return source
