"""DDE + iCaRL (CVPR 2021) in federated form: averages predictions over neighbours; removes the momentum effect."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, ReportLayout
from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted, derive_seed, generator
from fcil.maths.causal import (
    ALPHA,
    NEIGHBOURS,
    joint_nll,
    momentum_step,
    new_neighbours,
    without_effect,
)
from fcil.maths.distillation import TEMPERATURE, distillation
from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.local_objective import Problem
from fcil.methods.own_classes import OwnedConfig, OwnedObjective
from fcil.methods.server import ONE, AveragingServer, newest_older_model, only_parts, validate_part
from fcil.models.client_context import ClientContext
from fcil.models.trainer import CHUNK

MOMENTUM = "momentum"  # the running sum of a client's features, h <- 0.9 h + mean f, at the end of its fit
LARGEST = 1e6  # length of a momentum that is believed


class DDEConfig(OwnedConfig):
    """The numbers of both effects."""

    neighbours: int = Field(
        NEIGHBOURS, ge=0, description="nearest new samples whose outputs count along with a sample's own"
    )
    effect: float = Field(ALPHA, ge=0, description="alpha: how much of the momentum's effect is removed in prediction")
    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")

    def sends(self) -> dict[str, str]:
        return {MOMENTUM: "the running sum of its features, one vector", **super().sends()}


@dataclass(frozen=True)
class EffectState(Message):
    """The direction of the momentum, of length one."""

    direction: Tensor | None = None


class DDE(OwnedObjective[DDEConfig]):
    """-log of a label's probability, averaged with the neighbours', + KL(teacher || student) at temperature 2."""

    def __init__(self, config: DDEConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.draw = generator(derive_seed(problem.seed, "neighbours"))
        self.momentum = torch.zeros(problem.net.head.weight.shape[1], device=local.machine.device)
        self.neighbours = self._neighbours()

    def _neighbours(self) -> Tensor:
        """Return the rows of each sample's nearest new samples under the teacher, which does not change in a fit."""
        teacher = self.problem.fixed_teacher
        if teacher is None:
            return torch.empty(len(self.problem.targets), 0, dtype=torch.int64)
        features = self.local.features(teacher, self.problem.samples)
        return new_neighbours(features, self.problem.newest, self.config.neighbours).cpu()

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        net, teacher, labels = self.problem.net, self.problem.teacher_logits(images, rows), self.problem.targets[rows]
        around = self._neighbour_logits(rows)
        features = net.extract(images)
        self.momentum = momentum_step(self.momentum, features)
        logits = net.head(features)
        classified = joint_nll(self.own_logits(logits), self.own_logits(around), labels).mean()
        if teacher is None:
            return classified
        return classified + distillation(logits, teacher, self.config.temperature).mean()

    def _neighbour_logits(self, rows: Tensor) -> Tensor:
        """Return the logits of each sample's neighbours, each distinct one computed once, without gradients."""
        near = self.neighbours[rows.cpu()]
        distinct, places = torch.unique(near, return_inverse=True)
        classes = self.problem.context.classes
        if len(distinct) == 0:
            return torch.empty(len(rows), 0, classes, device=self.local.machine.device)
        images = self.local.batch(self.problem.net, self.problem.samples[distinct], self.draw)
        trains = self.problem.net.training
        with torch.no_grad():
            net = self.problem.net.eval()  # with statistics of neighbours, batch norm would learn them
            logits = torch.cat([net(part) for part in torch.split(images, CHUNK)])
        self.problem.net.train(trains)
        found: Tensor = logits[places.to(logits.device)]
        return found

    def parts(self) -> dict[str, Weighted]:
        """Return the momentum, once there is an old model for whose sake it is removed."""
        return {MOMENTUM: Weighted(self.momentum.float().cpu(), ONE)} if self.problem.teacher is not None else {}


class EffectServer(AveragingServer[EffectState]):
    """Averages the momenta and takes their effect out of the head that predicts."""

    needs: frozenset[Need] = frozenset({"parts"})

    def __init__(self, config: DDEConfig) -> None:
        super().__init__(EffectState())
        self.effect = config.effect

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        size = sent["head.weight"].shape[1]
        return ReportLayout(sent, self.counted_rows, {MOMENTUM: PartLayout((size,), LARGEST, heaviest=1.0)})

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if MOMENTUM not in report.parts:
            return only_parts(report, set())
        part, size = report.parts[MOMENTUM], sent["head.weight"].shape[1]
        return only_parts(report, {MOMENTUM}) or validate_part(MOMENTUM, part, (size,), (), LARGEST, heaviest=1.0)

    def round(
        self, state: EffectState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[EffectState, ModelState]:
        if MOMENTUM in aggregate.parts and context.old_classes:
            # a mean of zero stays zero and removes nothing
            state = EffectState(F.normalize(aggregate.parts[MOMENTUM].mean(), dim=0).float())
        return super().round(state, model, aggregate, context)

    def predictor(self, state: EffectState, model: ModelState) -> ModelState:
        if state.direction is None:
            return model
        return {**model, "head.weight": without_effect(model["head.weight"], state.direction, self.effect)}


def build(config: DDEConfig, setting: Setting) -> Roles:
    """Return the roles of DDE + iCaRL."""
    client = RehearsalClient(config, setting, DDE, teacher=newest_older_model)
    return Roles(client, config.server(EffectServer(config)))


register_method(Method("dde", "iCaRL with colliding and momentum effects (CVPR 2021)", DDEConfig, build))
