"""Loading of the leaderboard: kept results, and runs that the user adds to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fcil.core.errors import ConfigError
from fcil.core.files import exists
from fcil.data.scenario.ownership import split_in_words
from fcil.experiment.checkpoint import resuming
from fcil.experiment.config import Config, apply_settings, differing_settings, parse_config
from fcil.experiment.presets import preset_names, read_document
from fcil.experiment.run_directory import SUMMARY_FILE
from fcil.experiment.summary import Summary
from fcil.methods import get_method, methods
from fcil.reporting.leaderboard.rank import Leaderboard, LeaderboardRun, leaderboard
from fcil.reporting.leaderboard.shipped import shipped_runs
from fcil.reporting.load_runs import facts_of, named_kept, runs_in
from fcil.reporting.published import published_row

# Of columns; others follow by name.
ORDER = ("digits", "digits-noniid", "cifar100-lite", "cifar100-lite-t10", "cifar100-mid", "tiny-lite")
FILES = "*-*.json"  # METHOD-SEED.json, as `--results` writes them
MOST_KEYS = 5  # that differ and are named


def load_leaderboard(
    results: Path | None = None,
    added: Sequence[Path] = (),
    tell: Callable[[str], None] = lambda sentence: None,
) -> Leaderboard:
    """Return the leaderboard of kept results and added runs; `tell` receives a sentence per run that is left out.

    The kept results are those of a folder, or the ones that ship with fcil.
    """
    runs = shipped_runs() if results is None else folder_runs(results)
    experiments = in_order({run.experiment for run in runs})
    for place in added:
        runs += added_runs(place, experiments, tell)
    published = {name: averages for name in experiments if (averages := published_averages(name))}
    return replace(leaderboard(experiments, runs, published), splits={name: split_of(name) for name in experiments})


def experiments_in(results: Path) -> list[str]:
    """Return the presets of which a folder has kept runs, in the order of the table."""
    return in_order({path.parent.name for path in results.glob(f"*/{FILES}")} & set(preset_names()))


def in_order(experiments: set[str]) -> list[str]:
    """Return experiments in the order of the table's columns."""
    return [name for name in ORDER if name in experiments] + sorted(experiments.difference(ORDER))


def split_of(experiment: str) -> str:
    """Return who holds the samples of a class in an experiment."""
    return split_in_words(parse_config(read_document(experiment)).scenario)


# --- runs ---------------------------------------------------------------------------------------------------------


def folder_runs(results: Path) -> list[LeaderboardRun]:
    """Return the kept runs of all experiments in a folder."""
    experiments = experiments_in(results)
    if not experiments:
        raise ConfigError(
            f"--results {results}: found no kept runs, should have a folder for each preset with a file "
            f"METHOD-SEED.json for each run, as `fcil compare PRESET --results {results / 'PRESET'}` writes them"
        )
    return [run for name in experiments for run in kept_runs(results, name)]


def kept_runs(results: Path, experiment: str) -> list[LeaderboardRun]:
    """Return the kept runs of an experiment; their places are relative to the folder that has the results in it."""
    found = []
    for path in sorted((results / experiment).glob(FILES)):
        kept = named_kept(path)
        asked = _asked(experiment, kept.config, path)
        differing = differing_settings(kept.config, asked.document())
        if differing:
            raise ConfigError(f"{path} is not a run of {experiment}: {_some(differing)}")
        place = f"{results.absolute().name}/{experiment}/{path.name}"
        machine = f"{kept.machine.get('processor', 'unknown')}, torch {kept.machine.get('torch', 'unknown')}"
        found.append(_ranked_run(experiment, asked, "kept", kept.summary, place, machine))
    return found


def added_runs(place: Path, experiments: Sequence[str], tell: Callable[[str], None]) -> list[LeaderboardRun]:
    """Return the finished runs in a place; each must be of one of the experiments, whatever its method and seed."""
    found, unfinished = [], []
    for path in runs_in(place):
        if path.is_dir() and not exists(path / SUMMARY_FILE):
            unfinished.append(path)
            continue
        run = facts_of(path)
        if run.kind == "server":
            raise ConfigError(f"{path} is a server's run, measured at its sites; the table has simulations")
        experiment, asked = _experiment_of(run.config, experiments, path)
        found.append(_ranked_run(experiment, asked, "added", run.summary, path.as_posix()))
    if not found:
        raise ConfigError(f"{place} has no finished run; continue it with: {resuming(unfinished[0])}")
    for path in unfinished:
        tell(f"{path} is not finished and left out")
    return found


def _experiment_of(config: Mapping[str, Any], experiments: Sequence[str], path: Path) -> tuple[str, Config]:
    """Return the experiment that a run is of, and its settings there; method and seed are its own."""
    asked = {name: _asked(name, config, path) for name in experiments}
    differing = {name: differing_settings(config, asked[name].document()) for name in experiments}
    nearest = min(experiments, key=lambda name: len(differing[name]))
    if differing[nearest]:
        raise ConfigError(
            f"{path} is a run of none of the experiments in the table ({', '.join(experiments)}); only method and seed "
            f"may differ. From {nearest} it differs in {_some(differing[nearest])}"
        )
    return nearest, asked[nearest]


def _asked(experiment: str, config: Mapping[str, Any], path: Path) -> Config:
    """Return the settings that an experiment has with a run's method and seed."""
    try:
        return parse_config({**read_document(experiment), "method": config["method"], "seed": config["seed"]})
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be put into the table: {error}") from error


def _some(differing: Sequence[str]) -> str:
    more = len(differing) - MOST_KEYS
    return "; ".join([*differing[:MOST_KEYS], *([f"and {more} more"] if more > 0 else [])])


def _ranked_run(
    experiment: str,
    asked: Config,
    origin: Literal["kept", "added"],
    summary: Summary,
    place: str,
    machine: str = "",
) -> LeaderboardRun:
    """Return a run as it stands in the table."""
    method, label = get_method(asked.method_name), _label(experiment, asked)
    varied = method.variant_of or (asked.method_name if label != asked.method_name else "")
    is_variant = origin == "kept" and bool(varied)  # what somebody adds is a method of theirs
    return LeaderboardRun(
        experiment,
        label,
        origin,
        summary,
        place,
        contends=not method.is_bound and not is_variant,
        kin=varied if is_variant else "",
        sends=tuple(asked.method.sends().values()),
        machine=machine,
    )


def _label(experiment: str, asked: Config) -> str:
    """Return the name of a run's row: its method, and the settings that differ from the experiment's."""
    name, edition = asked.method_name, asked.method_edition
    usual = parse_config(
        apply_settings(read_document(experiment), [f"method.name={name}", f"method.edition={edition}"])
    )
    ours, theirs = (side.method.model_dump(mode="json") for side in (asked, usual))
    changed = [f"{key}={_text(value)}" for key, value in ours.items() if value != theirs[key]]
    return " ".join([name, *([f"({edition})"] if edition != "fcil" else []), *changed])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- the paper ----------------------------------------------------------------------------------------------------


def published_averages(experiment: str) -> dict[str, float]:
    """Return the averages that the paper prints by method, if the experiment is one of the paper's."""
    config = parse_config(read_document(experiment))
    source, tasks, memory = config.data.source, config.scenario.task_count, config.scenario.memory
    if experiment != f"{source}-t{tasks}":
        return {}
    rows = {name: published_row(source, tasks, name, memory) for name in methods()}
    return {name: row.average for name, row in rows.items() if row is not None}
