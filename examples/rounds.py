"""A run round by round: look at each record as it comes, and stop when you like; the same command goes on.

python examples/rounds.py [DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fcil.experiment.checkpoint import has_checkpoint
from fcil.experiment.config import load_config
from fcil.experiment.run import Run

SETTINGS = [
    "method.name=icarl",
    "data.samples_per_class=40",
    "scenario.tasks=[2, 2]",
    "scenario.rounds_per_task=2",
    "scenario.initial_clients=4",
]


def main(folder: Path) -> None:
    """Train iCaRL on two tasks of the digits; every round is on the disk before it is printed."""
    begun = has_checkpoint(folder)
    with Run.resume(folder) if begun else Run.start(load_config("digits", SETTINGS), folder) as run:
        for record in run.rounds():
            print(
                f"round {record.round}: {record.classes} classes, {record.clients} clients, "
                f"{record.participants} train, alarms at {record.alarms}"
            )
        summary = run.finish()
    print(f"accuracy after each task: {summary['accuracy']}, forgetting {summary['forgetting']:.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/rounds"))
