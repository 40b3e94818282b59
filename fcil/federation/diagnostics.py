"""Diagnostics of a simulated round: seconds per phase, full evaluations, and prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fcil.core.messages import Diagnostics, Message, Prototype, Shape
from fcil.core.stopwatch import Stopwatch
from fcil.federation.round_record import CalibrationRecord
from fcil.maths.quality import psnr


@dataclass(frozen=True)
class ModelEvaluation:
    """An evaluation in full: how often images of a class (row) were taken for another (column)."""

    classes: tuple[str, ...]  # ids, in the order in which they came
    counts: Tensor
    images: Tensor  # of each class
    correct: list[int]  # by task
    total: list[int]
    backdoor: tuple[int, int] | None = None  # test images that a backdoor's trigger turns into its target, of how many
    calibration: CalibrationRecord | None = None  # at the end of a task

    @property
    def per_class(self) -> dict[str, tuple[int, int]]:
        """Return right predictions and images of each class that has images."""
        columns = zip(self.classes, self.counts.diagonal().tolist(), self.images.tolist(), strict=True)
        return {name: (right, images) for name, right, images in columns if images}


@dataclass(frozen=True)
class Confusion(Message):
    """An evaluation as it is kept, with the names of the classes."""

    classes: tuple[str, ...]
    names: tuple[str, ...]
    counts: Annotated[Tensor, Shape(("true", "predicted"), torch.int32)]

    def __post_init__(self) -> None:
        size = len(self.classes)
        if len(self.names) != size or tuple(self.counts.shape) != (size, size):
            raise ValueError(f"{size} classes with {len(self.names)} names and {tuple(self.counts.shape)} counts")


@dataclass(frozen=True)
class PrototypeComparison(Message):
    """A prototype, its perturbed version, and the image that the proxy rebuilt from the gradient."""

    label: str  # id of its class
    original: Annotated[Tensor, Shape(("channels", "height", "width"), torch.uint8)]
    perturbed: Annotated[Tensor, Shape(("channels", "height", "width"), torch.uint8)]
    rebuilt: Annotated[Tensor, Shape(("channels", "height", "width"), torch.uint8)]
    to_perturbed: float  # PSNR in dB: how well the proxy rebuilds what was perturbed
    to_original: float  # PSNR in dB: how much of the original it sees


@dataclass(frozen=True)
class PrototypeComparisons(Message):
    """The prototypes of a round that are kept."""

    items: tuple[PrototypeComparison, ...]


@dataclass
class RoundDiagnostics:
    """Diagnostics of the current round, kept beside its record."""

    watch: Stopwatch = field(default_factory=Stopwatch)
    prototype_comparisons: list[PrototypeComparison] = field(default_factory=list)


def prototype_comparisons(
    measured: Mapping[int, Diagnostics], rebuilt: tuple[Tensor, Tensor] | None, names: Mapping[int, str]
) -> list[PrototypeComparison]:
    """Return the prototypes that clients show, each next to the rebuilt image of its class that is nearest to it.

    Uploads carry no sender, so who sent which gradient is not known. Each class comes once before any comes again.
    """
    shown = [prototype for _, found in sorted(measured.items()) for prototype in found.prototypes]
    if rebuilt is None or not shown:
        return []
    images, outputs = rebuilt
    turns: dict[int, list[Prototype]] = {}
    for prototype in shown:
        turns.setdefault(prototype.output, []).append(prototype)
    ordered = sorted(
        ((turn, prototype) for same in turns.values() for turn, prototype in enumerate(same)), key=lambda pair: pair[0]
    )
    found = [_joined(prototype, images[outputs == prototype.output], names) for _, prototype in ordered]
    return [comparison for comparison in found if comparison is not None]


def _joined(prototype: Prototype, candidates: Tensor, names: Mapping[int, str]) -> PrototypeComparison | None:
    if not len(candidates) or prototype.output not in names:
        return None
    likeness = psnr(candidates.float(), prototype.perturbed[None])
    best = int(likeness.argmax())
    rebuilt = candidates[best].float()
    seen = float(psnr(rebuilt[None], prototype.original[None]))
    original, perturbed = _pixels(prototype.original), _pixels(prototype.perturbed)
    label, near = names[prototype.output], float(likeness[best])
    return PrototypeComparison(label, original, perturbed, _pixels(rebuilt), near, seen)


def _pixels(image: Tensor) -> Tensor:
    return image.mul(255).round().clamp(0, 255).nan_to_num().to(torch.uint8)
