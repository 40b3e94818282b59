"""What an epsilon costs a method that trains: the digits at three sites, with noise in every step.

    python -m benchmarks.epsilon [head] [network] [--seeds 3] [--epsilons 2 8 32]

`head` trains the head on the features of an EfficientNet with ImageNet weights (extra `pretrained`), `network` all of a
ResNet-18 with group norm from random weights, in batches of all images of a site; both with mosaic and without
exemplars. Prints one JSON line per run, {trained, epsilon, seed, average, last, spent}, then one per epsilon with the
means over the seeds; an epsilon of null is a run without noise.
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

SEED = 2021
EPSILONS = (2.0, 8.0, 32.0)
SETTINGS = (
    "method.name=mosaic",
    "scenario.initial_clients=3",
    "scenario.participants=3",
    "scenario.joiners=0",
    "scenario.both_share=1.0",
    "scenario.class_fraction=1.0",
    "scenario.split=disjoint",
    "scenario.memory=0",
    "run.engine=serial",
    "run.evaluate=task",
)
TRAINED = {
    "head": ("model.name=efficientnet-lite0", "model.width=64", "model.weights=imagenet", "model.freeze=true"),
    "network": ("model.norm=group",),
}


def measure(trained: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Return the accuracy of one run, and the epsilon that it has spent."""
    private = [] if epsilon is None else [f"privacy.epsilon={epsilon}"]
    batches = ["train.batch_size=512"] if epsilon is not None and trained == "network" else []
    settings = [*SETTINGS, *TRAINED[trained], *batches, *private, f"seed={seed}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Run.start(load_config("digits", settings), Path(folder) / "run") as run,
    ):
        spent = [record.privacy["epsilon"] for record in run.rounds() if record.privacy]
        summary = run.summary()
    figures = {"average": summary["average"], "last": summary["last"], "spent": max(spent, default=None)}
    return {"trained": trained, "epsilon": epsilon, "seed": seed, **figures}


def main() -> None:
    """Print every run, then the means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epsilon")
    parser.add_argument("trained", nargs="*", default=[*TRAINED])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    given, means = parser.parse_args(), []
    for trained in given.trained:
        for epsilon in (None, *given.epsilons):
            rows = [measure(trained, epsilon, SEED + number) for number in range(given.seeds)]
            print(*map(json.dumps, rows), sep="\n", flush=True)
            figures = {key: round(statistics.mean(row[key] for row in rows), 1) for key in ("average", "last")}
            means.append({"trained": trained, "epsilon": epsilon, "seeds": len(rows), **figures})
    print(*map(json.dumps, means), sep="\n")


if __name__ == "__main__":
    main()
