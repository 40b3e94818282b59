"""The data sets by name, one file each."""

from __future__ import annotations

from fcil.core.errors import DataError, system_words
from fcil.data.datasets.cache import is_decoded, load_decoded
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.decode import Progress
from fcil.data.datasets.manifest import Origin
from fcil.data.datasets.registry import DATASETS, Dataset, register_dataset

__all__ = [
    "DATASETS",
    "DataConfig",
    "Dataset",
    "Progress",
    "at_hand",
    "fitted",
    "load_source",
    "register_dataset",
]


def load_source(config: DataConfig, progress: Progress | None = None) -> Source:
    """Return the data set as configured; `progress` is called with the number of images decoded so far."""
    try:
        found = DATASETS[config.source].build(config)
        source = load_decoded(found, config.broken == "skip", progress) if isinstance(found, Origin) else found
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
    dataset = DATASETS[config.source]
    if dataset.ready is not None:
        return dataset.ready(config)
    try:
        found = dataset.build(config)
        return is_decoded(found, config.broken == "skip") if isinstance(found, Origin) else True
    except (DataError, OSError):
        return False
