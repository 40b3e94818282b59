"""Mosaic's parts as settings of other methods: a loss over local classes, and per-class head averaging."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, TypeVar

from pydantic import Field
from torch import Tensor

from fcil.maths.owned import class_counts, counted_logits, own_outputs
from fcil.methods.base import ServerRole, State
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import UnclippedObjective
from fcil.models.classifier import HEAD_ROWS

SAMPLES_PER_CLASS = "its number of samples of each class"


class OwnedConfig(RehearsalConfig):
    """Two ingredients of Mosaic, off unless asked for; the third one is an optimiser, which every method can choose."""

    own_classes: bool = Field(
        False,
        description="the classification loss looks at the outputs of the client's own classes only, as in mosaic",
    )
    head_rows: Literal["all", "holders"] = Field(
        "all",
        description="the clients over which a row of the head is averaged; all: the participants; holders: the "
        "participants with its class, by their samples of it, as in mosaic",
    )

    def sends(self) -> dict[str, str]:
        rows = {"head.": SAMPLES_PER_CLASS} if self.head_rows == "holders" else {}
        return {**rows, **super().sends()}

    def server(self, role: ServerRole[Any]) -> ServerRole[Any]:
        """Return the method's server, which averages the head's rows over their holders where that is asked for."""
        return averaged_over_holders(role, HEAD_ROWS) if self.head_rows == "holders" else role


OwnedSettings = TypeVar("OwnedSettings", bound=OwnedConfig)


class OwnedObjective(UnclippedObjective[OwnedSettings]):
    """An objective whose loss may be over the client's own classes; a method puts its logits or outputs through it."""

    @cached_property
    def counts(self) -> Tensor:
        """Return the samples of each class that are fitted: ln n_c makes up for their shares."""
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


def averaged_over_holders(role: ServerRole[State], rows: tuple[str, ...]) -> ServerRole[State]:
    """Return the role as one whose rows of these tensors are averaged over the holders of a class, by their samples.

    A row without a holder stays as it is. Any aggregator that can sum rows serves.
    """
    role.counted_rows = rows
    role.needs = role.needs | {"rows"}
    return role
