"""Alarms compared with the ground truth for every detector, on the digits and on a reduced CIFAR-100.

    python benchmarks/detectors.py [digits | benchmarks/detectors-cifar100.toml] [--seed 2021]

Prints one JSON line per detector: {name, config, seed, hits, misses, false_alarms, mean_delay, average}. Each line is a
separate run, so the effect of an alarm on memory and teacher is part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from fcil.experiment.config import load_config
from fcil.experiment.run import Run

DETECTORS = {
    "labels": ["detector=labels"],
    "oracle": ["detector=oracle"],
    "entropy absolute, all outputs": ["detector=entropy"],
    "entropy absolute, old outputs": ["detector=entropy", "entropy_outputs=old"],
    "entropy relative, all outputs": ["detector=entropy", "entropy_threshold=relative"],
    "entropy relative, old outputs": ["detector=entropy", "entropy_threshold=relative", "entropy_outputs=old"],
    "entropy as released": ["detector=entropy", "entropy_rule=code"],
}


def measure(config: str, seed: int, name: str, fields: list[str]) -> dict[str, object]:
    """Return how a detector's alarms match the arrivals of new classes in one run of GLFC."""
    settings = [f"seed={seed}", "method.name=glfc", *(f"method.{field}" for field in fields)]
    with tempfile.TemporaryDirectory() as folder, Run.start(load_config(config, settings), Path(folder) / "run") as run:
        for _ in run.rounds():
            pass
        summary = run.summary()
    facts = {"name": name, "config": Path(config).stem, "seed": seed}
    return {**facts, **summary["detection"], "average": summary["average"]}


def main() -> None:
    """Measure every detector and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="digits", help="a preset or a TOML file")
    parser.add_argument("--seed", type=int, default=2021)
    arguments = parser.parse_args()
    for name, fields in DETECTORS.items():
        print(json.dumps(measure(arguments.config, arguments.seed, name, fields)), flush=True)


if __name__ == "__main__":
    main()
