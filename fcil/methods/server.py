"""The averaging server that methods share, and the rule by which most of them choose a teacher."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fcil.core.aggregate import MOST_SAMPLES, Aggregate
from fcil.core.messages import Message, ModelState, Report, RoundContext, Teacher, Teachers, Weighted
from fcil.methods.base import ServerRole, State
from fcil.models.classifier import grow

PART_TYPES = (torch.float32, torch.float64)
ONE = torch.ones((), dtype=torch.float64)  # the weight of a part that counts once per participant


def newest_older_model(teachers: Teachers, context: RoundContext, alarm: bool) -> Teacher | None:
    """Return the newest teacher without the newest block of classes; detection does not matter."""
    for teacher in (teachers.current, teachers.last):
        if teacher is not None and 0 < teacher.outputs <= context.old_classes:
            return teacher
    return None


@dataclass(frozen=True)
class Stateless(Message):
    """The state of a server that keeps none."""


class AveragingServer(ServerRole[State]):
    """Federated averaging; `start` is the state before the first round."""

    def __init__(self, start: State) -> None:
        self.start = start

    def init(self) -> State:
        return self.start

    def grow(
        self, state: State, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[State, ModelState]:
        return state, grow(model, classes, seed)

    def round(
        self, state: State, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[State, ModelState]:
        return state, aggregate.model


def plain_server() -> AveragingServer[Stateless]:
    """Return the server of a method that adds nothing to federated averaging."""
    return AveragingServer(Stateless())


def only_parts(report: Report, allowed: set[str]) -> str | None:
    """Say which parts or rows a report carries that were not asked for, if it does."""
    strange = sorted({*report.parts.keys() - allowed, *report.rows})
    return f"it sends {', '.join(strange)} unasked" if strange else None


def validate_part(
    name: str,
    part: Weighted,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    largest: float,
    heaviest: float = MOST_SAMPLES,
) -> str | None:
    """Return an objection to a part that has another shape, other weights or larger values.

    A part with a single weight must count for something: nothing can be learned of a mean without weight.
    """
    if part.value.shape != shape or part.weight.shape != weights:
        found = f"{tuple(part.value.shape)} with weights {tuple(part.weight.shape)}"
        return f"its {name} has the shape {found}, should be {shape} with weights {weights}"
    if part.value.dtype not in PART_TYPES or part.weight.dtype != torch.float64:
        return f"its {name} is of {part.value.dtype} with weights of {part.weight.dtype}, should be floats"
    if not _within(part.value, largest):
        return f"its {name} contains NaN, infinity or values above {largest:g}"
    if not _within(part.weight, heaviest) or bool((part.weight < 0).any()) or (not weights and not part.weight):
        return f"its {name} has weights that are not believed"
    return None


def _within(values: Tensor, largest: float) -> bool:
    """Say whether all values are at most so large; false of NaN too."""
    return bool((values.abs() <= largest).all())
