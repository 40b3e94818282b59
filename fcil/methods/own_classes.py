"""Mosaic's parts as settings of other methods: a loss over local classes, and per-class head averaging."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate
from fcil.core.messages import ModelState, Report, RoundContext
from fcil.maths.owned import class_counts, counted_logits, own_outputs
from fcil.methods.base import Choice, Extra, ServerRole, State
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import UnclippedObjective
from fcil.models.classifier import HEAD_ROWS
from fcil.models.trainer import Trainer

SAMPLES_PER_CLASS = "its number of samples of each class"


class OwnedConfig(RehearsalConfig):
    """Two ingredients of Mosaic, off unless asked for; the third one is an optimiser, which every method can choose."""

    own_classes: bool = Field(
        False,
        description="the classification loss looks at the outputs of the client's own classes only, as in mosaic",
    )
    head_rows: Literal["all", "holders"] = Field(
        "all",
        description="whom a row of the head is averaged over; all: the participants; holders: those that hold its "
        "class, by their samples of it, as in mosaic",
    )

    def sends(self) -> dict[str, str]:
        return {"head.": SAMPLES_PER_CLASS} if self.head_rows == "holders" else {}

    def server(self, role: ServerRole[Any]) -> ServerRole[Any]:
        """Return the method's server, with rows averaged over their holders around it where that is asked for."""
        return RowsServer(role, HEAD_ROWS) if self.head_rows == "holders" else role


OwnedSettings = TypeVar("OwnedSettings", bound=OwnedConfig)


class OwnedLesson(UnclippedObjective[OwnedSettings]):
    """A lesson whose loss may be over the client's own classes; a method puts its logits or outputs through it."""

    @cached_property
    def counts(self) -> Tensor:
        """Return the samples of each class that are fitted: their shares are what ln n_c makes up for."""
        return class_counts(self.problem.targets[self.rows()], self.problem.context.classes)

    def own_logits(self, logits: Tensor) -> Tensor:
        """Return the logits that a softmax over classes is taken of."""
        return counted_logits(logits, self.counts) if self.config.own_classes else logits

    def outputs(self, teacher: Tensor | None = None) -> Tensor | None:
        """Return the outputs that a binary cross-entropy has terms of, all of the teacher's included; None: of all."""
        if not self.config.own_classes:
            return None
        return own_outputs(self.counts, 0 if teacher is None else teacher.shape[1])

    def row_weights(self) -> dict[str, Tensor]:
        """Give each row of the head the weight of the client's samples of its class, where holders are averaged."""
        if self.config.head_rows == "all":
            return {}
        held = class_counts(self.problem.targets, self.problem.context.classes)  # those set aside from the fit, too
        return dict.fromkeys(HEAD_ROWS, held.cpu().double())


class RowsServer(ServerRole[State]):
    """A server whose head is averaged row by row, over the holders of a class; without any a row stays as it is.

    Everything else is left to the role inside. The weights of rows are summed like all that reports carry, so the role
    works with any aggregator that can sum rows.
    """

    def __init__(self, inner: ServerRole[State], rows: tuple[str, ...]) -> None:
        self.inner = inner
        self.rows = rows
        self.needs = inner.needs | {"rows"}
        self.chooses = inner.chooses

    def init(self) -> State:
        return self.inner.init()

    def settle(self, state: State, model: ModelState, context: RoundContext, seed: int, machine: Trainer) -> State:
        return self.inner.settle(state, model, context, seed, machine)

    @property
    def settles(self) -> bool:
        return self.inner.settles

    def grow(
        self, state: State, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[State, ModelState]:
        return self.inner.grow(state, model, classes, new_block, seed)

    def extra(self, state: State, context: RoundContext) -> Extra:
        return self.inner.extra(state, context)

    def choice(self, state: State, context: RoundContext) -> Choice | None:
        return self.inner.choice(state, context)

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        return self._unfit(report, context) or self.inner.objection(replace(report, rows={}), sent, context)

    def _unfit(self, report: Report, context: RoundContext) -> str | None:
        """Say what is wrong with a report's weights of rows, if anything is."""
        names = " and ".join(self.rows)
        if report.rows.keys() != set(self.rows):
            return f"it should send its samples per row of {names} and of nothing else"
        counts = report.rows[self.rows[0]]
        whole = counts.shape == (context.classes,) and bool(((counts >= 0) & (counts == counts.round())).all())
        alike = all(torch.equal(report.rows[name], counts) for name in self.rows)
        if not whole or not alike or float(counts.sum()) != report.samples:  # NaN is not whole
            return (
                f"its samples per row of {names} should be {context.classes} whole numbers that add up to its samples"
            )
        return None

    def round(
        self, state: State, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[State, ModelState]:
        return self.inner.round(state, model, aggregate, context)

    def predictor(self, state: State, model: ModelState) -> ModelState:
        return self.inner.predictor(state, model)
