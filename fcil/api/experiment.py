"""An experiment given by a program: a document, and data in place of the configured data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcil.core.errors import ConfigError
from fcil.data.datasets import DataConfig, fitted
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.in_memory import NAME, given_source
from fcil.experiment.config import Config, apply_settings, parse_config, with_weights_digest
from fcil.experiment.presets import read_document
from fcil.experiment.run import Loader

Experiment = str | Path | Mapping[str, Any]  # a TOML file, a preset's name, or a mapping in the shape of such a file


@dataclass(frozen=True)
class ExperimentInput:
    """An experiment before its settings are applied; `given` is true if the program passes its data."""

    name: str
    document: Mapping[str, Any]
    given: bool

    @classmethod
    def of(cls, config: Experiment, given: bool) -> ExperimentInput:
        """Return the experiment in a file, a preset or a mapping."""
        if isinstance(config, Mapping):
            return cls(NAME, config, given)
        return cls(str(config), read_document(str(config)), given)

    def config(self, settings: Sequence[str]) -> Config:
        """Return its configuration with these settings."""
        document = apply_settings(self.document, settings)
        return with_weights_digest(parse_config(_with_given_data(document) if self.given else document))


def _with_given_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the program's data in place of its data set."""
    table = document.get("data", {})
    kept = {key: value for key, value in table.items() if key != "path"} if isinstance(table, Mapping) else table
    return {**document, "data": {**kept, "source": NAME} if isinstance(kept, dict) else kept}


def loader(data: Any) -> Loader | None:
    """Return a loader of the data that a program passes, or None if it passes none."""
    if data is None:
        return None

    def load(config: DataConfig) -> Source:
        return fitted(given_source(data, config), config)

    return load


def listed(settings: Iterable[str]) -> list[str]:
    """Return the settings as a list of texts. A bare string is rejected: it would iterate by character."""
    found = [settings] if isinstance(settings, str) else list(settings)
    if isinstance(settings, (str, Mapping)) or not all(isinstance(setting, str) for setting in found):
        raise ConfigError(f"settings: found {settings!r}, should be a list of texts like ['scenario.memory=500']")
    return found
