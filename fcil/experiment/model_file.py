"""The final model as one file that names its classes and carries a digest, and the way back to a predictor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from fcil.core.errors import ConfigError, DataError, reason
from fcil.core.messages import ModelState
from fcil.core.settings_table import SettingsTable, explain
from fcil.data.datasets.dataset import Source
from fcil.experiment.predictor import Prediction, Predictor
from fcil.models.classifier import Classifier, head_width, load_classifier
from fcil.models.config import ModelConfig

__all__ = [
    "FILE",
    "Prediction",
    "Predictor",
    "load_model",
    "model_bytes",
    "model_file",
    "named_model",
    "noted",
    "renamed",
]

FILE = "model.safetensors"
KEY = "fcil"  # one metadata entry, so that equal models are equal files
DEVICES = ("cpu", "cuda", "mps")
UNSEALED = "0" * 64  # the digest's place while the digest is taken


Side = Annotated[int, Field(ge=1, le=1 << 14)]  # pixels


class Facts(SettingsTable):
    """All that it takes to use a model, besides its weights."""

    sha256: str  # of the file with UNSEALED in this place; first, so that nothing before it looks like it
    class_names: tuple[str, ...] = Field(min_length=1)  # by output
    model: ModelConfig
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(gt=0)], ...]
    image_shape: tuple[Side, Side, Side]


def model_bytes(model: ModelState, catalogue: tuple[int, ...], source: Source, config: ModelConfig) -> bytes:
    """Return the final model of a run on a data set."""
    names = tuple(source.class_names[label] for label in catalogue)
    measured = {"mean": source.mean, "deviation": source.deviation}
    normalised = config.model_copy(update={key: getattr(config, key) or found for key, found in measured.items()})
    return named_model(model, names, normalised, source.image_shape)


def named_model(
    model: ModelState,
    names: tuple[str, ...],
    config: ModelConfig,
    image_shape: tuple[int, int, int],
    notes: Mapping[str, str] | None = None,
) -> bytes:
    """Return the model with all it takes to use it, under a digest of every byte of it.

    Notes are further entries of the file's metadata, for other programs.
    """
    assert config.mean is not None
    assert config.deviation is not None
    facts = Facts(
        sha256=UNSEALED,
        class_names=names,
        model=config.bare(),
        mean=config.mean,
        deviation=config.deviation,
        image_shape=image_shape,
    )
    tensors = {name: tensor.contiguous() for name, tensor in model.items()}
    data: bytes = save(tensors, metadata={KEY: json.dumps(facts.model_dump(mode="json"))})
    data = _with_notes(data, notes) if notes else data
    return data.replace(UNSEALED.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _with_notes(data: bytes, notes: Mapping[str, str]) -> bytes:
    """Return a safetensors file with further metadata after its own, in an order that `save` would not keep."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] |= notes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + data[end:]


def model_file(place: Path) -> Path:
    """Return the model's file, given itself or the folder in which a run or a site has written it."""
    if not place.is_dir():
        return place
    if not (place / FILE).is_file():
        from fcil.experiment.checkpoint import has_checkpoint, resuming  # noqa: PLC0415 (it imports the federation)

        if has_checkpoint(place):
            raise DataError(f"{place} holds no {FILE}: its run is not finished; continue it with `{resuming(place)}`")
        raise DataError(
            f"{place} holds no {FILE}, which a run writes when it is finished; "
            "name the directory of a finished run, a site's state folder or a model file"
        )
    return place / FILE


def load_model(path: str | Path, device: str = "cpu") -> Predictor:
    """Return the model that a run has written, given its file or the run's directory, ready to predict.

    A file with one wrong bit is refused. A network of another package has to be registered before.
    """
    place = _device(device)
    facts, net, _ = _opened(model_file(Path(path)), place)
    return Predictor(net, facts.class_names, facts.image_shape)


def renamed(path: str | Path, rename: Callable[[str], str]) -> bytes:
    """Return the model in a file with other names for its classes."""
    facts, _, state = _opened(path, torch.device("cpu"))
    config = facts.model.model_copy(update={"mean": facts.mean, "deviation": facts.deviation})
    return named_model(state, tuple(map(rename, facts.class_names)), config, facts.image_shape)


def noted(path: str | Path, notes: Mapping[str, str]) -> bytes:
    """Return the model in a file with notes for other programs."""
    facts, _, state = _opened(path, torch.device("cpu"))
    config = facts.model.model_copy(update={"mean": facts.mean, "deviation": facts.deviation})
    return named_model(state, facts.class_names, config, facts.image_shape, notes)


def _opened(path: str | Path, place: torch.device) -> tuple[Facts, Classifier, ModelState]:
    """Return what a file holds, once every bit of it is found to be as it was written."""
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
    return facts, net, state


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
