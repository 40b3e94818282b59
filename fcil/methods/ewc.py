"""EWC (PNAS 2017) in federated form: weights that mattered to finished data are held where they were, no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from fcil.local import Local
from fcil.maths.losses import cross_entropy
from fcil.maths.penalties import EWC_LAMBDA, add_fishers, average_fishers, ewc_penalty, fisher_diagonal
from fcil.methods.base import Extra, Method, Roles, Setting, register
from fcil.methods.lesson import Lesson, Problem, outputs_of
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import MOST_SAMPLES, AveragingServer, ServerState, Teachers, extras, newest_older_model
from fcil.wire import Message, ModelState, Moment, Report

Fisher = dict[str, Tensor]
LARGEST = 1e12  # entry of a Fisher diagonal that is believed
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # what a model has in addition to its parameters


class EWCConfig(RehearsalConfig):
    """The strength of the penalty."""

    strength: float = Field(EWC_LAMBDA, ge=0, description="lambda, weight of the penalty")


@dataclass(frozen=True)
class Importance(Message):
    """The Fisher diagonal of the data that a client has just finished with, and the number of its samples."""

    fisher: dict[str, Tensor]
    samples: int


@dataclass(frozen=True)
class ImportantTeachers(Teachers):
    """The model before the last growth, and how much each of its weights mattered to all finished data."""

    fisher: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class ImportanceState(ServerState):
    """The Fisher diagonal of all blocks but the last finished one, and the parts of that one as they come in."""

    former: dict[str, Tensor] | None = None
    fisher: dict[str, Tensor] | None = None
    samples: int = 0

    @property
    def total(self) -> Fisher | None:
        """Return the sum over all blocks."""
        if self.former is None or self.fisher is None:
            return self.former or self.fisher
        return add_fishers(self.former, self.fisher)


class EWC(Lesson[EWCConfig]):
    """Softmax cross-entropy + lambda / 2 sum F (w - w_old)^2."""

    def __init__(self, config: EWCConfig, problem: Problem, local: Local) -> None:
        super().__init__(config, problem, local)
        self.own = self._importance()
        self.anchor = dict(problem.teacher.named_parameters()) if problem.teacher is not None else {}
        sent = problem.server.fisher if isinstance(problem.server, ImportantTeachers) else None
        known = [{name: value.to(local.device) for name, value in sent.items()}] if sent else []
        known += [self.own.fisher] if self.own else []  # the server hears of it only after this round
        total = known[0] if len(known) == 1 else add_fishers(*known) if known else {}
        # Where lambda F times the step size exceeds one, a step would overshoot the old weight, and diverge above two.
        most = 1 / (config.strength * problem.optimiser.learning_rate) if config.strength else 0.0
        self.fisher = {name: value.clamp(max=most) for name, value in total.items()}

    def _importance(self) -> Importance | None:
        """Return the Fisher diagonal of the teacher at what was finished in this round, if anything was."""
        teacher, finished = self.problem.teacher, self.problem.finished
        if teacher is None or len(finished) == 0:
            return None
        targets = outputs_of(self.local.labels(finished), self.problem.moment)
        known = targets < len(teacher.head.weight)
        if not bool(known.any()):
            return None
        images, targets = self.local.images(finished[known]), targets[known].to(self.local.device)
        teacher.layout = torch.contiguous_format  # vmap knows no other
        return Importance(fisher_diagonal(teacher, images, targets), len(targets))

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        classified = cross_entropy(self.problem.net(images), self.problem.targets[rows]).mean()
        if not self.fisher:
            return classified
        weights = dict(self.problem.net.named_parameters())
        return classified + ewc_penalty(weights, self.anchor, self.fisher, self.config.strength)

    def extra(self) -> Importance | None:
        if self.own is None:
            return None
        return replace(self.own, fisher={name: value.cpu() for name, value in self.own.fisher.items()})


class ImportanceServer(AveragingServer[ImportanceState]):
    """Averages the Fisher diagonals of a block by samples and adds them up over the blocks."""

    def grow(
        self, state: ImportanceState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[ImportanceState, ModelState]:
        if new_block:
            state = replace(state, former=state.total, fisher=None, samples=0)
        return super().grow(state, model, classes, new_block, seed)

    def extra(self, state: ImportanceState, moment: Moment) -> Extra:
        teachers, models = super().extra(state, moment)
        if not isinstance(teachers, Teachers):
            return teachers, models
        return ImportantTeachers(teachers.current, teachers.last, state.total), models

    def round(
        self, state: ImportanceState, model: ModelState, reports: Sequence[Report], moment: Moment
    ) -> tuple[ImportanceState, ModelState]:
        state, averaged = super().round(state, model, reports, moment)
        sent = [part for part in extras(reports, Importance) if is_sound(part, state.previous)]
        if not sent:
            return state, averaged
        known = [(state.fisher, state.samples)] if state.fisher is not None else []
        parts = [*known, *((part.fisher, part.samples) for part in sent)]
        fisher = average_fishers([part for part, _ in parts], [float(samples) for _, samples in parts])
        return replace(state, fisher=fisher, samples=sum(samples for _, samples in parts)), averaged


def is_sound(sent: Importance, model: ModelState | None) -> bool:
    """Say whether a Fisher diagonal fits the model before the last growth, is finite and nowhere negative."""
    if model is None or not 1 <= sent.samples <= MOST_SAMPLES:
        return False
    wanted = {name: (value.shape, value.dtype) for name, value in model.items() if not name.endswith(STATISTICS)}
    if {name: (value.shape, value.dtype) for name, value in sent.fisher.items()} != wanted:
        return False
    return all(bool(((value >= 0) & (value <= LARGEST)).all()) for value in sent.fisher.values())  # false of NaN too


def build(config: EWCConfig, setting: Setting) -> Roles:
    """Return the roles of EWC."""
    client = RehearsalClient(config, replace(setting, memory=0), EWC, teacher=newest_older_model)
    return Roles(client, ImportanceServer(setting, ImportanceState()))


register(Method("ewc", "a penalty on weights that mattered, without any memory (PNAS 2017)", EWCConfig, build))
