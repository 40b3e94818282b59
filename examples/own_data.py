"""Your own data from Python: pairs of image and label, a class that comes late to some clients, the trained model.

python examples/own_data.py [DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import fcil

NAMES = ("disc", "square", "cross", "ring")
CONFIG = {
    "seed": 7,
    "data": {"image_size": 12, "test_fraction": 0.25},
    "scenario": {
        "tasks": [2, 1],
        "rounds_per_task": [3, 7],
        "class_fraction": 1.0,
        "initial_clients": 3,
        "joiners": 0,
        "participants": 3,
        "memory": 12,
        # the names in their order are cross, disc, ring, square: number 3 comes in round 5, to clients 0 and 1
        "arrivals": [{"round": 5, "classes": [3], "clients": [0, 1]}],
    },
    "model": {"width": 4},
    "train": {"epochs": 3, "batch_size": 16, "learning_rate": 0.1},
    "method": {"name": "icarl"},
    "run": {"evaluate": "round", "engine": "serial"},
}


def shape(name: str, draw: np.random.Generator) -> Image.Image:
    """Return a picture of a shape at a random place."""
    image = Image.new("RGB", (24, 24), tuple(draw.integers(0, 60, 3).tolist()))
    pen = ImageDraw.Draw(image)
    left, top = draw.integers(2, 8, 2).tolist()
    box = (left, top, left + 13, top + 13)
    if name == "disc":
        pen.ellipse(box, fill="white")
    elif name == "ring":
        pen.ellipse(box, outline="white", width=3)
    elif name == "square":
        pen.rectangle(box, fill="white")
    else:
        pen.line(box, fill="white", width=3)
        pen.line((left, top + 13, left + 13, top), fill="white", width=3)
    return image


def main(folder: Path) -> None:
    """Train on drawn shapes and recognise new ones; run it again after a stop, and it goes on where it was."""
    draw = np.random.default_rng(1)
    samples = [(shape(name, draw), name) for name in NAMES for _ in range(32)]
    result = fcil.run(CONFIG, data=samples, out=folder, resume=True, progress=True)
    print(f"accuracy after each task: {result.summary['accuracy']}, results in {result.folder}")
    predictor = result.load_model()
    for name in NAMES:
        (prediction,) = predictor.predict(shape(name, draw))
        print(f"a {name}: {prediction.name} {prediction.probability:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/own-data"))
