"""MFCL (Babakniya et al., NeurIPS 2023): the server trains a generator, from which clients draw old images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import Message, ModelState, RoundContext, derive_seed, generator, model_digest
from fcil.maths.generated import balance_loss, gaussian_gap, roughness, weighted_distance
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Extra, Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Problem
from fcil.methods.server import AveragingServer, newest_older_model
from fcil.methods.synthesis import GeneratorConfig
from fcil.methods.synthetic_replay import NewestObjective
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.generator import ImageShape, NormalisedGenerator, drawn, load_generator
from fcil.models.optimiser import Adam, Optimiser
from fcil.models.statistics import BatchStatistics
from fcil.models.trainer import FEWEST, Trainer


class MfclConfig(GeneratorConfig):
    """The published settings unless said otherwise."""

    synthesis_batch: int = Field(128, ge=FEWEST, le=4096, description="synthetic images per step of the generator")
    generator_steps: int = Field(100, ge=1, le=100_000, description="steps of the generator at the end of a block")
    latent: int = by_edition(1000, ge=1, le=4096)
    generator_rate: float = by_edition(1e-3, gt=0)
    statistics_weight: float = by_edition(50.0, gt=0)
    label_temperature: float = Field(
        1000.0, gt=0, description="divisor of the logits in the generator's label loss; 1000 nearly removes it"
    )
    balance_weight: float = by_edition(1.0, ge=0)
    smoothness_weight: float = by_edition(1e-3, ge=0)
    replay_ratio: int = Field(4, ge=1, le=64, description="synthetic images beside each real one, in every batch")
    head_weight: float = by_edition(1.0, ge=0)  # of the cross-entropy over all outputs, which trains the head alone
    distillation_weight: float = by_edition(0.1, ge=0)  # of the distance of the features
    # passes of a batch through the network: the released code's second one counts in batch norm's statistics again
    passes: Literal[1, 2] = by_edition(1)

    native: ClassVar[Optimiser] = Optimiser(0.1, 0.0, 1e-5, epochs=1000, exponential=True, last=0.1)
    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": DetectionConfig.editions["fcil"],
        "released": {"generator_width": 64, "passes": 2},
    }


@dataclass(frozen=True)
class SentGenerator(Message):
    """Tells participants which of the states sent by digest is a generator of images of all old classes."""

    digest: str


@dataclass(frozen=True)
class GeneratorState(Message):
    """The generator as it was when the last block ended; empty before."""

    generator: ModelState = field(default_factory=dict)


# --- the client ---------------------------------------------------------------------------------------------------


class Mfcl(NewestObjective[MfclConfig]):
    """L_CE among the newest outputs + L_FT over all outputs, for the head alone + a distance of features.

    L_FT and the distance cover real and synthetic images; the latter are of the class that the teacher names.
    """

    gradient_limit: ClassVar[float | None] = 10.0  # the distance is a square

    def __init__(self, config: MfclConfig, problem: Problem, local: ClientContext, image_shape: ImageShape) -> None:
        super().__init__(config, problem, local)
        self.draw = generator(derive_seed(problem.seed, "generator"))
        sent, self.generator = problem.sent(SentGenerator), None
        if sent is not None and problem.teacher is not None:
            state, width = problem.pools[sent.digest], config.generator_width or local.machine.model.width
            try:
                made = load_generator(config.latent, width, image_shape, state)
            except ValueError as error:
                raise FederationError(str(error)) from error
            self.generator = made.to(local.machine.device)

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        config, net, teacher = self.config, self.problem.net, self.problem.teacher
        if teacher is None:
            return self.classified(net(images), rows)
        synthetic = self.beside(len(images))
        given = torch.cat([images, *synthetic])
        with torch.no_grad():
            old_features = teacher.extract(given)
            old_logits = teacher.head(old_features[len(images) :])
        features = net.extract(given)
        labels = torch.cat([self.problem.targets[rows], old_logits.argmax(1)])
        finetuned = cross_entropy(net.head(self._again(given, features)), labels).mean()
        distance = weighted_distance(features, old_features, teacher.head.weight).mean()
        classified = self.classified(net.head(features[: len(images)]), rows)
        return classified + config.head_weight * finetuned + config.distillation_weight * distance

    def beside(self, real: int) -> list[Tensor]:
        """Return synthetic images for a batch of so many real ones, if there is a generator."""
        if self.generator is None:
            return []
        net, device = self.problem.net, self.local.machine.device
        noise = torch.randn(real * self.config.replay_ratio, self.config.latent, generator=self.draw)
        with torch.no_grad():
            images = as_images(self.generator, noise.to(device), net)
            return [net.prepare(images) if net.freeze else images]

    def _again(self, given: Tensor, features: Tensor) -> Tensor:
        """Return the features without a gradient, as released from a pass of their own."""
        if self.config.passes == 1:
            return features.detach()
        with torch.no_grad():
            return self.problem.net.extract(given)


def as_images(made: NormalisedGenerator, noise: Tensor, net: Classifier) -> Tensor:
    """Return images that a network's normalisation turns back into the generator's output; not all are in [0, 1]."""
    images: Tensor = made(noise) * net.deviation + net.mean
    return images


# --- the server ---------------------------------------------------------------------------------------------------


class MfclServer(AveragingServer[GeneratorState]):
    """Averages the models, and trains the generator further when a block ends."""

    def __init__(self, config: MfclConfig, image_shape: ImageShape) -> None:
        super().__init__(GeneratorState())
        self.config = config
        self.image_shape = image_shape

    def settle(
        self, state: GeneratorState, model: ModelState, context: RoundContext, seed: int, machine: Trainer
    ) -> GeneratorState:
        width = self.config.generator_width or machine.model.width
        if state.generator:
            made = load_generator(self.config.latent, width, self.image_shape, state.generator)
        else:
            fresh = partial(NormalisedGenerator, self.config.latent, width, self.image_shape)
            made = drawn(fresh, derive_seed(seed, "generator"))
        train_generator(self.config, made.to(machine.device), machine.net(model), derive_seed(seed, "noise"))
        return GeneratorState({name: tensor.detach().cpu() for name, tensor in made.state_dict().items()})

    def extra(self, state: GeneratorState, context: RoundContext) -> Extra:
        if not state.generator:
            return Extra()
        digest = model_digest(state.generator)
        return Extra(SentGenerator(digest), {digest: state.generator})


def train_generator(config: MfclConfig, made: NormalisedGenerator, teacher: Classifier, seed: int) -> None:
    """Train a generator in place until the network takes its images for its data."""
    teacher.requires_grad_(False)
    statistics, draw = BatchStatistics(teacher), generator(seed)
    made.requires_grad_(True).train()
    adam = Adam(made.parameters())
    for _ in range(config.generator_steps):
        noise = torch.randn(config.synthesis_batch, config.latent, generator=draw).to(teacher.mean.device)
        images = as_images(made, noise, teacher)
        value = generator_loss(config, (images - teacher.mean) / teacher.deviation, teacher(images), statistics)
        adam.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        adam.step(config.generator_rate)


def generator_loss(config: MfclConfig, normalised: Tensor, logits: Tensor, statistics: BatchStatistics) -> Tensor:
    """Return the label loss + balance + distance from batch norm's statistics + roughness of a batch."""
    label = cross_entropy(logits / config.label_temperature, logits.argmax(1)).mean()
    pairs = zip(statistics.given(), statistics.kept, strict=True)
    gap = torch.stack([gaussian_gap(*found, *wanted) for found, wanted in pairs]).mean()
    value = label + config.balance_weight * balance_loss(logits) + config.statistics_weight * gap
    return value + config.smoothness_weight * roughness(normalised).mean()


def build(config: MfclConfig, setting: Setting) -> Roles:
    """Return the roles of MFCL."""
    objective = partial(Mfcl, image_shape=setting.image_shape)
    client = RehearsalClient(config, setting, objective, teacher=newest_older_model)
    return Roles(client, MfclServer(config, setting.image_shape))


register_method(
    Method("mfcl", "a generator of old images is trained by the server and sent (NeurIPS 2023)", MfclConfig, build)
)
