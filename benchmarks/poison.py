"""Hostile clients: which aggregator holds under which attack, and what it costs without one.

    python -m benchmarks.poison [--experiment digits] [--seeds 2021 2022 2023 2024 2025] [--methods glfc mosaic]
        [--aggregators NAME ...] [--attacks NAME ...] [--results results/poison] [--table]

Ten sites with images of their own, two of them hostile: the digits in two tasks of four rounds with a small CNN, with
three of a task's five classes at each site or, as `digits-rare`, with one; or `cifar100-lite`. Every run is one line of
results/poison/EXPERIMENT.jsonl: {method, aggregator, attack, seed, machine, accuracy, backdoor, failures, excluded};
runs that are there are not repeated, so a stopped command goes on where it was. At the end it prints a JSON line per
method and aggregator and a table, and writes results/poison/README.md from all experiments: the mean accuracy after the
last task with its deviation over the seeds, and the share of test images that a backdoor turns, both in percent.
`silent` is the ceiling of an aggregator that leaves out hostile clients and nobody else. Settings of aggregators were
chosen on seed 2020, which no table shows.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.poison_page import cells, page, table, verdicts
from fcil.core.errors import ConfigError, FcilError
from fcil.core.files import append_durably, write_atomically
from fcil.experiment.checkpoint import machine_facts
from fcil.experiment.config import Config, load_config
from fcil.experiment.run import Run
from fcil.federation.aggregation import AGGREGATORS

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (2021, 2022, 2023, 2024, 2025)
METHODS = ("glfc", "mosaic")
HOSTILE = 2
COMMON = (
    "scenario.split=disjoint",
    "scenario.initial_clients=10",
    "scenario.joiners=0",
    "scenario.both_share=1.0",
    "scenario.participants=10",
    "run.engine=serial",
    "run.evaluate=task",
    "run.prototypes=0",
)
DIGITS = (
    *COMMON,
    "scenario.tasks=[5, 5]",
    "scenario.rounds_per_task=4",
    "scenario.memory=30",
    "model.name=cnn",
    "model.width=16",
    "method.glfc={rebuild_evaluations=40, rebuild_restarts=0, perturb_steps=5}",
)
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "digits": DIGITS,
    "digits-rare": (*DIGITS, "scenario.class_fraction=0.2"),  # a class of each five at a client: at two clients, or one
    "cifar100-lite": COMMON,
}
PRESETS = {"digits-rare": "digits"}  # of an experiment that is called otherwise
ATTACKS: dict[str, tuple[str, ...]] = {
    "none": (),
    "silent": ("attack.name=silent",),
    "sign-flip": ("attack.name=sign-flip",),
    "x10": ("attack.name=scale",),
    "x100": ("attack.name=scale", "attack.scale.factor=100.0"),
    "noise": ("attack.name=noise",),
    "label-flip": ("attack.name=label-flip",),
    "backdoor": ("attack.name=backdoor",),
    "false-counts": ("attack.name=false-counts",),
}


def settings(experiment: str, method: str, aggregator: str, attack: str, seed: int) -> list[str]:
    """Return the settings of one run; where an aggregator weighs by samples, it does."""
    chosen = [*EXPERIMENTS[experiment], f"method.name={method}", f"federation.aggregator={aggregator}", f"seed={seed}"]
    if "averaging" in AGGREGATORS[aggregator].build.reads:
        chosen.append("federation.averaging=samples")
    if ATTACKS[attack]:
        chosen += [*ATTACKS[attack], f"attack.clients={HOSTILE}"]
    return chosen


def measure(experiment: str, method: str, aggregator: str, attack: str, seed: int) -> dict[str, Any]:
    """Return the figures of one run; one that stops has no accuracy, and the reason why."""
    preset = PRESETS.get(experiment, experiment)
    config = load_config(preset, settings(experiment, method, aggregator, attack, seed))
    row: dict[str, Any] = {"method": method, "aggregator": aggregator, "attack": attack, "seed": seed}
    row["machine"] = machine(config)
    with tempfile.TemporaryDirectory() as folder, Run.start(config, Path(folder) / "run") as run:
        try:
            records = list(run.rounds())
        except FcilError as error:
            return {**row, "accuracy": None, "stopped": str(error)[:120]}
        summary = run.summary()
    excluded = sorted({entry["client"] for record in records for entry in record.excluded})
    failures = len(summary["failures"])
    figures = {"accuracy": summary["last"], "backdoor": summary.get("backdoor"), "failures": failures}
    return {**row, **figures, "excluded": excluded}


def machine(config: Config) -> str:
    """Return the processor and the torch that the last bits of a run depend on."""
    facts = machine_facts(config.run.threads, config.run.device)
    return f"{facts['processor']}, torch {facts['torch']}, threads: {facts['threads']}"


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a results file; a last line that a kill has cut is removed."""
    if not path.exists():
        return []
    whole, _, cut = path.read_bytes().rpartition(b"\n")
    if cut:
        os.truncate(path, len(whole) + bool(whole))
    return [json.loads(line) for line in whole.splitlines()]


def of_run(row: dict[str, Any]) -> tuple[str, str, str, int]:
    """Return the key of a run."""
    return row["method"], row["aggregator"], row["attack"], row["seed"]


def missing(asked: argparse.Namespace, known: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, str, int]]:
    """Yield the runs that are not there yet: one seed after the other, so that a table is soon whole."""
    there = {of_run(row) for row in known}
    for seed in asked.seeds:
        for aggregator in asked.aggregators:
            for method in asked.methods:
                for attack in asked.attacks:
                    if (method, aggregator, attack, seed) not in there:
                        yield method, aggregator, attack, seed


def asked_for(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poison")
    parser.add_argument("--experiment", choices=[*EXPERIMENTS], default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--aggregators", nargs="+", choices=[*AGGREGATORS], default=[*AGGREGATORS])
    parser.add_argument("--attacks", nargs="+", choices=[*ATTACKS], default=[*ATTACKS])
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "poison", metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="train nothing; print what is there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are missing, and print the cells; the exit code is 1 where a clean mean is missing."""
    asked = asked_for(arguments)
    path = asked.results / f"{asked.experiment}.jsonl"
    for method, aggregator, attack, seed in () if asked.table else missing(asked, read_runs(path)):
        row = measure(asked.experiment, method, aggregator, attack, seed)
        asked.results.mkdir(parents=True, exist_ok=True)
        append_durably(path, (json.dumps(row) + "\n").encode())
        print(json.dumps(row), flush=True)
    found = cells(read_runs(path), asked.seeds)
    lines = verdicts(found)
    for line in lines:
        print(json.dumps(line))
    print(table(found, ATTACKS))
    if asked.results.is_dir():
        write_atomically(asked.results / "README.md", kept_page(asked.results).encode())
    return 0 if lines else 1


def kept_page(results: Path) -> str:
    """Return the page of all kept runs with the reported seeds for which there is a clean mean to compare with."""
    kept = {
        experiment: cells(comparable(ordered(read_runs(results / f"{experiment}.jsonl"))), SEEDS)
        for experiment in EXPERIMENTS
    }
    return page({experiment: found for experiment, found in kept.items() if found}, ATTACKS)


def comparable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of seeds for which the method has a run with the mean and no attack."""
    clean = {(row["method"], row["seed"]) for row in rows if (row["aggregator"], row["attack"]) == ("mean", "none")}
    return [row for row in rows if (row["method"], row["seed"]) in clean]


def ordered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows by method and aggregator in the order of the registry, whatever order they were made in."""
    place = {name: number for number, name in enumerate(dict.fromkeys(("mean", *AGGREGATORS)))}
    return sorted(rows, key=lambda row: (row["method"], place.get(row["aggregator"], len(place)), row["seed"]))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from error
