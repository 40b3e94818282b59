"""A whole run in one call, for programs: `fcil.run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fcil.checkpoint import has_checkpoint
from fcil.config import Config, apply_settings, differing_settings, parse_config
from fcil.data.given import NAME, given_source
from fcil.data.source import Source
from fcil.data.sources import DataConfig, fitted
from fcil.errors import CheckpointError, FcilError
from fcil.experiment import Loader, Run, default_folder
from fcil.presets import read_document
from fcil.progress import Course, Progress
from fcil.results.model import FILE, Predictor, load_model
from fcil.results.summary import Summary
from fcil.sentences import warn
from fcil.stored import newest_checkpoint


@dataclass(frozen=True)
class Result:
    """A finished run: its figures, its directory, and what is odd about it."""

    summary: Summary
    folder: Path
    warnings: tuple[str, ...] = ()

    def load_model(self, device: str = "cpu") -> Predictor:
        """Return the trained model."""
        return load_model(self.folder / FILE, device)


def run(
    config: str | Path | Mapping[str, Any],
    *,
    data: Any = None,
    out: str | Path | None = None,
    method: str | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Play an experiment to its end and return its result.

    `config` is a TOML file, a preset's name, or a mapping in the shape of such a file; `settings` are changes like
    `"scenario.memory=500"`. `data` takes the place of the data set that it names: a sequence or a torch Dataset of
    (image, label), or a mapping of `train` and `test` to these (docs/own-data.md). `out` is the run's directory, by
    default runs/NAME-METHOD-SEED. With `resume` a run that was begun there is continued, or read if it has ended;
    data that was passed then has to be passed again. With `progress` the screen shows how far it is.
    """
    chosen = list(settings)
    chosen += [f"method.name={method}"] if method is not None else []
    chosen += [f"seed={seed}"] if seed is not None else []
    name = "python" if isinstance(config, Mapping) else str(config)
    document = apply_settings(config if isinstance(config, Mapping) else read_document(name), chosen)
    given = data is not None or (resume and out is not None and _began_with_given_data(Path(out)))
    parsed = parse_config(_with_given_data(document) if given else document)
    folder = Path(out) if out is not None else default_folder(name, parsed)
    load = None if data is None else _loader(data)
    begun = resume and has_checkpoint(folder)
    with Run.resume(folder, _of_the_machine(chosen), load) if begun else Run.start(parsed, folder, load) as under_way:
        if begun:
            _check_same(under_way, parsed)
        return _play(under_way, progress)


def _began_with_given_data(folder: Path) -> bool:
    """Say whether a directory holds a run on data from a program; whatever is wrong with it is said when it resumes."""
    with suppress(FcilError, KeyError, TypeError):
        return has_checkpoint(folder) and bool(newest_checkpoint(folder).document["data"]["source"] == NAME)
    return False


def _with_given_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the program's data in the place of the one that it names."""
    table = document.get("data", {})
    kept = {key: value for key, value in table.items() if key != "path"} if isinstance(table, Mapping) else table
    return {**document, "data": {**kept, "source": NAME} if isinstance(kept, dict) else kept}


def _loader(data: Any) -> Loader:
    def load(config: DataConfig) -> Source:
        return fitted(given_source(data, config), config)

    return load


def _of_the_machine(settings: list[str]) -> list[str]:
    """Return the settings that a run may be continued with; the others are compared with those it began with."""
    return [setting for setting in settings if setting.strip().startswith("run.")]


def _check_same(run: Run, wanted: Config) -> None:
    differing = differing_settings(run.config.document(), wanted.document())
    if differing:
        raise CheckpointError(f"{run.folder} was begun with another configuration: {'; '.join(differing)}")


def _play(run: Run, progress: bool) -> Result:
    with ExitStack() as screen:
        shown = None
        if progress:
            for warning in run.warnings:
                warn(warning)
            shown = screen.enter_context(Progress(Console(highlight=False), Course.of(run), quiet=False))
        for record in run.rounds():
            if shown is not None:
                shown.show(record)
    return Result(run.finish(), run.folder, tuple(run.warnings))
