"""Loading of run facts from run directories, folders of runs and kept results."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fcil.core.errors import ConfigError, DamagedError, FcilError
from fcil.core.files import exists
from fcil.core.toml import as_toml, literal
from fcil.data.datasets.in_memory import NAME as GIVEN
from fcil.experiment.checkpoint import has_checkpoint
from fcil.experiment.config import apply_settings, differing_settings, parse_config
from fcil.experiment.party_status import read_status
from fcil.experiment.presets import preset_names, read_document
from fcil.experiment.result_file import KeptResult, read_kept
from fcil.experiment.run import read_records
from fcil.experiment.side_files import CONFUSION, PROTOTYPES, read_attached
from fcil.experiment.summary import summarise
from fcil.experiment.timings import read_timings
from fcil.federation.diagnostics import Confusion, PrototypeComparisons
from fcil.reporting.run_facts import RunFacts, flat

KEPT_NAME = re.compile(r".+-\d+\.json")  # METHOD-SEED.json
MOST_SETTINGS = 8  # that a command changes; with more of them a file is easier to read


def load_runs(places: Sequence[Path]) -> list[RunFacts]:
    """Return the runs in some places, in their order; a place without any is refused."""
    found = [(path, facts_of(path)) for place in places for path in runs_in(place)]
    names = Counter(facts.name for _, facts in found)
    return [
        facts if names[facts.name] == 1 else replace(facts, name=f"{path.absolute().parent.name}/{facts.name}")
        for path, facts in found
    ]


def facts_of(path: Path) -> RunFacts:
    """Return the facts of the run in a directory, or in a kept file."""
    return run_facts(path) if path.is_dir() else kept_facts(path)


def runs_in(place: Path) -> list[Path]:
    """Return the directories and kept files of the runs in a place, which may be one of these itself."""
    if not exists(place):
        raise ConfigError(f"{place} does not exist; name the directory of a run or a result that was kept")
    if not place.is_dir() or has_checkpoint(place):
        return [place]
    found = _inside(place) or [run for entry in _folders(place) for run in _inside(entry)]
    if not found:
        raise ConfigError(
            f"{place} holds no run; name the directory of a run, or a folder of runs or kept results, at most two "
            "levels deep"
        )
    return found


def _inside(folder: Path) -> list[Path]:
    """Return the runs and the kept results that lie right in a directory, one of a comparison for instance."""
    found = [entry for entry in _folders(folder) if has_checkpoint(entry)]
    files = sorted(entry for entry in folder.glob("*.json") if entry.is_file())
    return found + [entry for entry in files if _is_kept(entry)]


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir())


def _is_kept(path: Path) -> bool:
    """Say whether a file looks like a kept result, whole or not; other files may lie next to them."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return KEPT_NAME.fullmatch(path.name) is not None  # a damaged one is not to be missed in silence
    return isinstance(document, dict) and {"config", "summary", "machine"} <= document.keys()


def run_facts(folder: Path) -> RunFacts:
    """Return the facts of the run in a directory, finished or not."""
    records, config = read_records(folder)
    method = config["method"]
    summary = summarise(records, method["name"], method["edition"], config["seed"])
    confusions, lost = read_attached(folder, records, CONFUSION, Confusion)
    prototypes, more = read_attached(folder, records, PROTOTYPES, PrototypeComparisons)
    status = read_status(folder)
    served = bool(status) or (bool(records) and not any(record.groups for record in records))
    return RunFacts(
        name=folder.name or str(folder),
        kind="server" if served else "simulation",
        summary=summary,
        config=config,
        records=tuple(records),
        confusions=confusions,
        prototypes=prototypes,
        timings=read_timings(folder, len(records)),
        lost=(*lost, *more),
        status=status,
        command="" if served else repeating(config),
        document=as_toml(config),
    )


def kept_facts(path: Path) -> RunFacts:
    """Return the facts of a run in a file that `--results` has written."""
    kept = named_kept(path)
    command = repeating(kept.config)
    return RunFacts(path.stem, "kept", kept.summary, kept.config, command=command, document=as_toml(kept.config))


def named_kept(path: Path) -> KeptResult:
    """Return a kept result whose configuration names its run."""
    kept = read_kept(path)
    for key in ("data.source", "method.name", "method.edition"):
        table, name = key.split(".")
        if not isinstance(kept.config.get(table), dict) or not isinstance(kept.config[table].get(name), str):
            raise DamagedError(f"{path} is not a kept result: its config has no {key}")
    if not isinstance(kept.config.get("seed"), int):
        raise DamagedError(f"{path} is not a kept result: its config has no seed")
    return kept


# --- how to run it again ------------------------------------------------------------------------------------------


def repeating(config: Mapping[str, Any]) -> str:
    """Return the command that repeats a run: a preset with a few settings, or else the file with all of them."""
    if config["data"]["source"] == GIVEN:
        return 'fcil.run("run.toml", data=...)  # in Python, with the same data; the file is below'
    commands = [found for name in preset_names() if (found := _from_preset(name, config)) is not None]
    return min(commands, key=len, default="fcil run run.toml  # the file below")


def _from_preset(name: str, config: Mapping[str, Any]) -> str | None:
    """Return a command that begins with a preset, if few settings of a run differ from it."""
    document = read_document(name)
    if document["data"]["source"] != config["data"]["source"]:
        return None
    method, edition = config["method"]["name"], config["method"]["edition"]
    begin = [f"method.name={method}", f"method.edition={edition}", f"seed={config['seed']}"]
    try:
        base = dict(flat(parse_config(apply_settings(document, begin)).document()))
        differing = {
            key: value
            for key, value in flat(config)
            if base.get(key) != value
            and not key.startswith(("run.", "deployment.", "description"))
            and key != "data.path"
        }
        if len(differing) > MOST_SETTINGS or any(value is None for value in differing.values()):
            return None
        settings = [f"{key}={literal(value)}" for key, value in differing.items()]
        if differing_settings(parse_config(apply_settings(document, [*begin, *settings])).document(), config):
            return None
    except FcilError:  # settings of a version that is not this one
        return None
    place = config["data"].get("path")
    settings += [f"method.edition={edition}"] if edition != "fcil" else []
    settings += [f"data.path={place}"] if isinstance(place, str) else []
    words = ["fcil", "run", name, "--method", method, "--seed", str(config["seed"])]
    return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])
