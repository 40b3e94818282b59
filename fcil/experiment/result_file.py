"""A finished run in one small file: its settings, its figures and its machine, as `--results` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcil.core.errors import DamagedError
from fcil.core.files import read_json, write_json
from fcil.experiment.summary import Summary, as_summary


@dataclass(frozen=True)
class KeptResult:
    """A kept result: settings, figures and machine of a run."""

    config: dict[str, Any]
    summary: Summary
    machine: dict[str, str]


def write_kept(path: Path, config: Mapping[str, Any], summary: Summary, machine: Mapping[str, str]) -> None:
    """Write a run's file; where its data lay is not part of the result."""
    placeless = {**config, "data": {**config["data"], "path": None}}
    write_json(path, {"config": placeless, "summary": summary, "machine": dict(machine)})


def read_kept(path: Path) -> KeptResult:
    """Return a kept result after checking its digest."""
    document = read_json(path)
    if document.keys() != {"config", "summary", "machine"}:
        raise DamagedError(f"{path} is not a kept result: it should have config, summary and machine")
    config, machine = document["config"], document["machine"]
    if not isinstance(config, dict) or not isinstance(machine, dict):
        raise DamagedError(f"{path} is not a kept result: its config and its machine should be tables")
    return KeptResult(config, as_summary(document["summary"], path), machine)
