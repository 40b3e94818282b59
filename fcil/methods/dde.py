"""DDE + iCaRL (CVPR 2021) in federated form: neighbours join in a label's likelihood, the momentum in no output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fcil.data.transforms import augment
from fcil.local import Local
from fcil.maths.causal import (
    ALPHA,
    NEIGHBOURS,
    joint_nll,
    mean_direction,
    momentum_step,
    new_neighbours,
    without_effect,
)
from fcil.maths.penalties import TEMPERATURE, softened_divergence
from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.lesson import Lesson, Problem
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import AveragingServer, ServerState, extras, newest_older_model
from fcil.wire import Message, ModelState, Moment, Report, Shape, derive_seed, generator

LARGEST = 1e6  # length of a momentum that is believed


class DDEConfig(RehearsalConfig):
    """The numbers of both effects."""

    neighbours: int = Field(
        NEIGHBOURS, ge=0, description="nearest new samples whose outputs count along with a sample's own"
    )
    effect: float = Field(ALPHA, ge=0, description="alpha: how much of the momentum's effect is removed in prediction")
    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")


@dataclass(frozen=True)
class Momentum(Message):
    """The running sum of a client's features, h <- 0.9 h + mean f, at the end of its fit."""

    features: Annotated[Tensor, Shape(("features",), torch.float32)]


@dataclass(frozen=True)
class EffectState(ServerState):
    """The direction of the momentum, of length one."""

    direction: Tensor | None = None


class DDE(Lesson[DDEConfig]):
    """-log of a label's probability, averaged with the neighbours', + KL(teacher || student) at temperature 2."""

    def __init__(self, config: DDEConfig, problem: Problem, local: Local) -> None:
        super().__init__(config, problem, local)
        self.draw = generator(derive_seed(problem.seed, "neighbours"))
        self.momentum = torch.zeros(problem.net.head.weight.shape[1], device=local.device)
        self.neighbours = self._neighbours()

    def _neighbours(self) -> Tensor:
        """Return the rows of each sample's nearest new samples under the teacher, which does not change in a fit."""
        if self.problem.teacher is None:
            return torch.empty(len(self.problem.targets), 0, dtype=torch.int64)
        features = self.local.features(self.problem.teacher, self.problem.samples)
        return new_neighbours(features, self.problem.newest, self.config.neighbours).cpu()

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        net, teacher, labels = self.problem.net, self.problem.teacher_logits(images), self.problem.targets[rows]
        around = self._neighbour_logits(rows)
        features = net.extract(images)
        self.momentum = momentum_step(self.momentum, features)
        logits = net.head(features)
        classified = joint_nll(logits, around, labels).mean()
        if teacher is None:
            return classified
        return classified + softened_divergence(logits, teacher, self.config.temperature).mean()

    def _neighbour_logits(self, rows: Tensor) -> Tensor:
        """Return the logits of each sample's neighbours, each distinct one computed once, without gradients."""
        near = self.neighbours[rows]
        distinct, places = torch.unique(near, return_inverse=True)
        classes = self.problem.moment.classes
        if len(distinct) == 0:
            return torch.empty(len(rows), 0, classes, device=self.local.device)
        images = augment(self.local.images(self.problem.samples[distinct]), self.local.train.augment, self.draw)
        trains = self.problem.net.training
        with torch.no_grad():
            logits = self.problem.net.eval()(images)  # with statistics of neighbours, batch norm would learn them
        self.problem.net.train(trains)
        found: Tensor = logits[places.to(logits.device)]
        return found

    def extra(self) -> Momentum | None:
        """Return the momentum, once there is an old model for whose sake it is removed."""
        return Momentum(self.momentum.float().cpu()) if self.problem.teacher is not None else None


class EffectServer(AveragingServer[EffectState]):
    """Averages the momenta and takes their effect out of the head that predicts."""

    def __init__(self, setting: Setting, config: DDEConfig) -> None:
        super().__init__(setting, EffectState())
        self.effect = config.effect

    def round(
        self, state: EffectState, model: ModelState, reports: Sequence[Report], moment: Moment
    ) -> tuple[EffectState, ModelState]:
        state, averaged = super().round(state, model, reports, moment)
        size = model["head.weight"].shape[1]
        momenta = [
            sent.features
            for sent in extras(reports, Momentum)
            if len(sent.features) == size and bool(sent.features.norm() <= LARGEST)  # false of NaN too
        ]
        if momenta and moment.old_classes:
            state = replace(state, direction=mean_direction(momenta))
        return state, averaged

    def predictor(self, state: EffectState, model: ModelState) -> ModelState:
        if state.direction is None:
            return model
        return {**model, "head.weight": without_effect(model["head.weight"], state.direction, self.effect)}


def build(config: DDEConfig, setting: Setting) -> Roles:
    """Return the roles of DDE + iCaRL."""
    client = RehearsalClient(config, setting, DDE, teacher=newest_older_model)
    return Roles(client, EffectServer(setting, config))


register(Method("dde", "iCaRL with colliding and momentum effects (CVPR 2021)", DDEConfig, build))
