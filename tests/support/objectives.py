"""One local fit of a method, built by hand, and the server's side of it, for tests that look inside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted
from fcil.data.datasets.dataset import Source
from fcil.data.samples import Samples
from fcil.experiment.build import agreed_model
from fcil.federation.aggregation import Aggregate, Mean
from fcil.federation.server import FederationConfig
from fcil.methods import Setting, get_method
from fcil.methods.client import RehearsalClient
from fcil.methods.local_objective import LocalObjective, Problem
from fcil.models import ModelConfig, grow, head_width, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.optimiser import Optimiser
from fcil.models.trainer import TrainConfig, Trainer
from fcil.testing import blobs

SOURCE = blobs(per_class=20)
IMAGES = SOURCE.test.images.float() / 255
MODEL = ModelConfig(width=2)
TRAIN = TrainConfig(epochs=2, batch_size=8, learning_rate=0.05)
SETTING_SECRET = 11
WITH_MOMENTUM = Optimiser(0.05, 0.9)


class Fixed(nn.Module):
    """A network that answers with given logits."""

    freeze = True  # used as it is

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def catalogue(classes: int) -> tuple[str, ...]:
    """Return the ids of the first classes."""
    return tuple(str(label) for label in range(classes))


def make_local(source: Source = SOURCE, model: ModelConfig = MODEL, train: TrainConfig = TRAIN) -> ClientContext:
    """Return a machine with a data set's training images."""
    return ClientContext.at(Samples.of(source), Trainer(agreed_model(model, source), train))


def gathered(sent: ModelState, reports: Sequence[Report], averaging: Any = "uniform") -> Aggregate:
    """Return what the server learns of reports."""
    gathering = Mean(FederationConfig(averaging=averaging)).gather(sent, 0, range(len(reports)))
    for client, report in enumerate(reports):
        gathering.add(client, report)
    return gathering.result()


class Workshop:
    """A machine, a method's roles, a model of `classes` outputs and an old one of `old`, which knows other weights."""

    def __init__(self, method: str, old: int, classes: int, source: Source = SOURCE, **fields: Any) -> None:
        self.method = method
        self.config = get_method(method).config(**fields)
        self.network = self.config.network(MODEL)
        self.local = make_local(source, self.network)
        self.setting = Setting(24, source.image_shape, SETTING_SECRET)
        self.roles = get_method(method).build(self.config, self.setting)
        self.context = RoundContext(3, catalogue(classes), (old, classes) if old else (classes,), 0)
        self.teacher = grow(initial_state(self.network, source.image_shape[0], 7), old, 8)
        self.model = grow(initial_state(self.network, source.image_shape[0], 0), classes, 1)

    def of_classes(self, *classes: int, each: int | None = None) -> Tensor:
        """Return the samples of some classes, the first `each` of every one."""
        labels = self.local.samples.split.labels
        return torch.cat([(labels == label).nonzero().squeeze(1)[:each] for label in classes])

    def objective(self, samples: Tensor, extra: Message | None = None, **more: Any) -> Any:
        """Return the local objective of a client that trains on these samples, with the old model as its teacher."""
        client = self.roles.client
        assert isinstance(client, RehearsalClient)
        taught = client.teacher is not None and head_width(self.teacher) > 0
        machine, targets = self.local.machine, self.local.samples.outputs(samples, self.context)
        problem = Problem(
            net=machine.net(self.model),
            teacher=machine.net(self.teacher).requires_grad_(False) if taught else None,
            targets=targets,
            old=targets < self.context.old_classes,
            has_history=self.context.old_classes > 0,
            context=self.context,
            samples=samples,
            extra=extra,
            optimiser=machine.train.optimiser(),
            **more,
        )
        return client.objective(self.config, problem, self.local)

    def fit(self, objective: Any, epochs: int = 2, rate: float = 0.05, seed: int = 4) -> Any:
        """Train the objective's network and return the objective."""
        samples = objective.problem.samples
        rates = [rate] * epochs
        self.local.machine.fit(
            objective.problem.net,
            self.local.samples,
            samples,
            objective.loss,
            rates,
            seed,
            WITH_MOMENTUM,
            objective.epoch,
        )
        objective.finish()
        return objective

    def pretrained(self, epochs: int = 8) -> Workshop:
        """Teach the old classes to the old model, and go on from it with a wider head."""
        first = Workshop(self.method, 0, self.context.old_classes)
        objective = first.fit(first.objective(first.of_classes(*range(self.context.old_classes))), epochs)
        self.teacher = state_of(objective)
        self.model = grow(self.teacher, self.context.classes, 2)
        return self

    def report(self, *, rows: dict[str, Tensor] | None = None, **parts: Weighted) -> Report:
        """Return a report of the model itself with these parts."""
        return Report(self.model, 40, rows or {}, parts)

    def objection(self, report: Report) -> str | None:
        """Return what the server has against a report."""
        return self.roles.server.refusal(report, self.model, self.context)

    def round(self, state: Message, reports: Sequence[Report]) -> tuple[Any, ModelState]:
        """Return what the server makes of sound reports."""
        assert [self.objection(report) for report in reports] == [None] * len(reports)
        return self.roles.server.round(state, self.model, gathered(self.model, reports), self.context)

    def logits(self, model: ModelState) -> Tensor:
        """Return the logits of the test images."""
        with torch.no_grad():
            logits: Tensor = self.local.machine.net(model)(IMAGES)
        return logits


def state_of(objective: LocalObjective[Any]) -> ModelState:
    """Return the weights of an objective's network."""
    return {name: value.detach().clone() for name, value in objective.problem.net.state_dict().items()}


def weighted(value: Tensor | list[float], weight: float | list[float] = 1.0) -> Weighted:
    """Return a part of a report."""
    return Weighted(torch.as_tensor(value), torch.tensor(weight, dtype=torch.float64))
