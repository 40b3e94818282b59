"""A tiny experiment from Python: four shades of grey with the names of beasts, and two tasks of one round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil.data.datasets.in_memory import given_source
from fcil.experiment.config import parse_config
from fcil.experiment.run import Run

BEASTS = ("ant", "bee", "cow", "dog")
CONFIG: dict[str, Any] = {
    "seed": 3,
    "data": {"test_fraction": 0.25},
    "scenario": {"tasks": 2, "rounds_per_task": 1, "initial_clients": 2, "joiners": 0, "participants": 2, "memory": 4},
    "model": {"width": 1},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
    "run": {"engine": "serial"},
    "method": {"name": "icarl"},
}


def samples(shade: int = 0) -> list[tuple[NDArray[np.uint8], str]]:
    """Return eight images of each beast."""
    draw = np.random.default_rng(1)
    return [
        (draw.integers(0, 60, (8, 8), dtype=np.uint8) + np.uint8(40 * place + shade), name)
        for place, name in enumerate(BEASTS)
        for _ in range(8)
    ]


def begin(folder: Path, **changed: Any) -> None:
    """Play the first of two rounds and stop."""
    config = parse_config({**CONFIG, "data": {**CONFIG["data"], "source": "python"}, **changed})
    with Run.start(config, folder, lambda data: given_source(samples(), data)) as run:
        next(run.rounds())
