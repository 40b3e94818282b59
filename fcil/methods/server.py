"""The averaging server that methods share, and the old models a client may learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fcil.maths.averaging import average_states
from fcil.methods.base import Extra, ServerRole, Setting
from fcil.models import Classifier, grow
from fcil.wire import Broadcast, Message, ModelState, Moment, Report, model_digest


@dataclass(frozen=True)
class Teachers(Message):
    """Old models a client may learn from, by digest: the best of the current block and of the one before."""

    current: str | None = None
    last: str | None = None


def head_width(model: ModelState) -> int:
    """Return the number of outputs of a model."""
    return len(model["head.bias"])


def newest_older_model(broadcast: Broadcast, alarm: bool) -> str | None:
    """Return the newest teacher whose head lacks the newest block of classes; detection plays no part."""
    for teachers in (broadcast.proxy, broadcast.server):
        if isinstance(teachers, Teachers):
            for digest in (teachers.current, teachers.last):
                if digest and 0 < head_width(broadcast.models[digest]) <= broadcast.moment.old_classes:
                    return digest
    return None


@dataclass(frozen=True)
class ServerState(Message):
    """The global model from just before the last growth of the head."""

    previous: ModelState | None = None


class AveragingServer(ServerRole[ServerState]):
    """Federated averaging; it offers the model from before the last growth as a teacher unless told not to."""

    def __init__(self, setting: Setting, teaches: bool) -> None:
        self.averaging = setting.averaging
        self.teaches = teaches

    def init(self) -> ServerState:
        return ServerState()

    def grow(
        self, state: ServerState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[ServerState, ModelState]:
        if self.teaches and new_block and head_width(model) > 0:
            state = replace(state, previous=model)
        return state, grow(model, classes, seed)

    def extra(self, state: ServerState, moment: Moment) -> Extra:
        if state.previous is None:
            return None, {}
        digest = model_digest(state.previous)
        return Teachers(last=digest), {digest: state.previous}

    def round(
        self, state: ServerState, model: ModelState, reports: Sequence[Report], moment: Moment
    ) -> tuple[ServerState, ModelState]:
        if not reports:
            return state, model
        weights = [float(report.samples) for report in reports] if self.averaging == "samples" else None
        return state, average_states([report.model for report in reports], weights)

    def scores(self, state: ServerState, net: Classifier, images: Tensor) -> Tensor:
        logits: Tensor = net(images)
        return logits
