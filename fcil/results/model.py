"""The final model as one file that names its classes and carries a digest, and the way back to a predictor."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from fcil.data.source import Source
from fcil.errors import ConfigError, DataError, reason
from fcil.models import ModelConfig, head_width, load_classifier
from fcil.results.predictor import Prediction, Predictor
from fcil.section import Section, explain
from fcil.wire import ModelState

__all__ = ["FILE", "Prediction", "Predictor", "load_model", "model_bytes"]

FILE = "model.safetensors"
KEY = "fcil"  # one metadata entry, so that equal models are equal files
DEVICES = ("cpu", "cuda", "mps")
UNSEALED = "0" * 64  # the digest's place while the digest is taken


Side = Annotated[int, Field(ge=1, le=1 << 14)]  # pixels


class Facts(Section):
    """All that it takes to use a model, besides its weights."""

    sha256: str  # of the file with UNSEALED in this place; first, so that nothing before it looks like it
    class_names: tuple[str, ...] = Field(min_length=1)  # by output
    model: ModelConfig
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(gt=0)], ...]
    image_shape: tuple[Side, Side, Side]


def model_bytes(model: ModelState, catalogue: tuple[int, ...], source: Source, config: ModelConfig) -> bytes:
    """Return the model with all it takes to use it, under a digest of every byte of it."""
    facts = Facts(
        sha256=UNSEALED,
        class_names=tuple(source.class_names[label] for label in catalogue),
        model=config,
        mean=source.mean,
        deviation=source.deviation,
        image_shape=source.image_shape,
    )
    tensors = {name: tensor.contiguous() for name, tensor in model.items()}
    data: bytes = save(tensors, metadata={KEY: json.dumps(facts.model_dump(mode="json"))})
    return data.replace(UNSEALED.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def load_model(path: str | Path, device: str = "cpu") -> Predictor:
    """Return the model in a `model.safetensors` that a run has written; a file with one wrong bit is refused."""
    place = _device(device)
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path} cannot be read as a model: {reason(error)}") from error
    try:
        written = _facts_of(data)
        digest = written["sha256"].encode()
        intact = hashlib.sha256(data.replace(digest, UNSEALED.encode(), 1)).hexdigest().encode() == digest
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a model written by fcil, or it is damaged") from error
    if not intact:
        raise DataError(
            f"{path} is damaged: its digest is not the one that it names; `fcil resume` on its run writes it again"
        )
    try:
        facts, state = Facts(**written), load(data)
        channels = {facts.image_shape[0], len(facts.mean), len(facts.deviation)}
        if len(facts.class_names) != head_width(state) or channels not in ({1}, {3}):
            raise ValueError("its weights do not fit its facts")
        net = load_classifier(facts.model, facts.mean, facts.deviation, state, place).eval()
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        why = "; ".join(explain(error, Facts, "")) if isinstance(error, ValidationError) else reason(error)
        raise DataError(f"{path} is not a model that this version of fcil can use: {why}") from error
    return Predictor(net, facts.class_names, facts.image_shape)


def _facts_of(data: bytes) -> Any:
    """Return the facts in the header of a safetensors file, none of which is to be believed yet."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        if device.type not in DEVICES:
            raise ValueError("networks do not run on it")
        torch.empty(0, device=device)  # fails unless it is there
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        usable = [kind for kind in DEVICES if kind == "cpu" or getattr(torch, kind).is_available()]
        raise ConfigError(f"device: {name} is not available on this machine; use {' or '.join(usable)}") from error
    return device
