"""BiC (CVPR 2019) in federated form: distillation, and a scale and a shift that correct the newest block's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.local import Local
from fcil.maths.bias import (
    HELD_OUT,
    TEMPERATURE,
    Correction,
    correct,
    distillation_share,
    first_rows,
    fit_correction,
    held_out_per_class,
    softened_cross_entropy,
)
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Extra, Method, Roles, Setting, register
from fcil.methods.lesson import Lesson, Problem
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import AveragingServer, ServerState, Teachers, extras, newest_older_model
from fcil.models import head_width
from fcil.optimiser import Optimiser, milestones
from fcil.wire import Message, ModelState, Moment, Report, derive_seed, generator

LARGEST = 100.0  # scale or shift that is believed; published ones are below one


class BiCConfig(RehearsalConfig):
    """The numbers of both stages."""

    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")
    held_out: float = Field(HELD_OUT, gt=0, lt=1, description="share of each old class's exemplars kept for stage 2")
    alpha_penalty: float = Field(
        0.1, ge=0, description="weight of (alpha - 1)^2 / 2 in stage 2; without it, few samples fit any scale"
    )

    native: ClassVar[Optimiser] = Optimiser(0.1, 0.9, 2e-4, milestones((100, 10), (150, 100), (200, 1000)), epochs=250)


@dataclass(frozen=True)
class Bias(Message):
    """The scale and the shift of the newest block's outputs that a client found."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class CorrectedTeachers(Teachers):
    """The old model and its own correction, from output `begins` on."""

    begins: int = 0
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True)
class BiasState(ServerState):
    """The corrections of the newest block and of the one before, and the outputs at which the two begin."""

    begins: int = 0
    bias: Bias | None = None
    former_begins: int = 0
    former_bias: Bias | None = None


class BiC(Lesson[BiCConfig]):
    """Stage 1: lambda L_d + (1 - lambda) L_c, lambda = C_old / C; stage 2: (alpha, beta) on held-out samples."""

    def __init__(self, config: BiCConfig, problem: Problem, local: Local) -> None:
        super().__init__(config, problem, local)
        self.held_out = self._held_out()
        self.bias: Bias | None = None

    def _held_out(self) -> Tensor:
        """Return the rows kept for stage 2, as many of each class, or none where a class is too small for it.

        Which samples these are depends on the sample and the block alone, so that nobody trains in one round on what
        is held out in another.
        """
        targets, newest = self.problem.targets.cpu(), self.problem.newest.cpu()
        old, new = (torch.unique(targets[part], return_counts=True)[1].tolist() for part in (~newest, newest))
        each = held_out_per_class(old, new, self.config.held_out)
        draw = generator(derive_seed(len(self.problem.moment.blocks), "held out"))
        rank = torch.randperm(len(self.local.source.train), generator=draw)
        return first_rows(targets, each, rank[self.problem.samples].argsort())

    def rows(self) -> Tensor:
        rows = super().rows()
        return rows[~torch.isin(rows, self.held_out)]

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher = self.problem.teacher_logits(images)
        logits = self.problem.net(images)
        classified = cross_entropy(logits, self.problem.targets[rows]).mean()
        if teacher is None:
            return classified
        if isinstance(sent := self.problem.server, CorrectedTeachers):
            teacher = correct(teacher, sent.begins, Correction(sent.alpha, sent.beta))
        share = distillation_share(teacher.shape[1], logits.shape[1])
        distilled = softened_cross_entropy(logits, teacher, self.config.temperature).mean()
        return share * distilled + (1 - share) * classified

    def finish(self) -> None:
        """Fit (alpha, beta) to the logits of the samples held out."""
        if len(self.held_out) == 0:
            return
        problem = self.problem
        with torch.inference_mode():
            logits = problem.net(self.local.images(problem.samples[self.held_out])).cpu()
        labels = problem.targets.cpu()[self.held_out]
        penalty = self.config.alpha_penalty
        self.bias = Bias(*fit_correction(logits, labels, problem.moment.old_classes, alpha_penalty=penalty))

    def extra(self) -> Bias | None:
        return self.bias


class BiasServer(AveragingServer[BiasState]):
    """Averages (alpha, beta) over the clients that found them, and corrects the head that predicts."""

    def grow(
        self, state: BiasState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[BiasState, ModelState]:
        if new_block:
            former = replace(state, former_begins=state.begins, former_bias=state.bias)
            state = replace(former, begins=head_width(model), bias=None)
        return super().grow(state, model, classes, new_block, seed)

    def extra(self, state: BiasState, moment: Moment) -> Extra:
        teachers, models = super().extra(state, moment)
        if not isinstance(teachers, Teachers) or state.former_bias is None:
            return teachers, models
        bias = state.former_bias
        return CorrectedTeachers(teachers.current, teachers.last, state.former_begins, bias.alpha, bias.beta), models

    def round(
        self, state: BiasState, model: ModelState, reports: Sequence[Report], moment: Moment
    ) -> tuple[BiasState, ModelState]:
        state, averaged = super().round(state, model, reports, moment)
        found = [bias for bias in extras(reports, Bias) if is_sound(bias)]
        if found and moment.old_classes:
            alpha, beta = (sum(values) / len(found) for values in zip(*((b.alpha, b.beta) for b in found), strict=True))
            state = replace(state, bias=Bias(alpha, beta))
        return state, averaged

    def predictor(self, state: BiasState, model: ModelState) -> ModelState:
        if state.bias is None:
            return model
        newest = (torch.arange(head_width(model)) >= state.begins).to(model["head.bias"].device)
        scale = torch.where(newest, state.bias.alpha, 1.0)
        shift = torch.where(newest, state.bias.beta, 0.0)
        weight, offset = model["head.weight"] * scale[:, None], model["head.bias"] * scale + shift
        return {**model, "head.weight": weight, "head.bias": offset}


def is_sound(bias: Bias) -> bool:
    """Say whether a correction is one that a fit could give."""
    return abs(bias.alpha) <= LARGEST and abs(bias.beta) <= LARGEST  # false of NaN too


def build(config: BiCConfig, setting: Setting) -> Roles:
    """Return the roles of BiC."""
    client = RehearsalClient(config, setting, BiC, teacher=newest_older_model)
    return Roles(client, BiasServer(setting, BiasState()))


register(Method("bic", "distillation and a correction of the bias to new classes (CVPR 2019)", BiCConfig, build))
