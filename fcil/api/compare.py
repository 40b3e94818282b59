"""Methods side by side in one call: `fcil.compare`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcil.api.experiment import Experiment, ExperimentInput, listed, loader
from fcil.api.run import Result, run_to_end
from fcil.core.console import plain_console
from fcil.core.errors import CheckpointError, ConfigError, FcilError, FileError
from fcil.core.settings_table import chosen_from
from fcil.data.datasets.dataset import Source
from fcil.experiment.checkpoint import Checkpoint, has_checkpoint
from fcil.experiment.config import of_the_machine
from fcil.experiment.restore import newest_checkpoint
from fcil.experiment.run import Run
from fcil.reporting.compare.cells import cases_of_methods
from fcil.reporting.compare.output import write_comparison
from fcil.reporting.compare.runner import Grid, Planned
from fcil.reporting.compare.tables import Comparison, table_csv, table_latex, table_markdown

SEEDS = (2021, 2022, 2023)
TABLES = {"markdown": table_markdown, "latex": table_latex, "csv": table_csv}
KEPT = "finished runs are kept, and the same call continues"


@dataclass(frozen=True)
class Compared:
    """Methods side by side: the figures over all seeds, the directory, and each run's result by method and seed."""

    comparison: Comparison
    folder: Path
    results: Mapping[str, Mapping[int, Result]]

    def table(self, form: str = "markdown") -> str:
        """Return the table, a row for each method, as `markdown`, `latex` or `csv`."""
        return TABLES[chosen_from("form", form, list(TABLES))](self.comparison)

    def __str__(self) -> str:
        return self.table()

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows."""
        return self.table()


def compare(
    config: Experiment,
    methods: Iterable[str],
    *,
    data: Any = None,
    seeds: Iterable[int] = SEEDS,
    out: str | Path | None = None,
    ours: str | None = None,
    settings: Iterable[str] = (),
    progress: bool = False,
) -> Compared:
    """Run every method with every seed on one experiment, and return them side by side.

    `config`, `data`, `settings` and `progress` are those of `fcil.run`. `out` is the directory of all runs, by default
    runs/compare-NAME; tables and curves are written there. The same call runs only what is missing: finished runs are
    read, and interrupted ones are continued. `ours` is the method that the others are compared with, by default glfc or
    the first. Runs happen in this process, one after the other, so that methods and networks registered by the program
    can be compared. `fcil compare --jobs` runs several at once; both can continue the other's directories.
    """
    names, numbers, chosen = _names(methods), _numbers(seeds), listed(settings)
    if ours is not None and ours not in names:
        raise ConfigError(f"ours: found {ours!r}, should be one of the methods compared, {', '.join(names)}")
    asked = ExperimentInput.of(config, data is not None)
    title = Path(asked.name).stem
    folder = Path(out) if out is not None else Path("runs") / f"compare-{title}"
    grid = Grid(
        asked.name,
        cases_of_methods(names),
        numbers,
        folder,
        chosen,
        configure=lambda _, changed: asked.config(changed),
    )
    load = loader(data)  # once, since what a program passes may be slow to read, or a generator
    source = load(asked.config([*chosen, f"method.name={names[0]}"]).data) if load is not None else None
    planned, missing = grid.prepare()
    if source is not None:
        _check_data(source, planned)
    if progress:
        line = f"{len(planned)} runs, {len(planned) - len(missing)} finished before; into {folder}"
        plain_console().print(line, soft_wrap=True)
    finished = {run.name: _finished(run, source, of_the_machine(chosen), progress) for run in missing}
    found = grid.finished(planned)
    reference = ours or ("glfc" if "glfc" in names else None)
    comparison = write_comparison(
        found, f"{title}: methods side by side", folder, reference, grid.published(), grid.processors
    )
    results: dict[str, dict[int, Result]] = {name: {} for name in names}
    for run in planned:
        summary = found[run.case.label][run.seed]
        results[run.case.label][run.seed] = finished.get(run.name) or Result(summary, run.folder)
    return Compared(comparison, folder, results)


def _finished(run: Planned, source: Source | None, settings: list[str], progress: bool) -> Result:
    """Start or continue a run of the comparison, and finish it."""
    load, begun = loader(source), has_checkpoint(run.folder)
    try:
        with Run.resume(run.folder, settings, load) if begun else Run.start(run.config, run.folder, load) as under_way:
            return run_to_end(under_way, progress, run.name)
    except FcilError as error:
        raise type(error)(f"{run.name}: {error}; {KEPT}") from error


def _check_data(source: Source, planned: Sequence[Planned]) -> None:
    """Refuse data that differs from the data of the runs in the directory, the finished ones included."""
    for run in planned:
        with suppress(FileError):  # damage is told of where a run is continued
            kept = newest_checkpoint(run.folder) if has_checkpoint(run.folder) else None
            if isinstance(kept, Checkpoint) and kept.data != source.digest:
                raise CheckpointError(
                    f"{run.folder} was begun with other data (digest {source.digest} here, {kept.data} there); "
                    "name another directory"
                )


def _names(methods: Iterable[str]) -> list[str]:
    names = [methods] if isinstance(methods, str) else list(methods)
    if isinstance(methods, str) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"methods: found {methods!r}, should be a list of names like ['glfc', 'icarl']")
    return names


def _numbers(seeds: Iterable[int]) -> list[int]:
    numbers = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if not numbers or not all(type(number) is int for number in numbers) or not isinstance(seeds, Iterable):
        raise ConfigError(f"seeds: found {seeds!r}, should be a list of whole numbers like [2021, 2022]")
    return numbers
