"""The final model as one file that names its classes and carries a digest, and the way back to a predictor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from fcil.core.errors import ConfigError, DataError, reason
from fcil.core.messages import ModelState
from fcil.core.settings_table import SettingsTable, explain
from fcil.data.columns import Columns
from fcil.data.datasets.dataset import Source
from fcil.experiment.predictor import Prediction, Predictor
from fcil.models.classifier import Classifier, head_width, load_classifier
from fcil.models.config import ModelConfig

if TYPE_CHECKING:
    from fcil.federation.round_record import CalibrationRecord

__all__ = [
    "FILE",
    "Prediction",
    "Predictor",
    "load_model",
    "model_bytes",
    "model_content",
    "model_file",
    "named_model",
    "noted",
    "renamed",
    "stored_model",
]

FILE = "model.safetensors"
RELEASES, CURRENT = "releases", "current"  # folder of a server's or a site's releases, and the link in it
KEY = "fcil"  # one metadata entry, so that equal models are equal files
DEVICES = ("cpu", "cuda", "mps")
UNSEALED = "0" * 64  # the digest's place while the digest is taken


Side = Annotated[int, Field(ge=1, le=1 << 20)]  # pixels, channels or places in time


class Calibration(SettingsTable):
    """How a model's outputs become probabilities, and how likely a class has to be."""

    temperature: float = Field(gt=0, le=1e6)
    threshold: float = Field(ge=0, le=1)


class Facts(SettingsTable):
    """All that it takes to use a model, besides its weights."""

    sha256: str  # of the file with UNSEALED in this place; first, so that nothing before it looks like it
    class_names: tuple[str, ...] = Field(min_length=1)  # by output
    model: ModelConfig
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(gt=0)], ...]
    image_shape: tuple[Side, Side, Side]
    columns: Columns | None = None  # of samples that are no images
    calibration: Calibration | None = None


OPTIONAL = ("columns", "calibration")  # facts that are not written where there are none


def model_bytes(
    model: ModelState,
    catalogue: tuple[int, ...],
    source: Source,
    config: ModelConfig,
    calibration: CalibrationRecord | None = None,
) -> bytes:
    """Return the final model of a run on a data set."""
    names = tuple(source.class_names[label] for label in catalogue)
    agreed = config.agreed(source.image_shape, source.mean, source.deviation)
    return named_model(model, names, agreed, source.image_shape, columns=source.columns, calibration=calibration)


def named_model(
    model: ModelState,
    names: tuple[str, ...],
    config: ModelConfig,
    image_shape: tuple[int, int, int],
    notes: Mapping[str, str] | None = None,
    columns: Columns | None = None,
    calibration: CalibrationRecord | Calibration | None = None,
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
        columns=columns,
        calibration=_calibration(calibration),
    )
    tensors = {name: tensor.contiguous() for name, tensor in model.items()}
    written = facts.model_dump(mode="json", exclude={key for key in OPTIONAL if getattr(facts, key) is None})
    data: bytes = save(tensors, metadata={KEY: json.dumps(written)})
    data = _with_notes(data, notes) if notes else data
    return data.replace(UNSEALED.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _calibration(record: CalibrationRecord | Calibration | None) -> Calibration | None:
    if record is None or isinstance(record, Calibration):
        return record
    return Calibration(temperature=record["temperature"], threshold=record["threshold"])


def _with_notes(data: bytes, notes: Mapping[str, str]) -> bytes:
    """Return a safetensors file with further metadata after its own, in an order that `save` would not keep."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] |= notes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + data[end:]


def model_file(place: Path) -> Path:
    """Return the model's file, given itself or a folder: of a release, a finished run, or a site or server with either.

    The current release goes before the final model. The path names the release itself, which stays as it is when the
    next one becomes the current one.
    """
    if not place.is_dir():
        return place
    current = place / RELEASES / CURRENT / FILE
    return current.resolve() if current.is_file() else place / FILE


def model_content(place: Path) -> bytes:
    """Return the model in a file or folder; of a run that is not finished, the model of its newest checkpoint."""
    file = model_file(place)
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        missing: Exception = error
    except (OSError, ValueError, MemoryError) as error:
        raise DataError(f"{file} cannot be read as a model: {reason(error)}") from error
    if not place.is_dir():
        raise DataError(f"{file} cannot be read as a model: {reason(missing)}") from missing
    from fcil.experiment.checkpoint import has_checkpoint  # noqa: PLC0415 (it imports the federation)

    if not has_checkpoint(place):
        raise DataError(
            f"{place} holds no {FILE}; name the directory of a run or a release, a site's state folder that has had a "
            "release, or a model file"
        )
    from fcil.experiment.restore import newest_checkpoint  # noqa: PLC0415 (it imports the federation)

    found = newest_checkpoint(place).model()
    if found is None:
        raise DataError(f"{place} holds a run that knows no class yet; wait for its first rounds")
    return found


def stored_model(path: Path) -> ModelState:
    """Return the weights in a model file after checking its digest."""
    return _opened(path, torch.device("cpu"))[2]


def load_model(path: str | Path, device: str = "cpu", content: bytes | None = None) -> Predictor:
    """Return the model of a run, a release or a site, given its folder or its file, ready to predict.

    Of a run under way it is that of the newest checkpoint. A file with one wrong bit is refused. A network of another
    package has to be registered before. `content` is that of the path where it was read already.
    """
    place = _device(device)
    facts, net, _ = _opened(path, place, content)
    predictor = Predictor(net, facts.class_names, facts.image_shape, facts.columns)
    if (found := facts.calibration) is not None:
        predictor = replace(predictor, temperature=found.temperature, threshold=found.threshold)
    return predictor


def renamed(path: str | Path, rename: Callable[[str], str]) -> bytes:
    """Return the model in a file with other names for its classes."""
    return _changed(path, rename)


def noted(content: bytes, notes: Mapping[str, str]) -> bytes:
    """Return a model's file with notes for other programs."""
    return _changed("the model", notes=notes, content=content)


def _changed(
    path: str | Path,
    rename: Callable[[str], str] = str,
    notes: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> bytes:
    facts, _, state = _opened(path, torch.device("cpu"), content)
    config = facts.model.model_copy(update={"mean": facts.mean, "deviation": facts.deviation})
    names = tuple(map(rename, facts.class_names))
    return named_model(state, names, config, facts.image_shape, notes, facts.columns, facts.calibration)


def _opened(
    path: str | Path, place: torch.device, content: bytes | None = None
) -> tuple[Facts, Classifier, ModelState]:
    """Return the content of a file or folder after checking its digest."""
    data = model_content(Path(path)) if content is None else content
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
        channels, shape = {facts.image_shape[0], len(facts.mean), len(facts.deviation)}, facts.columns
        fits = len(channels) == 1 and facts.image_shape == shape.shape if shape else channels in ({1}, {3})
        if len(facts.class_names) != head_width(state) or not fits:
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
