"""A whole run in one call: `fcil.run` and `fcil.resume`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fcil.api.experiment import Experiment, ExperimentInput, listed, loader
from fcil.core.console import plain_console, warn
from fcil.core.errors import CheckpointError, FcilError
from fcil.data.datasets.in_memory import NAME
from fcil.experiment.checkpoint import has_checkpoint
from fcil.experiment.config import Config, differing_settings, of_the_machine
from fcil.experiment.model_file import Predictor, load_model
from fcil.experiment.restore import newest_checkpoint
from fcil.experiment.run import Run, default_folder
from fcil.experiment.summary import Summary
from fcil.reporting.load_runs import run_facts
from fcil.reporting.run_facts import RunFacts
from fcil.reporting.terminal.progress import Course, Progress


@dataclass(frozen=True)
class Result:
    """A finished run: its figures, its directory, and its warnings."""

    summary: Summary
    folder: Path
    warnings: tuple[str, ...] = ()

    def load_model(self, device: str = "cpu") -> Predictor:
        """Return the trained model."""
        return load_model(self.folder, device)

    def load_run(self) -> RunFacts:
        """Return all facts of the run: its rounds, confusion matrices and settings."""
        return run_facts(self.folder)


def run(
    config: Experiment,
    *,
    data: Any = None,
    out: str | Path | None = None,
    method: str | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Run an experiment to its end and return its result.

    `config` is a TOML file, a preset's name, or a mapping in the shape of such a file; `settings` are changes like
    `"scenario.memory=500"`. `data` takes the place of the data set that it names: a sequence or a torch Dataset of
    (image, label), or a mapping of `train` and `test` to these (docs/own-data.md). `out` is the run's directory, by
    default runs/NAME-METHOD-SEED. With `resume` a run that was begun there is continued, or read if it has ended;
    data that was passed then has to be passed again. With `progress` the screen shows how far it is.
    """
    chosen = listed(settings)
    chosen += [f"method.name={method}"] if method is not None else []
    chosen += [f"seed={seed}"] if seed is not None else []
    given = data is not None or (resume and out is not None and _began_with_given_data(Path(out)))
    asked = ExperimentInput.of(config, given)
    parsed = asked.config(chosen)
    folder = Path(out) if out is not None else default_folder(asked.name, parsed)
    load = loader(data)
    begun = resume and has_checkpoint(folder)
    with Run.resume(folder, of_the_machine(chosen), load) if begun else Run.start(parsed, folder, load) as under_way:
        if begun:
            _check_same(under_way, parsed)
        return run_to_end(under_way, progress)


def resume(folder: str | Path, *, data: Any = None, settings: Iterable[str] = (), progress: bool = False) -> Result:
    """Continue the run in a directory to its end, bit for bit, or read it if it has ended; return its result.

    Its configuration is the one that it began with: `settings` may change `run.*` and the places of files, and nothing
    else. Data that was passed when it began has to be passed again.
    """
    with Run.resume(Path(folder), listed(settings), loader(data)) as under_way:
        return run_to_end(under_way, progress)


def run_to_end(run: Run, progress: bool, name: str | None = None) -> Result:
    """Finish a run, with progress on the screen if wished, under `name` or the method's name."""
    with ExitStack() as screen:
        shown = None
        if progress:
            for warning in run.warnings:
                warn(warning)
            course = Course.of(run)
            course = course if name is None else replace(course, name=name)
            shown = screen.enter_context(Progress(plain_console(), course, quiet=False))
        for record in run.rounds():
            if shown is not None:
                shown.show(record)
    return Result(run.finish(), run.folder, tuple(run.warnings))


def _began_with_given_data(folder: Path) -> bool:
    """Say whether a directory holds a run on data from a program; resuming it reports any damage."""
    with suppress(FcilError, KeyError, TypeError):
        return has_checkpoint(folder) and bool(newest_checkpoint(folder).document["data"]["source"] == NAME)
    return False


def _check_same(run: Run, wanted: Config) -> None:
    differing = differing_settings(run.config.document(), wanted.document())
    if differing:
        raise CheckpointError(f"{run.folder} was begun with another configuration: {'; '.join(differing)}")
