"""A model in the formats of other programs, compared with the predictor before the file has its name."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fcil
from fcil.core.errors import DataError
from fcil.core.files import write_atomically
from fcil.core.messages import derive_seed, generator
from fcil.data.augment import as_floats
from fcil.data.columns import FARTHEST, Columns
from fcil.experiment.model_file import load_model, model_content, noted
from fcil.experiment.predictor import Predictor

INPUT, OUTPUT = "images", "probabilities"
BOUND = 1e-4  # how far a probability may be from the predictor's
TIE = 1e-5  # classes whose probabilities are closer may change places
TRIALS = (1, 8)  # images of each batch that is compared
JIT: Any = torch.jit  # it has no types

Run = Callable[[Tensor], Tensor]  # float images in [0, 1] to probabilities


@dataclass(frozen=True)
class Format:
    """A function that writes a model, given its file and its predictor, and one that runs the written file."""

    content: Callable[[bytes, Predictor], bytes]
    opened: Callable[[Path], Run]


class Standardiser(nn.Module):
    """The encoding of numbers that are no images: (samples, channels) or (samples, channels, length), NaN: missing.

    A channel that says that a number is missing is computed from the channel of the number, whatever it holds.
    """

    mean: Tensor
    deviation: Tensor
    is_gap: Tensor

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        facts: list[tuple[float, float, bool]] = []
        for column in columns.each:
            if column.categories is None:
                facts += [(column.mean, column.deviation, False), *([(0.0, 1.0, True)] if column.gaps else [])]
            else:
                facts += [(0.0, 1.0, False)] * column.channels
        means, deviations, gaps = zip(*facts, strict=True)
        self.register_buffer("mean", torch.tensor(means).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviations).view(-1, 1, 1), persistent=False)
        self.register_buffer("is_gap", torch.tensor(gaps).view(-1, 1, 1), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        values = numbers[:, :, None, None] if numbers.ndim == 2 else numbers[:, :, None]
        missing = values.isnan()
        standard = ((values - self.mean) / self.deviation).clamp(-FARTHEST, FARTHEST)
        known = torch.where(missing, torch.zeros_like(standard), standard)
        return torch.where(self.is_gap, missing.roll(1, 1).to(known.dtype), known)


class Exported(nn.Module):
    """A classifier as others use it: float images with values in [0, 1], or plain numbers, to probabilities."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.net = predictor.net.eval().requires_grad_(False)
        self.encode = Standardiser(predictor.columns) if predictor.columns else None
        self.temperature = predictor.temperature

    def forward(self, images: Tensor) -> Tensor:
        samples = images if self.encode is None else self.encode(images)
        probabilities: Tensor = (self.net(samples) / self.temperature).softmax(1)
        return probabilities


def export(model: Path, out: Path, format: Format) -> float:
    """Write a model in another format, and return how far its probabilities are from the predictor's, at most."""
    data = model_content(model)  # once: the next round of a run under way changes it
    predictor = load_model(model, content=data)
    found: list[float] = []
    content = format.content(data, predictor)
    write_atomically(out, content, check=lambda path: found.append(_difference(predictor, format.opened(path), out)))
    return found[0]


@torch.inference_mode()
def _difference(predictor: Predictor, run: Run, out: Path) -> float:
    """Return the largest difference on random images, or refuse the file if it predicts something else."""
    largest = 0.0
    encode = Standardiser(predictor.columns) if predictor.columns else nn.Identity()
    for images in _trials(predictor):
        expected, found = predictor.probabilities(encode(images)), run(as_floats(images)).double()
        if found.shape != expected.shape:
            raise DataError(
                f"{out} was not written: it gives the shape {tuple(found.shape)}, not {tuple(expected.shape)}"
            )
        largest = max(largest, (found - expected).abs().nan_to_num(nan=1.0).max().item())
        chosen = expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
        if largest > BOUND or (expected.amax(1) - chosen > TIE).any():
            raise DataError(
                f"{out} was not written: on random input its probabilities differ from the model's by {largest:.1g}, "
                f"and at most {BOUND:g} and the same likeliest class are allowed; try another format"
            )
    return largest


def _trials(predictor: Predictor) -> Iterator[Tensor]:
    """Yield batches of random pictures or numbers; the last one begins with a black and a white one."""
    draw, shape = generator(derive_seed(0, "export")), input_shape(predictor)
    for count in TRIALS:
        if predictor.columns is not None:
            yield _numbers(predictor.columns, torch.randn(count, *shape, generator=draw))
            continue
        images = torch.randint(0, 256, (count, *shape), generator=draw, dtype=torch.uint8)
        if count > 2:
            images[0], images[1] = 0, 255
        yield images


def _numbers(columns: Columns, standard: Tensor) -> Tensor:
    """Return plain numbers whose standardised values are these, one of them missing."""
    encode = Standardiser(columns)
    axes = (-1, *[1] * (standard.ndim - 2))
    numbers = standard * encode.deviation.view(axes) + encode.mean.view(axes)
    numbers[0, 0] = torch.nan
    return numbers


def input_shape(predictor: Predictor) -> tuple[int, ...]:
    """Return the shape of one sample as an exported model takes it."""
    channels, _, length = predictor.image_shape
    if predictor.columns is None:
        return predictor.image_shape
    return (channels,) if predictor.columns.kind == "vector" else (channels, length)


def example(predictor: Predictor) -> Tensor:
    """Return samples to follow the network with; two, because one would be taken for a constant."""
    return torch.zeros(2, *input_shape(predictor))


def facts_of(predictor: Predictor) -> dict[str, str]:
    """Return a model's metadata, the same in every format; values other than text are JSON."""
    return {
        "fcil_version": fcil.__version__,
        "class_names": json.dumps(predictor.class_names),
        "image_shape": json.dumps(predictor.image_shape),
        **({"threshold": json.dumps(predictor.threshold)} if predictor.threshold else {}),
    }


def described(predictor: Predictor) -> dict[str, str]:
    """Return the facts of a file that can be run, with its input and its output."""
    taken = "float32 (batch, channels, height, width), values in [0, 1], not normalised"
    channels: dict[str, str] = {}
    if predictor.columns is not None:
        axes = "batch, channels" if predictor.columns.kind == "vector" else "batch, channels, length"
        taken = f"float32 ({axes}), not standardised, NaN where a number is missing, 1 for a category that holds"
        channels = {"channels": json.dumps(predictor.columns.channel_names)}
    return {
        **facts_of(predictor),
        **channels,
        "input": f"{INPUT}: {taken}",
        "output": f"{OUTPUT}: float32 (batch, classes), in the order of class_names",
    }


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hide the remarks of PyTorch's exporters for programmers, such as deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _torchscript(model: bytes, predictor: Predictor) -> bytes:
    buffer = io.BytesIO()
    with undisturbed(), torch.no_grad():
        traced = JIT.trace(Exported(predictor), example(predictor), check_trace=False)
        JIT.save(traced, buffer, _extra_files=described(predictor))
    return buffer.getvalue()


def _run_torchscript(path: Path) -> Run:
    with undisturbed():
        run: Run = JIT.load(str(path), map_location="cpu")
    return run


def _safetensors(model: bytes, predictor: Predictor) -> bytes:
    return noted(model, facts_of(predictor))


def _run_safetensors(path: Path) -> Run:
    return Exported(load_model(path))


TORCHSCRIPT = Format(_torchscript, _run_torchscript)
SAFETENSORS = Format(_safetensors, _run_safetensors)
