"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable

from fcil.data.collection import Origin
from fcil.data.decoded import is_decoded, load_decoded
from fcil.data.decoding import Progress
from fcil.data.options import DataConfig
from fcil.data.source import Source
from fcil.data.sources.cifar100 import is_there, load_cifar100
from fcil.data.sources.digits import load_digits
from fcil.data.sources.imagefolder import open_imagefolder
from fcil.data.sources.imagenet_subset import open_imagenet_subset
from fcil.data.sources.npz import open_npz
from fcil.data.sources.parquet import open_parquet
from fcil.data.sources.tinyimagenet import open_tinyimagenet
from fcil.errors import DataError, system_words

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
