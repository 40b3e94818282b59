"""The classes and samples of each client, before training: `fcil.holdings`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcil.api.experiment import Experiment, ExperimentInput, listed, loader
from fcil.core.errors import ConfigError
from fcil.core.files import write_atomically
from fcil.data.datasets import load_source
from fcil.data.datasets.dataset import Source
from fcil.data.scenario.holdings import HoldingsTable, holdings_by_task, holdings_in_round
from fcil.data.scenario.ownership import split_in_words
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config
from fcil.experiment.cost_estimate import data_set
from fcil.experiment.kinds import prepared
from fcil.experiment.limits import check_clients
from fcil.experiment.run import foreseen


@dataclass(frozen=True)
class Holdings:
    """The classes and samples of each client, per task or in one round: rows (`ledger`) and a picture."""

    ledger: HoldingsTable
    source: Source
    scenario: Scenario
    config: Config
    round: int | None  # None: all tasks
    warnings: tuple[str, ...]  # on the data and the scenario

    def picture(self) -> bytes:
        """Return the picture as PNG: a row per client, a column per class, and how often each client trains."""
        from fcil.reporting.holdings_figure import holdings_picture  # noqa: PLC0415 (matplotlib takes a second to import)

        when = "in each task" if self.round is None else f"in round {self.round}"
        split = split_in_words(self.config.scenario)
        title = f"{self.source.name}, seed {self.config.seed}: who holds what {when}\n{split}"
        return holdings_picture(self.ledger, self.source.class_names, title)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file."""
        if Path(path).suffix.lower() != ".png":
            raise ConfigError(f"{path}: the picture is a PNG; name a file that ends in .png")
        write_atomically(Path(path), self.picture())

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self.picture()


def holdings(
    config: Experiment,
    *,
    data: Any = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    round: int | None = None,
) -> Holdings:
    """Return each client's samples in each task of an experiment, or in one round, counted from 1; nothing is trained.

    `config`, `data`, `seed` and `settings` are those of `fcil.run`. A published data set that is not at hand is shown
    with its published sizes.
    """
    chosen = [*listed(settings), *([f"seed={seed}"] if seed is not None else [])]
    parsed = ExperimentInput.of(config, data is not None).config(chosen)
    source, notes = data_set(parsed, loader(data) or load_source)
    scenario = Scenario(parsed.scenario, source.train.labels, source.classes, parsed.seed)
    check_clients(scenario)
    source = prepared(parsed, source, scenario)
    if round is not None and not 1 <= round <= scenario.rounds:
        raise ConfigError(f"round {round} is out of range (1 to {scenario.rounds})")
    labels = source.train.labels
    ledger = holdings_by_task(scenario, labels) if round is None else holdings_in_round(scenario, labels, round - 1)
    warnings = (*notes, *source.warnings, *foreseen(parsed, scenario))
    return Holdings(ledger, source, scenario, parsed, round, warnings)
