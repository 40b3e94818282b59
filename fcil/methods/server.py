"""The averaging server that methods share, and the old models a client may learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fcil.maths.averaging import average_states
from fcil.methods.base import Extra, ServerRole, Setting
from fcil.models import grow, head_width
from fcil.wire import Broadcast, Message, ModelState, Moment, Report, model_digest

MOST_SAMPLES = 2**40  # a number of samples that is believed
Sent = TypeVar("Sent", bound=Message)


@dataclass(frozen=True)
class Teachers(Message):
    """Old models a client may learn from, by digest: the best of the current block and of the one before."""

    current: str | None = None
    last: str | None = None


def newest_older_model(broadcast: Broadcast, alarm: bool) -> str | None:
    """Return the newest teacher without the newest block of classes; detection plays no part."""
    for teachers in (broadcast.proxy, broadcast.server):
        if isinstance(teachers, Teachers):
            for digest in (teachers.current, teachers.last):
                if digest and 0 < head_width(broadcast.models[digest]) <= broadcast.moment.old_classes:
                    return digest
    return None


@dataclass(frozen=True)
class ServerState(Message):
    """The global model from just before the last growth of the head; a method's own state may add to it."""

    previous: ModelState | None = None


Kept = TypeVar("Kept", bound=ServerState)


class AveragingServer(ServerRole[Kept]):
    """Federated averaging; it offers the model from before the last growth as a teacher unless told not to.

    `start` is the state before the first round.
    """

    def __init__(self, setting: Setting, start: Kept, teaches: bool = True) -> None:
        self.averaging = setting.averaging
        self.start = start
        self.teaches = teaches

    def init(self) -> Kept:
        return self.start

    def grow(self, state: Kept, model: ModelState, classes: int, new_block: bool, seed: int) -> tuple[Kept, ModelState]:
        if self.teaches and new_block and head_width(model) > 0:
            state = replace(state, previous=model)
        return state, grow(model, classes, seed)

    def extra(self, state: Kept, moment: Moment) -> Extra:
        if state.previous is None:
            return None, {}
        digest = model_digest(state.previous)
        return Teachers(last=digest), {digest: state.previous}

    def round(
        self, state: Kept, model: ModelState, reports: Sequence[Report], moment: Moment
    ) -> tuple[Kept, ModelState]:
        if not reports:
            return state, model
        return state, average_states([report.model for report in reports], self.weights(reports))

    def weights(self, reports: Sequence[Report]) -> list[float] | None:
        """Return each report's weight in the average; None for equal ones."""
        return [float(report.samples) for report in reports] if self.averaging == "samples" else None


def plain_server(setting: Setting, teaches: bool) -> AveragingServer[ServerState]:
    """Return the server of a method that adds nothing to federated averaging."""
    return AveragingServer(setting, ServerState(), teaches)


def extras(reports: Sequence[Report], kind: type[Sent]) -> list[Sent]:
    """Return the content of one kind that reports carry in addition to their models."""
    return [report.extra for report in reports if isinstance(report.extra, kind)]
