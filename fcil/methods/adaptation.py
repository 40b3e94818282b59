"""First-block adaptation: federated averaging trains a network's last stage, before features are summed.

After STSA (WWW 2026), with the loss of Mosaic. As long as it lasts, the model that is broadcast has outputs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.messages import Broadcast, Diagnostics, Order, Reply
from fcil.maths.analytic import projected
from fcil.maths.owned import class_counts, counted_cross_entropy
from fcil.methods.base import ClientRole, Current, Setting, staged
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import FitConfig
from fcil.methods.ledger import SampleLedger
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.models.classifier import WEIGHT, head_width
from fcil.models.client_context import ClientContext
from fcil.models.config import ModelConfig
from fcil.models.optimiser import COSINE, Optimiser

SCALE = 8.0  # from cosines to logits, as in mosaic


def all_but_the_last_stage(model: ModelConfig) -> str:
    """Return the value of `model.freeze` with which the last stage alone is trained."""
    with torch.device("meta"):
        backbone = staged(model).network.build(model.blueprint(model.network.channels or 1))
    stages = getattr(backbone, "stages", ())
    if len(stages) < 2:
        raise ValueError(f"method.adapt: found last-stage, should be none: model.name {model.name} has no last stage")
    return f"stages:{len(stages) - 1}"


class AdaptationConfig(FitConfig):
    """The optimiser of the adaptation: Mosaic's, over its rounds."""

    rounds: int

    def chosen_optimiser(self, local: ClientContext) -> Optimiser:
        return COSINE.over(self.rounds * local.machine.train.epochs)


class Adaptation(UnclippedObjective[AdaptationConfig]):
    """Mosaic's classification loss: counted cross-entropy over the client's own classes, on cosines."""

    def __init__(self, config: AdaptationConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.counts = class_counts(problem.targets, problem.context.classes)

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        net, features = self.problem.net, self.problem.net.extract(images)
        matrix = getattr(net.head, "projection", None)
        seen = features if matrix is None else projected(features, matrix)
        logits = SCALE * F.linear(F.normalize(seen), F.normalize(net.head.weight))
        return counted_cross_entropy(logits, self.problem.targets[rows], self.counts).mean()

    def row_weights(self) -> dict[str, Tensor]:
        """Give each row of the head the weight of the client's samples of its class."""
        return {WEIGHT: self.counts.cpu().double()}


class AdaptingClient(ClientRole[SampleLedger]):
    """A client that trains the last stage as long as it is sent outputs, and then goes on as the one within."""

    def __init__(self, inner: ClientRole[SampleLedger], setting: Setting, rounds: int) -> None:
        self.inner = inner
        self.trains = RehearsalClient(AdaptationConfig(rounds=rounds), setting, Adaptation)

    def init(self) -> SampleLedger:
        return self.inner.init()

    def round(
        self, state: SampleLedger, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[SampleLedger, Reply, Diagnostics]:
        adapts = head_width(current.models[broadcast.model]) > 0
        asked = replace(order, participate=order.participate and not adapts)
        state, reply, measured = self.inner.round(state, broadcast, asked, current, local)
        if adapts and order.participate:
            _, reply, found = self.trains.round(self.trains.init(), broadcast, order, current, local)
            measured = replace(measured, loss=found.loss)
        return state, reply, measured

    def in_use(self, state: SampleLedger) -> Tensor:
        return self.inner.in_use(state)

    def placed(self, state: SampleLedger) -> Tensor:
        return self.inner.placed(state)

    def withdraw(self, state: SampleLedger, samples: Tensor) -> SampleLedger:
        return self.inner.withdraw(state, samples)
