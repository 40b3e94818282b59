"""The final model as one file that names its classes, and the way back to a network that predicts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fcil.data.source import Source
from fcil.errors import DataError
from fcil.models import Classifier, ModelConfig, load_classifier
from fcil.wire import ModelState

FILE = "model.safetensors"
KEY = "fcil"  # one metadata entry, so that equal models are equal files


def model_bytes(model: ModelState, catalogue: tuple[int, ...], source: Source, config: ModelConfig) -> bytes:
    """Return the model with all it takes to use it: class names by output, architecture and normalisation."""
    facts = {
        "class_names": [source.class_names[label] for label in catalogue],
        "model": config.model_dump(mode="json"),
        "mean": list(source.mean),
        "deviation": list(source.deviation),
    }
    tensors = {name: tensor.contiguous() for name, tensor in model.items()}
    return save(tensors, metadata={KEY: json.dumps(facts)})


@dataclass(frozen=True)
class Predictor:
    """A trained classifier and the names of its classes."""

    net: Classifier
    class_names: tuple[str, ...]

    def predict(self, images: Tensor) -> list[str]:
        """Return the class name of each image: floats in [0, 1] of shape (images, channels, height, width)."""
        with torch.inference_mode():
            outputs = self.net(images).argmax(1).tolist()
        return [self.class_names[output] for output in outputs]


def load_model(path: str | Path, device: str = "cpu") -> Predictor:
    """Return the model in a `model.safetensors` that a run has written."""
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads((file.metadata() or {})[KEY])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        config = ModelConfig(**facts["model"])
        net = load_classifier(config, facts["mean"], facts["deviation"], state, torch.device(device)).eval()
        return Predictor(net, tuple(facts["class_names"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{path} is not a model written by fcil: {error}") from error
