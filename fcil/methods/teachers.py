"""Best model per block, kept by whichever party selects teachers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fcil.core.messages import Message, ModelState, RoundContext, Teacher, Teachers, model_digest
from fcil.methods.base import Choice, TeacherRule
from fcil.methods.server import newest_older_model
from fcil.models.classifier import head_width


@dataclass(frozen=True)
class KeptModel(Message):
    """A model and its digest."""

    digest: str
    model: ModelState

    @classmethod
    def of(cls, model: ModelState) -> KeptModel:
        """Return a model with its digest."""
        return cls(model_digest(model), model)

    @property
    def teacher(self) -> Teacher:
        """Return the choice as participants are told of it."""
        return Teacher(self.digest, head_width(self.model))


def offered(current: KeptModel | None, last: KeptModel | None, context: RoundContext) -> Choice:
    """Return the kept models as teachers; in the first block there is nothing old to teach."""
    if len(context.blocks) < 2:
        return Choice()
    teachers = Teachers(current.teacher if current else None, last.teacher if last else None)
    return Choice(teachers, {kept.digest: kept.model for kept in (current, last) if kept is not None})


def teacher_by_alarm(teachers: Teachers, context: RoundContext, alarm: bool) -> Teacher | None:
    """Return the paper's choice: the best of the current task on an alarm, else the best of the last one."""
    return teachers.current if alarm and teachers.current else teachers.last


def teacher_rule(name: Literal["narrower", "alarm"]) -> TeacherRule:
    """Return the rule by which a client takes one of the models that are offered."""
    return newest_older_model if name == "narrower" else teacher_by_alarm
