"""Re-Fed (CVPR 2024): keeps the samples with the largest gradients under a model trained on the client's own past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fcil.core.messages import Broadcast, derive_seed, generator
from fcil.data.exemplar_memory import Memory
from fcil.maths.importance import accumulated, head_gradient_norms, network_gradient_norms, pull_strength, pulled
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Current, Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import MemoryConfig
from fcil.methods.local_objective import UnclippedObjective
from fcil.methods.server import plain_server
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.trainer import CHUNK, shuffled

STEEPEST = 2.0  # eta q from which on the explicit pull does not come nearer


class ReFedConfig(MemoryConfig):
    """Settings of the informative model; the paper's own numbers are not verified."""

    passes: int = Field(5, ge=1, le=1000, description="s: passes of the informative model over a client's past data")
    personalisation: float = Field(
        0.5,
        gt=0,
        le=1,
        description="lambda: the smaller, the stronger the informative model is pulled to the global one; "
        "q = (1 - lambda) / (2 lambda)",
    )
    informative_rate: float = Field(0.01, gt=0, description="eta: learning rate of the informative model")
    informative_batch: int = by_edition(128, ge=1)  # samples per step of the informative model
    # the pull to the global model, at the end of a step or, as in the sources, at its beginning
    pull: Literal["implicit", "explicit"] = by_edition("implicit")
    # the gradient that counts at a sample: of the last layer, or of the whole network
    gradient: Literal["head", "network"] = by_edition("head")
    # class: every class keeps an equal share of the memory; none: the samples that count most
    quota: Literal["class", "none"] = by_edition("class")

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **MemoryConfig.editions,
        "released": {"pull": "explicit", "gradient": "network", "quota": "none"},
    }

    @field_validator("pull")
    @classmethod
    def _converges(cls, value: str, info: ValidationInfo) -> str:
        """Refuse an explicit pull that throws the model farther than it was."""
        share, rate = info.data.get("personalisation"), info.data.get("informative_rate")
        if value == "explicit" and share and rate and rate * pull_strength(share) >= STEEPEST:
            raise ValueError(
                f"'implicit' where method.informative_rate is {rate:g} and method.personalisation {share:g}: an "
                "explicit pull that strong diverges; take another edition"
            )
        return value


class Informative:
    """Trains a client's informative model on all its past data, and keeps the most important samples under it."""

    def __init__(self, config: ReFedConfig) -> None:
        self.config = config

    def __call__(
        self,
        memory: Memory,
        finished: Tensor,
        budget: int,
        broadcast: Broadcast,
        current: Current,
        local: ClientContext,
    ) -> Memory:
        """Return the memory; exemplars are judged again, beside the samples that have just gone out of use."""
        past = torch.unique(torch.cat([memory.indices, finished]))
        best = past[self.importance(past, broadcast, current, local).argsort(descending=True, stable=True)]
        labels = local.samples.labels(best)
        classes = sorted({*memory.classes, *labels.tolist()})
        if self.config.quota == "none":
            best, labels = best[:budget], labels[:budget]
            return Memory(tuple(classes), tuple(best[labels == label] for label in classes))
        return Memory().with_classes({label: best[labels == label] for label in classes}, budget)

    def importance(self, past: Tensor, broadcast: Broadcast, current: Current, local: ClientContext) -> Tensor:
        """Return how much each sample counts."""
        # In evaluation mode: a sample's gradient must not depend on its batch, nor the statistics leave the global ones
        net = local.machine.net(current.models[broadcast.model])
        if self.config.gradient == "network":
            net.layout = torch.contiguous_format  # vmap knows no other
        targets = local.samples.outputs(past, broadcast.context).to(local.machine.device)
        anchor = [parameter.detach().clone() for parameter in net.parameters() if parameter.requires_grad]
        draw, norms = generator(derive_seed(current.seed, "informative")), []
        for _ in range(self.config.passes):
            for rows in shuffled(torch.arange(len(past)), self.config.informative_batch, draw):
                self._step(net, local.inputs(net, past[rows]), targets[rows], anchor)
            norms.append(self._norms(net, past, targets, local))
        return accumulated(norms).cpu()

    def _step(self, net: Classifier, images: Tensor, targets: Tensor, anchor: list[Tensor]) -> None:
        parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(cross_entropy(net(images), targets).mean(), parameters)
        rate, pull = self.config.informative_rate, pull_strength(self.config.personalisation)
        with torch.no_grad():
            for parameter, gradient, start in zip(parameters, gradients, anchor, strict=True):
                parameter.copy_(pulled(parameter, gradient, start, rate, pull, self.config.pull == "explicit"))

    def _norms(self, net: Classifier, past: Tensor, targets: Tensor, local: ClientContext) -> Tensor:
        """Return the norm of the gradient at each sample."""
        found = []
        for rows in torch.split(torch.arange(len(past)), CHUNK):
            images, labels = local.inputs(net, past[rows]), targets[rows]
            if self.config.gradient == "network":
                found.append(network_gradient_norms(net, images, labels))
                continue
            with torch.no_grad():
                features = net.extract(images)
                found.append(head_gradient_norms(features, net.head(features), labels))
        return torch.cat(found)


class ReFed(UnclippedObjective[ReFedConfig]):
    """Softmax cross-entropy on memory and new data alike."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        return cross_entropy(self.problem.net(images), self.problem.targets[rows]).mean()


def build(config: ReFedConfig, setting: Setting) -> Roles:
    """Return the roles of Re-Fed."""
    return Roles(RehearsalClient(config, setting, ReFed, curator=Informative(config)), plain_server())


register_method(
    Method("re-fed", "exemplars by their gradients under a model of the client's past (CVPR 2024)", ReFedConfig, build)
)
