"""The options of a data set: which one, where it lies, and how much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.files import with_home
from fcil.core.settings_table import SettingsTable

SourceName = Literal["digits", "cifar100", "tinyimagenet", "imagenet-subset", "imagefolder", "npz", "parquet", "python"]
WITHOUT_PATH = ("digits", "cifar100", "python")  # comes with a package, is found or downloaded, is passed by a program
WITH_PATH = ("imagefolder", "npz", "parquet")
ANY_SIZE = ("imagefolder", "parquet")  # their images may differ in size
DIVISIBLE = ("imagefolder", "npz", "parquet", "python")  # they may come without a test part
SUBSET_SIZES = (64, 224)


class DataConfig(SettingsTable):
    """Which data set, and how much of it."""

    source: SourceName = Field("digits", description="the data set, see docs/data.md")
    image_size: int | None = Field(
        None, ge=4, le=1024, validate_default=True, description="pixels per side; the data set's own size if absent"
    )
    samples_per_class: int | None = Field(None, ge=1, description="training images per class; all if absent")
    path: str | None = Field(
        None, validate_default=True, description="folder or file of the data; if absent, looked for in $FCIL_DATA"
    )
    broken: Literal["refuse", "skip"] = Field("refuse", description="what to do about an image that cannot be decoded")
    test_fraction: float | None = Field(
        None, gt=0, lt=1, description="share of each class that becomes the test part, for data without one"
    )
    split_seed: int = Field(0, ge=0, description="seed of the division by data.test_fraction")
    image_column: str = Field("image", description="parquet and python: column of the images")
    label_column: str = Field("label", description="parquet and python: column of the labels")

    @field_validator("image_size")
    @classmethod
    def _size_is_known(cls, size: int | None, info: ValidationInfo) -> int | None:
        source = info.data.get("source")
        if source in ANY_SIZE and size is None:
            raise ValueError(f"the pixels per side to which {source} scales its images")
        if source == "imagenet-subset" and size not in (None, *SUBSET_SIZES):
            raise ValueError("64 or 224 for imagenet-subset")
        return size

    @field_validator("path")
    @classmethod
    def _path_is_known(cls, path: str | None, info: ValidationInfo) -> str | None:
        source = info.data.get("source")
        if source in WITH_PATH and not path:
            raise ValueError(f"the {'folder' if source == 'imagefolder' else 'file'} of the data for {source}")
        if source in WITHOUT_PATH and path is not None:
            raise ValueError(f"absent for {source}, which is not read from a path")
        return path if path is None else with_home(path)

    @field_validator("test_fraction")
    @classmethod
    def _test_part_is_wanted(cls, fraction: float | None, info: ValidationInfo) -> float | None:
        source = info.data.get("source")
        if source is not None and source not in DIVISIBLE and fraction is not None:
            raise ValueError(f"absent for {source}, which has a test part of its own")
        return fraction

    @property
    def place(self) -> Path | None:
        """Return the path as the system knows it."""
        return None if self.path is None else Path(self.path).expanduser()
