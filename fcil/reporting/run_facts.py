"""The facts of one run, from a run directory or a kept result, for reports and `fcil show --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fcil.experiment import journal
from fcil.experiment.party_status import Status
from fcil.experiment.summary import Summary
from fcil.federation.diagnostics import Confusion, PrototypeComparisons
from fcil.federation.round_record import RoundRecord


@dataclass(frozen=True)
class RunFacts:
    """A run under way or finished; of a kept result nothing but summary and configuration is known."""

    name: str  # of its directory or file
    kind: Literal["simulation", "server", "kept"]
    summary: Summary
    config: Mapping[str, Any]
    records: tuple[RoundRecord, ...] = ()
    confusions: Mapping[int, Confusion] = field(default_factory=dict)  # by round
    prototypes: Mapping[int, PrototypeComparisons] = field(default_factory=dict)  # by round
    timings: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # by round and phase
    lost: tuple[str, ...] = ()  # a sentence per side file that cannot be read
    status: Status = field(default_factory=Status)  # of a server, as it last wrote it down
    command: str = ""  # repeats the run
    document: str = ""  # its configuration as TOML

    @property
    def label(self) -> str:
        """Return the name of the run next to others."""
        edition = "" if self.summary["edition"] == "fcil" else f" ({self.summary['edition']})"
        return f"{self.summary['method']}{edition}, seed {self.summary['seed']}"

    @property
    def method(self) -> str:
        """Return the row of a comparison that the run belongs to."""
        return self.label.partition(", seed")[0]

    @property
    def source(self) -> str:
        """Return the name of its data set."""
        return str(self.config["data"]["source"])

    @property
    def planned_tasks(self) -> int | None:
        """Return the number of tasks of its scenario; a server has none."""
        tasks = self.table("scenario").get("tasks")
        known = len(tasks) if isinstance(tasks, list) else tasks
        return known if isinstance(known, int) and self.kind != "server" else None

    @property
    def planned_rounds(self) -> int | None:
        """Return how many rounds it is to have, where its configuration says so."""
        if self.kind == "server":
            served = self.table("deployment").get("rounds")
            return served if isinstance(served, int) else None
        tasks, rounds = self.planned_tasks, self.table("scenario").get("rounds_per_task")
        if isinstance(rounds, int):
            return None if tasks is None else tasks * rounds
        return sum(rounds) if isinstance(rounds, list) and all(isinstance(one, int) for one in rounds) else None

    @property
    def is_under_way(self) -> bool:
        """Return whether rounds are left, now or after a resume."""
        planned = self.planned_rounds
        return self.kind != "kept" and planned is not None and len(self.records) < planned

    @property
    def data(self) -> str:
        """Return the name of its images; a server does not know the names of its sites' images."""
        return "the sites' own" if self.kind == "server" else self.source

    def table(self, key: str) -> Mapping[str, Any]:
        """Return a table of its configuration; a value that is no table counts as none."""
        found = self.config.get(key)
        return found if isinstance(found, Mapping) else {}

    @property
    def class_names(self) -> dict[str, str]:
        """Return the names of classes, by id, as far as they are known."""
        known = [confusion for _, confusion in sorted(self.confusions.items())]
        return dict(zip(known[-1].classes, known[-1].names, strict=True)) if known else {}

    @property
    def final_classes(self) -> dict[str, tuple[int, int]]:
        """Return right and all test images of each class in the last evaluation that counts them by class."""
        return next((record.per_class for record in reversed(self.records) if record.per_class), {})


def as_document(run: RunFacts) -> dict[str, Any]:
    """Return the facts as plain JSON values, for scripts: rounds from 1, prototypes without their pixels."""
    return {
        "name": run.name,
        "kind": run.kind,
        "summary": run.summary,
        "config": dict(run.config),
        "command": run.command,
        "records": [journal.as_document(record) for record in run.records],
        "timings": [{"round": number, **seconds} for number, seconds in sorted(run.timings.items())],
        "confusions": [
            {
                "round": number,
                "classes": list(found.classes),
                "names": list(found.names),
                "counts": found.counts.tolist(),
            }
            for number, found in sorted(run.confusions.items())
        ],
        "prototypes": [
            {"round": number, "class": one.label, "to_perturbed": one.to_perturbed, "to_original": one.to_original}
            for number, found in sorted(run.prototypes.items())
            for one in found.items
        ],
        "lost": list(run.lost),
    }


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a document with their values.

    >>> list(flat({"a": {"b": {"c": [1]}, "d": None}}))
    [('a.b.c', [1]), ('a.d', None)]
    """
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
