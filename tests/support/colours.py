"""A model made by hand: it names an image after its strongest colour, so that what it says can be foretold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fcil.core.messages import ModelState
from fcil.experiment.model_file import Calibration, named_model
from fcil.models import ModelConfig, grow, initial_state

COLOURS = ("red", "green", "blue")
CONFIG = ModelConfig(width=3, mean=(0.0, 0.0, 0.0), deviation=(1.0, 1.0, 1.0))
SHARPNESS = 4.0  # the head's weight: a channel of 1 is an output of 4


def colour_state() -> ModelState:
    """Return weights that pass the three channels through to the features, and from there to an output each."""
    state = grow(initial_state(CONFIG, 3, 0), 3, 0)
    made = {name: torch.zeros_like(tensor) if name.endswith("weight") else tensor for name, tensor in state.items()}
    made["backbone.stem.0.weight"][range(3), range(3), 1, 1] = 1
    made["backbone.stem.1.weight"] += 1
    for stage in (1, 2, 3):  # in all blocks the branch gives nothing, and the shortcut all that there is
        made[f"backbone.stages.{stage}.0.shortcut.0.weight"][range(3), range(3)] = 1
        made[f"backbone.stages.{stage}.0.shortcut.1.weight"] += 1
    made["head.weight"][range(3), range(3)] = SHARPNESS
    made["head.bias"] = torch.zeros(3)
    return made


def write_colour_model(path: Path, names: tuple[str, ...] = COLOURS, calibration: Calibration | None = None) -> Path:
    """Write the model as a run would, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(named_model(colour_state(), names, CONFIG, (3, 8, 8), calibration=calibration))
    return path


def paint_plain(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> Path:
    """Write a picture of one colour, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), colour, dtype=np.uint8)).save(path)
    return path
