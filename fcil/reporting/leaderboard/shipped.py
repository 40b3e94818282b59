"""The kept results that ship with fcil: one small file with the figures that the leaderboard needs.

`python -m benchmarks.reproduction` writes it from the folder `results` of the source.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from fcil.reporting.leaderboard.rank import LeaderboardRun

FILE = "results.json"
ROW = ("experiment", "label", "contends", "kin", "sends")  # fields that all runs of a row share
FIGURES = ("seed", "average", "seconds", "bytes_up", "bytes_down", "failures")


def shipped_runs() -> list[LeaderboardRun]:
    """Return the runs that ship with fcil, as they stand in the table."""
    return runs_of(importlib.resources.files(__package__).joinpath(FILE).read_bytes())


def runs_of(content: bytes) -> list[LeaderboardRun]:
    """Return the runs that `document` wrote."""
    return [
        LeaderboardRun(
            **{**row, "sends": tuple(row["sends"])},
            origin="kept",
            summary={name: run[name] for name in FIGURES},  # type: ignore[arg-type]  # written from whole summaries
            place=run["place"],
            machine=run["machine"],
        )
        for row in json.loads(content)
        for run in row.pop("runs")
    ]


def document(runs: Iterable[LeaderboardRun]) -> bytes:
    """Return the content of the file for some kept runs, one line for each row of an experiment."""
    rows = []
    for _, group in groupby(runs, key=lambda run: (run.experiment, run.label)):
        found = list(group)
        row = {name: getattr(found[0], name) for name in ROW}
        rows.append(json.dumps({**row, "runs": [_figures(run) for run in found]}, ensure_ascii=False))
    return ("[\n" + ",\n".join(rows) + "\n]\n").encode()


def _figures(run: LeaderboardRun) -> dict[str, Any]:
    return {name: run.summary[name] for name in FIGURES} | {"place": run.place, "machine": run.machine}  # type: ignore[literal-required]
