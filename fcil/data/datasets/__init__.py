"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable

from fcil.core.errors import DataError, system_words
from fcil.data.datasets.cache import is_decoded, load_decoded
from fcil.data.datasets.cifar100 import is_there, load_cifar100
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.decode import Progress
from fcil.data.datasets.digits import load_digits
from fcil.data.datasets.imagefolder import open_imagefolder
from fcil.data.datasets.imagenet_subset import open_imagenet_subset
from fcil.data.datasets.manifest import Origin
from fcil.data.datasets.npz import open_npz
from fcil.data.datasets.parquet import open_parquet
from fcil.data.datasets.tinyimagenet import open_tinyimagenet

__all__ = ["ORIGINS", "SOURCES", "DataConfig", "Progress", "at_hand", "fitted", "load_source"]


def _not_given() -> Source:
    raise DataError(
        "data.source: python is data that a program passes to fcil.run(..., data=...); "
        "to continue its run, pass the same data again, with resume=True or to fcil.resume"
    )


SOURCES: dict[str, Callable[[], Source]] = {  # decoded already
    "digits": load_digits,
    "cifar100": load_cifar100,
    "python": _not_given,
}
ORIGINS: dict[str, Callable[[DataConfig], Origin]] = {
    "tinyimagenet": open_tinyimagenet,
    "imagenet-subset": open_imagenet_subset,
    "imagefolder": open_imagefolder,
    "npz": open_npz,
    "parquet": open_parquet,
}


def load_source(config: DataConfig, progress: Progress | None = None) -> Source:
    """Return the data set as configured; `progress` is told how many images are decoded, where any are."""
    try:
        if config.source in SOURCES:
            source = SOURCES[config.source]()
        else:
            source = load_decoded(ORIGINS[config.source](config), config.broken == "skip", progress)
    except OSError as error:  # whatever the system refuses, of the data or of the cache
        key = "data.source" if config.path is None else "data.path"
        raise DataError(
            f"{key}: {config.source} cannot be read ({system_words(error)}); docs/data.md says where it is looked for"
        ) from error
    return fitted(source, config)


def fitted(source: Source, config: DataConfig) -> Source:
    """Return as much of a data set as is configured, in the size that is."""
    if config.samples_per_class is not None:
        source = source.reduced(config.samples_per_class)
    if config.image_size is not None:
        source = source.resized(config.image_size)
    return source


def at_hand(config: DataConfig) -> bool:
    """Say whether a data set can be loaded without downloading or decoding anything."""
    if config.source in SOURCES:
        return config.source == "digits" or (config.source == "cifar100" and is_there())
    try:
        return is_decoded(ORIGINS[config.source](config), config.broken == "skip")
    except (DataError, OSError):
        return False
