"""Your own data set and your own network: a torch Dataset, an nn.Module, and a class that comes late to some clients.

python examples/own_data.py [DIRECTORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import Dataset

import fcil
from fcil.models import Blueprint

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
        "arrivals": [{"round": 6, "classes": [3], "clients": [0, 1]}],  # crosses come in round 6, to two clients
    },
    "model": {"name": "strokes", "width": 16},
    "train": {"epochs": 4, "batch_size": 16, "learning_rate": 0.1},
    "method": {"name": "dde"},
    "run": {"evaluate": "round"},
}


class Shapes(Dataset[tuple[Image.Image, int]]):
    """Drawn shapes at random places: any Dataset of (image, number of the class) will do."""

    classes = ("disc", "square", "ring", "cross")

    def __init__(self, each: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.items = [(self.shape(name, draw), label) for label, name in enumerate(self.classes) for _ in range(each)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        return self.items[place]

    @staticmethod
    def shape(name: str, draw: np.random.Generator) -> Image.Image:
        """Return a picture of a shape."""
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


class Strokes(nn.Module):
    """The strongest answer of each filter anywhere on the image: any module with a number of `features` will do."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.features = 2 * plan.width  # numbers per image; the head on top of them is fcil's
        shapes = [(plan.channels, plan.width, 1), (plan.width, self.features, 2), (self.features, self.features, 1)]
        self.layers = nn.Sequential(*(self.layer(*shape) for shape in shapes))

    @staticmethod
    def layer(inputs: int, outputs: int, stride: int) -> nn.Module:
        """Return a convolution with what follows it."""
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        """Return a row of features per image."""
        maps: Tensor = self.layers(images)
        return maps.amax((2, 3))


fcil.register_network(fcil.Network("strokes", "filters, each at its best", Strokes, reads=frozenset({"width"})))


def main(folder: Path) -> None:
    """Train on drawn shapes and recognise new ones; run it again after a stop, and it goes on where it was."""
    result = fcil.run(CONFIG, data=Shapes(each=32, seed=1), out=folder, resume=True, progress=True)
    print(f"accuracy after each task: {result.summary['accuracy']}, results in {result.folder}")
    new = Shapes(each=1, seed=2)
    for (_, label), prediction in zip(new, result.load_model().predict([image for image, _ in new]), strict=True):
        print(f"a {new.classes[label]}: {prediction.name} {prediction.probability:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/own-data"))
