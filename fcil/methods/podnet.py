"""PODNet (ECCV 2020) in federated form: proxies of each class, and pooled feature maps distilled at every stage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, ReportLayout
from fcil.core.messages import Message, ModelState, Report, RoundContext, derive_seed, generator
from fcil.core.stopwatch import timed
from fcil.maths.pooled import (
    MARGIN,
    imprint,
    nca_loss,
    pod_factor,
    pod_flat,
    pod_spatial,
    undersampled_rows,
)
from fcil.methods.base import Extra, Method, Roles, Setting, by_edition, register_method, staged
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.methods.server import AveragingServer, newest_older_model
from fcil.models.classifier import ProxyHead
from fcil.models.client_context import ClientContext
from fcil.models.config import Head, ModelConfig
from fcil.models.optimiser import Descent, Optimiser
from fcil.models.trainer import shuffled

TUNED_SHARE = 8  # the balanced fine-tune takes an eighth of the local epochs: 20 of 160 in the source
PROXY = "head.weight"


class PODNetConfig(RehearsalConfig):
    """The source's weights for CIFAR-100."""

    spatial_weight: float = Field(3.0, ge=0, description="lambda_c, weight of the pooled maps' distillation")
    flat_weight: float = Field(1.0, ge=0, description="lambda_f, weight of the features' distillation")
    # the NCA loss as released, or as in the paper, where the margin drives the scale to zero
    nca: Literal["paper", "official"] = by_edition("official")
    margin: float = by_edition(MARGIN, ge=0)  # delta of the NCA loss; it cancels in the released form
    # learning rate of the balanced fine-tuning, as a share of the initial one
    tuned_rate: float = by_edition(0.5, gt=0)

    native: ClassVar[Optimiser] = Optimiser(0.1, 0.9, 5e-4, epochs=160, cosine=True, clamp=5.0)
    head: ClassVar[Head] = "proxies"

    def sends(self) -> dict[str, str]:
        return {PROXY: "which classes it trained on", **super().sends()}

    def network(self, model: ModelConfig) -> ModelConfig:
        chosen = staged(super().network(model))
        reads = chosen.network.reads  # one without such an activation is taken as it is
        return chosen.model_copy(update={"last_relu": chosen.last_relu and "last_relu" not in reads})


@dataclass(frozen=True)
class TaughtOutputs(Message):
    """The outputs whose proxies some client has trained."""

    outputs: tuple[int, ...] = ()


class PODNet(UnclippedObjective[PODNetConfig]):
    """L_nca + sqrt(C / C_new) (lambda_c L_spatial + lambda_f L_flat); old proxies rest until the fine-tune."""

    def __init__(self, config: PODNetConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.head = cast(ProxyHead, problem.net.head)
        self.old = problem.context.old_classes
        self.resting = self.head.weight.detach()[: self.old].clone()
        self.owned = torch.unique(problem.targets).cpu()
        if self.old:
            self._imprint()
            self.hold = self.head.weight.register_hook(self._without_old)  # type: ignore[no-untyped-call]

    def _imprint(self) -> None:
        """Give new classes without training the centres of their features as proxies."""
        sent = self.problem.sent(TaughtOutputs)
        taught = sent.outputs if sent else ()
        draw = generator(derive_seed(self.problem.seed, "imprint"))
        for output in self.owned[self.owned >= self.old].tolist():
            if output not in taught:
                members = self.problem.samples[(self.problem.targets == output).cpu()]
                features = self.local.features(self.problem.net, members)
                with torch.no_grad():
                    self.head.weight[output] = imprint(features, draw, existing=self.resting)

    def _without_old(self, gradient: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(gradient[: self.old]), gradient[self.old :]])

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        net, teacher, context = self.problem.net, self.problem.fixed_teacher, self.problem.context
        if teacher is not None:
            with timed("teacher"), torch.no_grad():
                old_maps = teacher.maps(images)
                old_features = teacher.pool(old_maps)
        maps = net.maps(images)
        features = net.pool(maps)
        classified = self._classified(features, self.problem.targets[rows])
        if teacher is None:
            return classified
        spatial, flat = pod_spatial(maps, old_maps).mean(), pod_flat(features, old_features).mean()
        factor = pod_factor(context.classes, context.classes - context.old_classes)
        return classified + factor * (self.config.spatial_weight * spatial + self.config.flat_weight * flat)

    def _classified(self, features: Tensor, labels: Tensor) -> Tensor:
        scores = self.head.similarities(features)
        return nca_loss(scores, labels, self.head.scale.abs(), nca=self.config.nca, margin=self.config.margin).mean()

    def finish(self) -> None:
        """Put the old proxies back, whose length weight decay has changed, and tune all on a balanced set."""
        if not self.old:
            return
        self.hold.remove()
        with torch.no_grad():
            self.head.weight[: self.old] = self.resting
        problem, draw = self.problem, generator(derive_seed(self.problem.seed, "fine-tune"))
        rows = undersampled_rows(problem.targets.cpu(), draw)
        features = self.local.features(problem.net, problem.samples[rows])
        labels, optimiser = problem.targets[rows], problem.optimiser
        rate = self.config.tuned_rate * optimiser.learning_rate
        descent = Descent(self.head.parameters(), optimiser.momentum, optimiser.weight_decay)
        for _ in range(math.ceil(self.local.machine.train.epochs / TUNED_SHARE)):
            for batch in shuffled(torch.arange(len(rows)), self.local.machine.train.batch_size, draw):
                descent.zero_grad()
                self._classified(features[batch], labels[batch]).backward()  # type: ignore[no-untyped-call]
                descent.step(rate)

    def row_weights(self) -> dict[str, Tensor]:
        """Let the client have a say in the proxies of its own classes alone."""
        owned = torch.zeros(self.problem.context.classes, dtype=torch.float64)
        owned[self.owned] = 1.0
        return {PROXY: owned}


class OwnersServer(AveragingServer[TaughtOutputs]):
    """Averages the proxies of a class over the clients that own it; without an owner they stay as they are."""

    needs: frozenset[Need] = frozenset({"rows"})

    def extra(self, state: TaughtOutputs, context: RoundContext) -> Extra:
        return Extra(state) if context.old_classes else Extra()

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        return ReportLayout(sent, (PROXY,))

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if report.parts or report.rows.keys() != {PROXY}:
            return f"it should send the rows of {PROXY} that it owns and nothing else"
        weights = report.rows[PROXY]
        if weights.shape != (context.classes,) or not bool(((weights == 0) | (weights == 1)).all()):  # false of NaN too
            return f"it should weigh each of the {context.classes} rows of {PROXY} by 0 or 1"
        return None

    def round(
        self, state: TaughtOutputs, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[TaughtOutputs, ModelState]:
        if PROXY in aggregate.rows:
            taught = (aggregate.rows[PROXY] > 0).nonzero().squeeze(1).tolist()
            state = TaughtOutputs(tuple(sorted({*state.outputs, *taught})))
        return super().round(state, model, aggregate, context)


def build(config: PODNetConfig, setting: Setting) -> Roles:
    """Return the roles of PODNet."""
    client = RehearsalClient(config, setting, PODNet, teacher=newest_older_model)
    return Roles(client, OwnersServer(TaughtOutputs()))


register_method(
    Method("podnet", "proxies of each class and distillation of pooled maps (ECCV 2020)", PODNetConfig, build)
)
