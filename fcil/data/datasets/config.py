"""The options of a data set: which one, where it lies, and how much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.files import with_home
from fcil.core.member_table import MemberTable
from fcil.core.registry import Registry
from fcil.data.datasets.registry import DATASETS


class DataConfig(MemberTable):
    """The data set, and the part of it that is used."""

    members: ClassVar[Registry[Any]] = DATASETS
    chooser: ClassVar[str] = "source"
    within: ClassVar[str] = "data"

    source: str = Field("digits", description="the data set, see `fcil list datasets` and docs/data.md")
    image_size: int | None = Field(
        None, ge=4, le=1024, validate_default=True, description="pixels per side; the data set's own size if absent"
    )
    samples_per_class: int | None = Field(None, ge=1, description="training samples per class; all if absent")
    path: str | None = Field(
        None, validate_default=True, description="folder or file of the data; if absent, looked for in $FCIL_DATA"
    )
    broken: Literal["refuse", "skip"] = Field(
        "refuse", description="what to do about an image or a row that cannot be read"
    )
    test_fraction: float | None = Field(
        None, gt=0, lt=1, description="share of each class that becomes the test part, for data without one"
    )
    split_seed: int = Field(0, ge=0, description="seed of the division by data.test_fraction")
    image_column: str = Field("image", description="parquet and python: column of the images")
    label_column: str = Field("label", description="parquet, python and table: column of the labels")

    @field_validator("source")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in DATASETS:
            raise ValueError(DATASETS.one_of(name))
        return name

    @field_validator("image_size")
    @classmethod
    def _size_is_known(cls, size: int | None, info: ValidationInfo) -> int | None:
        dataset = DATASETS.get(info.data.get("source", ""))
        if dataset and dataset.any_size and size is None:
            raise ValueError(f"the pixels per side to which {dataset.name} scales its images")
        if dataset and dataset.kind != "image" and size is not None:
            raise ValueError(f"absent for {dataset.name}, whose samples are no images")
        if dataset and dataset.sizes and size not in (None, *dataset.sizes):
            raise ValueError(f"{' or '.join(map(str, dataset.sizes))} for {dataset.name}")
        return size

    @field_validator("path")
    @classmethod
    def _path_is_known(cls, path: str | None, info: ValidationInfo) -> str | None:
        dataset = DATASETS.get(info.data.get("source", ""))
        if dataset and dataset.path in ("file", "folder") and not path:
            raise ValueError(f"the {dataset.path} of the data for {dataset.name}")
        if dataset and dataset.path == "none" and path is not None:
            raise ValueError(f"absent for {dataset.name}, which is not read from a path")
        return path if path is None else with_home(path)

    @field_validator("test_fraction")
    @classmethod
    def _test_part_is_wanted(cls, fraction: float | None, info: ValidationInfo) -> float | None:
        dataset = DATASETS.get(info.data.get("source", ""))
        if dataset and not dataset.divisible and fraction is not None:
            raise ValueError(f"absent for {dataset.name}, which has a test part of its own")
        return fraction

    @property
    def place(self) -> Path | None:
        """Return the path as the system knows it."""
        return None if self.path is None else Path(self.path).expanduser()


DATASETS.reserve(DataConfig.model_fields)
