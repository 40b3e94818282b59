"""BiC (CVPR 2019) in federated form: distillation, and a scale and a shift that correct the newest block's outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, ReportLayout
from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted, derive_seed, generator
from fcil.maths.bias import (
    HELD_OUT,
    Correction,
    correct,
    distillation_share,
    first_rows,
    fit_correction,
    held_out_per_class,
    softened_cross_entropy,
)
from fcil.maths.distillation import TEMPERATURE
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Extra, Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.local_objective import Problem
from fcil.methods.own_classes import OwnedConfig, OwnedObjective
from fcil.methods.server import ONE, AveragingServer, newest_older_model, only_parts, validate_part
from fcil.models.classifier import head_width
from fcil.models.client_context import ClientContext
from fcil.models.optimiser import Optimiser, milestones

BIAS = "bias"  # (alpha, beta) that a client found
LARGEST = 100.0  # scale or shift that is believed; published ones are below one


class BiCConfig(OwnedConfig):
    """The numbers of both stages."""

    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")
    held_out: float = Field(HELD_OUT, gt=0, lt=1, description="share of each old class's exemplars kept for stage 2")
    alpha_penalty: float = Field(
        0.1, ge=0, description="weight of (alpha - 1)^2 / 2 in stage 2; without it, few samples fit any scale"
    )

    native: ClassVar[Optimiser] = Optimiser(0.1, 0.9, 2e-4, milestones((100, 10), (150, 100), (200, 1000)), epochs=250)

    def sends(self) -> dict[str, str]:
        return {BIAS: "scale and shift of the newest outputs", **super().sends()}


@dataclass(frozen=True)
class Bias(Message):
    """A scale and a shift of the newest block's outputs."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class TeacherCorrection(Message):
    """The old model's own correction, from output `begins` on."""

    begins: int
    bias: Bias


@dataclass(frozen=True)
class BiasState(Message):
    """The corrections of the newest block and of the one before, and the outputs at which the two begin."""

    begins: int = 0
    bias: Bias | None = None
    former_begins: int = 0
    former_bias: Bias | None = None


class BiC(OwnedObjective[BiCConfig]):
    """Stage 1: lambda L_d + (1 - lambda) L_c, lambda = C_old / C; stage 2: (alpha, beta) on held-out samples."""

    def __init__(self, config: BiCConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.held_out = self._held_out()
        self.bias: Bias | None = None

    def _held_out(self) -> Tensor:
        """Return the rows kept for stage 2, as many of each class, or none where a class is too small for it.

        Which samples these are depends on the sample and the block alone, so no sample is trained on in one round and
        held out in another, even when a real site gains samples in between.
        """
        targets, newest = self.problem.targets.cpu(), self.problem.newest.cpu()
        old, new = (torch.unique(targets[part], return_counts=True)[1].tolist() for part in (~newest, newest))
        each = held_out_per_class(old, new, self.config.held_out)
        # By the block, as a client has no other number that is the same in all its rounds
        draw = generator(derive_seed(len(self.problem.context.blocks), "held out"))
        rank = torch.rand(len(self.local.samples), generator=draw, dtype=torch.float64)
        return first_rows(targets, each, rank[self.problem.samples].argsort())

    def rows(self) -> Tensor:
        rows = super().rows()
        return rows[~torch.isin(rows, self.held_out)]

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher = self.problem.teacher_logits(images, rows)
        logits = self.problem.net(images)
        classified = cross_entropy(self.own_logits(logits), self.problem.targets[rows]).mean()
        if teacher is None:
            return classified
        if sent := self.problem.sent(TeacherCorrection):
            teacher = correct(teacher, sent.begins, Correction(sent.bias.alpha, sent.bias.beta))
        share = distillation_share(teacher.shape[1], logits.shape[1])
        distilled = softened_cross_entropy(logits, teacher, self.config.temperature).mean()
        return share * distilled + (1 - share) * classified

    def finish(self) -> None:
        """Fit (alpha, beta) to the logits of the samples held out; to all of them, as the prediction is over all."""
        if len(self.held_out) == 0:
            return
        problem = self.problem
        with torch.inference_mode():
            logits = problem.net(self.local.inputs(problem.net, problem.samples[self.held_out])).cpu()
        labels = problem.targets.cpu()[self.held_out]
        penalty = self.config.alpha_penalty
        fitted = fit_correction(logits, labels, problem.context.old_classes, alpha_penalty=penalty)
        self.bias = Bias(*(min(max(value, -LARGEST), LARGEST) for value in fitted))

    def parts(self) -> dict[str, Weighted]:
        if self.bias is None:
            return {}
        return {BIAS: Weighted(torch.tensor([self.bias.alpha, self.bias.beta], dtype=torch.float64), ONE)}


class BiasServer(AveragingServer[BiasState]):
    """Averages (alpha, beta) over the clients that found them, and corrects the head that predicts."""

    needs: frozenset[Need] = frozenset({"parts"})

    def grow(
        self, state: BiasState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[BiasState, ModelState]:
        if new_block:
            former = replace(state, former_begins=state.begins, former_bias=state.bias)
            state = replace(former, begins=head_width(model), bias=None)
        return super().grow(state, model, classes, new_block, seed)

    def extra(self, state: BiasState, context: RoundContext) -> Extra:
        if state.former_bias is None:
            return Extra()
        return Extra(TeacherCorrection(state.former_begins, state.former_bias))

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        return ReportLayout(sent, self.counted_rows, {BIAS: PartLayout((2,), LARGEST, heaviest=1.0)})

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if BIAS not in report.parts:
            return only_parts(report, set())
        return only_parts(report, {BIAS}) or validate_part(BIAS, report.parts[BIAS], (2,), (), LARGEST, heaviest=1.0)

    def round(
        self, state: BiasState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[BiasState, ModelState]:
        if BIAS in aggregate.parts and context.old_classes:
            state = replace(state, bias=Bias(*aggregate.parts[BIAS].mean().tolist()))
        return super().round(state, model, aggregate, context)

    def predictor(self, state: BiasState, model: ModelState) -> ModelState:
        if state.bias is None:
            return model
        newest = (torch.arange(head_width(model)) >= state.begins).to(model["head.bias"].device)
        scale = torch.where(newest, state.bias.alpha, 1.0)
        shift = torch.where(newest, state.bias.beta, 0.0)
        weight, offset = model["head.weight"] * scale[:, None], model["head.bias"] * scale + shift
        return {**model, "head.weight": weight, "head.bias": offset}


def build(config: BiCConfig, setting: Setting) -> Roles:
    """Return the roles of BiC."""
    client = RehearsalClient(config, setting, BiC, teacher=newest_older_model)
    return Roles(client, config.server(BiasServer(BiasState())))


register_method(Method("bic", "distillation and a correction of the bias to new classes (CVPR 2019)", BiCConfig, build))
