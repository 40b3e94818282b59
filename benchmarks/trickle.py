"""Classes that trickle in: what `federation.merge_rounds` does to the blocks and to the accuracy.

    python -m benchmarks.trickle [METHOD ...] [--seeds 3] [--windows 0 1 2 3 5]

The digits in two tasks of five classes and six rounds. Clients hold two of a task's classes each, the server learns of
a class only from the reply of a client that trains, and two of eight clients train per round, so that a task's classes
arrive over several rounds. Prints one JSON line per run: {method, merge_rounds, seed, growths, blocks, average, last},
where `growths` counts the rounds in which the head grew; then one per method and window, with means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from fcil.experiment.config import load_config
from fcil.experiment.run import Run

METHODS = ("glfc", "icarl", "dde")
WINDOWS = (0, 1, 2, 3, 5)
SEED = 2021
SETTINGS = (
    "data.samples_per_class=24",
    "scenario.tasks=[5, 5]",
    "scenario.rounds_per_task=6",
    "scenario.class_fraction=0.4",
    "scenario.initial_clients=8",
    "scenario.joiners=0",
    "scenario.both_share=1.0",
    "scenario.participants=2",
    "scenario.memory=30",
    "federation.announce=reply",
    "federation.monitor=participants",
    "train.epochs=4",
    "train.block_epochs=24",
    "train.milestones=[{epoch=12, divisor=5}, {epoch=18, divisor=25}, {epoch=21, divisor=125}]",
    "method.glfc={rebuild_evaluations=40, rebuild_restarts=0, perturb_steps=5}",
    "run.engine=serial",
    "run.evaluate=task",
)
MEANS = ("growths", "blocks", "average", "last")


def measure(method: str, window: int, seed: int) -> dict[str, Any]:
    """Return how often the head grew in one run, how many blocks that made, and what was learned."""
    settings = [*SETTINGS, f"method.name={method}", f"federation.merge_rounds={window}", f"seed={seed}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Run.start(load_config("digits", settings), Path(folder) / "run") as run,
    ):
        widths = {record.classes for record in run.rounds()} - {0}
        summary, blocks = run.summary(), run.state.server.catalogue.blocks
    figures = {"growths": len(widths), "blocks": len(blocks), "average": summary["average"], "last": summary["last"]}
    return {"method": method, "merge_rounds": window, "seed": seed, **figures}


def mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of one method and window over its seeds."""
    figures = {key: round(statistics.mean(row[key] for row in rows), 1) for key in MEANS}
    return {"method": rows[0]["method"], "merge_rounds": rows[0]["merge_rounds"], "seeds": len(rows), **figures}


def main() -> None:
    """Print every run, then the means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trickle")
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    asked = parser.parse_args()
    cases = [(method, window) for method in asked.methods for window in asked.windows]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {case: [] for case in cases}
    for seed in range(SEED, SEED + asked.seeds):
        for case in cases:
            found[case].append(measure(*case, seed))
            print(json.dumps(found[case][-1]), flush=True)
    for rows in found.values():
        print(json.dumps(mean(rows)))


if __name__ == "__main__":
    main()
