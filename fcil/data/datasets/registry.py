"""A data set as a member of its registry: how it is read, and which settings of `[data]` it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fcil.core.registry import Registry, home_of
from fcil.core.settings_table import NoSettings, SettingsTable
from fcil.data.columns import Kind
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.manifest import Origin

if TYPE_CHECKING:
    from fcil.data.datasets.config import DataConfig


@dataclass(frozen=True)
class Dataset:
    """A registered data set: its name, one line on it, and how it is read.

    `build` returns the images themselves, or an `Origin` whose files are decoded once into the cache. `ready` says
    whether `build` works without a download; unless given, the cache is asked. `path` says what `data.path` names.
    """

    name: str
    summary: str
    build: Callable[[DataConfig], Source | Origin]
    settings: type[SettingsTable] = NoSettings
    path: Literal["none", "optional", "file", "folder"] = "none"
    ready: Callable[[DataConfig], bool] | None = None
    sizes: tuple[int, ...] = ()  # values of data.image_size that it can be read in; none: any
    any_size: bool = False  # its images may differ in size, so data.image_size must be given
    divisible: bool = False  # it may come without a test part, which data.test_fraction then draws
    kind: Kind = "image"  # of its samples

    @property
    def module(self) -> str:
        """Return the module that registers the data set."""
        return home_of(self.build)


DATASETS: Registry[Dataset] = Registry("data set", "fcil.data.datasets", "fcil.datasets")


def register_dataset(dataset: Dataset) -> None:
    """Make a data set known, under a name that no other one has; its file calls this once, at its end."""
    DATASETS.register(dataset)
