"""The kept results that ship with fcil: one small file with the figures that the leaderboard needs.

`python -m benchmarks.reproduction` writes it from the folder `results` of the source.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from fcil.reporting.leaderboard.rank import Entry

FILE = "results.json"
ROW = ("experiment", "label", "contends", "kin", "sends")  # fields of an entry that all runs of a row share
FIGURES = ("seed", "average", "seconds", "bytes_up", "bytes_down", "failures")


def shipped_entries() -> list[Entry]:
    """Return the runs that ship with fcil, as they stand in the table."""
    return entries_of(importlib.resources.files(__package__).joinpath(FILE).read_bytes())


def entries_of(content: bytes) -> list[Entry]:
    """Return the runs that `document` wrote."""
    return [
        Entry(
            **{**row, "sends": tuple(row["sends"])},
            origin="kept",
            summary={name: run[name] for name in FIGURES},  # type: ignore[arg-type]  # written from whole summaries
            place=run["place"],
            machine=run["machine"],
        )
        for row in json.loads(content)
        for run in row.pop("runs")
    ]


def document(entries: Iterable[Entry]) -> bytes:
    """Return the content of the file for some kept runs, one line for each row of an experiment."""
    rows = []
    for _, runs in groupby(entries, key=lambda entry: (entry.experiment, entry.label)):
        found = list(runs)
        row = {name: getattr(found[0], name) for name in ROW}
        rows.append(json.dumps({**row, "runs": [_run(entry) for entry in found]}, ensure_ascii=False))
    return ("[\n" + ",\n".join(rows) + "\n]\n").encode()


def _run(entry: Entry) -> dict[str, Any]:
    return {name: entry.summary[name] for name in FIGURES} | {"place": entry.place, "machine": entry.machine}  # type: ignore[literal-required]
