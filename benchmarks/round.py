"""A round of GLFC with 40 clients and 4 participants: how much of its time is not local training.

The run includes checkpoints and records, as for a user. It has 10 classes per task, 100 images per class, 16 x 16
pixels, width 16 and 5 local epochs, as in our reduced protocols; the published 20 epochs make the share smaller.
Rounds in which classes arrive also herd exemplars, perturb prototypes and rebuild images; they are reported separately.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.common import FitClock, median, patterns
from benchmarks.measure import Measurement
from fcil.experiment.config import parse_config
from fcil.experiment.run import Run

CONFIG: dict[str, Any] = {
    "scenario": {"tasks": 2, "rounds_per_task": 4, "initial_clients": 40, "joiners": 0, "participants": 4},
    "model": {"width": 16},
    "train": {"epochs": 5, "learning_rate": 0.1, "augment": {"crop_padding": 2, "flip": True}},
    "method": {"name": "glfc", "rebuild_evaluations": 100, "rebuild_restarts": 0, "perturb_steps": 20},
    "run": {"engine": "serial", "evaluate": "task"},
}


def measure() -> Iterator[Measurement]:
    """Yield the share of time outside local training, for rounds without and with an arrival."""
    torch.set_num_threads(1)
    source = patterns(20, 100, 16)
    rounds = []
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("fcil.experiment.run.load_source", lambda _: source),
        Run.start(parse_config(CONFIG), Path(folder) / "run") as run,
    ):
        training = FitClock(run.assembly.local.machine, time.perf_counter)
        began = time.perf_counter()
        for record in run.rounds():
            if not record.correct:  # rounds that were evaluated are left out
                rounds.append((bool(record.alarms), time.perf_counter() - began, training.seconds))
            began, training.seconds = time.perf_counter(), 0.0
    for alarm, name, bound in ((False, "round", 0.10), (True, "round.transition", None)):
        chosen = [(whole, fitted) for alarmed, whole, fitted in rounds if alarmed == alarm]
        share = median([(whole - fitted) / whole for whole, fitted in chosen])
        seconds = median([whole for whole, _ in chosen])
        inside = median([fitted for _, fitted in chosen])
        yield Measurement(name, seconds, inside, share, bound, "at most", "s", {"rounds": len(chosen)})
