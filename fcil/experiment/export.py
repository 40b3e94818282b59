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
from fcil.experiment.model_file import load_model, noted
from fcil.experiment.predictor import Predictor
from fcil.models.classifier import Classifier

INPUT, OUTPUT = "images", "probabilities"
BOUND = 1e-4  # how far a probability may be from the predictor's
TIE = 1e-5  # classes whose probabilities are closer may change places
TRIALS = (1, 8)  # images of each batch that is compared
JIT: Any = torch.jit  # it has no types

Run = Callable[[Tensor], Tensor]  # float images in [0, 1] to probabilities


@dataclass(frozen=True)
class Format:
    """A way to write a model, given its file and its predictor, and a way to run what was written."""

    content: Callable[[Path, Predictor], bytes]
    opened: Callable[[Path], Run]


class Exported(nn.Module):
    """A classifier as others use it: float images with values in [0, 1] to probabilities."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net = net.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.net(images).softmax(1)
        return probabilities


def export(model: Path, out: Path, format: Format) -> float:
    """Write a model in another format, and return how far its probabilities are from the predictor's, at most."""
    predictor = load_model(model)
    found: list[float] = []
    content = format.content(model, predictor)
    write_atomically(out, content, check=lambda path: found.append(_difference(predictor, format.opened(path), out)))
    return found[0]


@torch.inference_mode()
def _difference(predictor: Predictor, run: Run, out: Path) -> float:
    """Return the largest difference on random images, or refuse the file if it predicts something else."""
    largest = 0.0
    for images in _trials(predictor.image_shape):
        expected, found = predictor.probabilities(images), run(as_floats(images)).double()
        if found.shape != expected.shape:
            raise DataError(
                f"{out} was not written: it gives the shape {tuple(found.shape)}, not {tuple(expected.shape)}"
            )
        largest = max(largest, (found - expected).abs().nan_to_num(nan=1.0).max().item())
        chosen = expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
        if largest > BOUND or (expected.amax(1) - chosen > TIE).any():
            raise DataError(
                f"{out} was not written: on random images its probabilities differ from the model's by {largest:.1g}, "
                f"and at most {BOUND:g} and the same likeliest class are allowed; try another format"
            )
    return largest


def _trials(shape: tuple[int, int, int]) -> Iterator[Tensor]:
    """Yield batches of random pictures; the last one begins with a black and a white one."""
    draw = generator(derive_seed(0, "export"))
    for count in TRIALS:
        images = torch.randint(0, 256, (count, *shape), generator=draw, dtype=torch.uint8)
        if count > 2:
            images[0], images[1] = 0, 255
        yield images


def example(predictor: Predictor) -> Tensor:
    """Return images to follow the network with; two, because one would be taken for a constant."""
    return torch.zeros(2, *predictor.image_shape)


def facts_of(predictor: Predictor) -> dict[str, str]:
    """Return what a file says of its model in every format; what is no text is JSON."""
    return {
        "fcil_version": fcil.__version__,
        "class_names": json.dumps(predictor.class_names),
        "image_shape": json.dumps(predictor.image_shape),
    }


def described(predictor: Predictor) -> dict[str, str]:
    """Return the facts of a file that can be run, with its input and its output."""
    return {
        **facts_of(predictor),
        "input": f"{INPUT}: float32 (batch, channels, height, width), values in [0, 1], not normalised",
        "output": f"{OUTPUT}: float32 (batch, classes), in the order of class_names",
    }


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep to itself what PyTorch's exporters tell programmers: what is deprecated, and what is not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _torchscript(model: Path, predictor: Predictor) -> bytes:
    buffer = io.BytesIO()
    with undisturbed(), torch.no_grad():
        traced = JIT.trace(Exported(predictor.net), example(predictor), check_trace=False)
        JIT.save(traced, buffer, _extra_files=described(predictor))
    return buffer.getvalue()


def _run_torchscript(path: Path) -> Run:
    with undisturbed():
        run: Run = JIT.load(str(path), map_location="cpu")
    return run


def _safetensors(model: Path, predictor: Predictor) -> bytes:
    return noted(model, facts_of(predictor))


def _run_safetensors(path: Path) -> Run:
    return Exported(load_model(path).net)


TORCHSCRIPT = Format(_torchscript, _run_torchscript)
SAFETENSORS = Format(_safetensors, _run_safetensors)
