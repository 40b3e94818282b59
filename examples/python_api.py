"""A run from Python: configure, play round by round, look at the figures, use the model.

python examples/python_api.py [DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fcil.config import load_config
from fcil.experiment import Run
from fcil.results.model import load_model


def main(folder: Path) -> None:
    """Train iCaRL on two tasks of the digits, then classify a few test images with the model file."""
    settings = [
        "method.name=icarl",
        "data.samples_per_class=40",
        "scenario.tasks=[2, 2]",
        "scenario.rounds_per_task=2",
        "scenario.initial_clients=4",
    ]
    with Run.start(load_config("digits", settings), folder) as run:
        for record in run.rounds():
            print(
                f"round {record.round}: {record.classes} classes, {record.clients} clients, alarms at {record.alarms}"
            )
        summary = run.finish()
        some = run.source.test.select(run.source.test.labels.lt(4).nonzero().squeeze(1)[:8])
    print(f"accuracy after each task: {summary['accuracy']}, forgetting {summary['forgetting']:.1f}")
    predictor = load_model(folder / "model.safetensors")
    predicted = [prediction.name for prediction in predictor.predict(some.images)]
    print("predicted", predicted, "true", some.labels.tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/python-api"))
