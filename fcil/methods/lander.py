"""LANDER (Tran et al., CVPR 2024): TARGET, with features near fixed anchors of the labels on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import torch
from pydantic import Field, field_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fcil.core.errors import ConfigError, FederationError, reason
from fcil.core.files import with_home
from fcil.core.messages import ModelState, RoundContext, Shape, derive_seed
from fcil.maths.anchors import anchor_loss, balanced_labels, random_anchors, renormalised, shares
from fcil.maths.distillation import distillation
from fcil.methods.base import Extra, Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Problem
from fcil.methods.server import newest_older_model
from fcil.methods.synthesis import BETAS, Student, Synthesis, SyntheticBatch
from fcil.methods.synthetic_replay import PoolConfig, PoolObjective, PoolServer, PoolState, SyntheticPool
from fcil.models.classifier import Classifier, MappedHead
from fcil.models.client_context import ClientContext
from fcil.models.config import Head, ModelConfig
from fcil.models.generator import GROUP, AnchoredGenerator, ImageShape, drawn, xavier
from fcil.models.optimiser import Adam, Optimiser
from fcil.models.trainer import Trainer

RANDOM = "random"
INPUT_MEAN, INPUT_DEVIATION = 0.5, 0.2  # that the learned normalisation begins with


class LanderConfig(PoolConfig):
    """The published settings unless said otherwise."""

    anchors: str = Field(
        RANDOM,
        description="a safetensors file with 512 numbers per class id, such as a text embedding of the label; random: "
        "fixed normal vectors, which know nothing of the labels",
    )
    anchor_size: int = by_edition(512, ge=1)
    radius: float = by_edition(0.015, ge=0)  # mean squared difference from the anchors that costs nothing
    anchor_weight: float = Field(5.0, ge=0, description="weight of the anchor loss, for clients and generator")
    current_weight: float = by_edition(0.2, ge=0)  # kappa_cur's constant
    distillation_weight: float = by_edition(0.4, ge=0)  # kappa_pre's constant
    images: int = Field(10_000, ge=4, le=1_000_000, description="synthetic images in the pool, at most")
    calls: int = Field(
        41, ge=1, le=100_000, description="batches that the generator makes, the last of which are the pool"
    )
    warm_up: int = by_edition(9, ge=0)
    generator_steps: int = Field(40, ge=1, le=100_000, description="steps of the generator per batch")
    statistics_weight: float = by_edition(1.0, ge=0)
    # the generator's normalisation: learned, as released, although nobody else knows it, or the network's own
    learned_normalisation: bool = by_edition(False)
    adversarial_from: int = by_edition(3, ge=1)
    student_lead: int = by_edition(2, ge=0)

    head: ClassVar[Head] = "mapped"
    native: ClassVar[Optimiser] = Optimiser(0.04, 0.9, 5e-4, epochs=200, cosine=True, last=0.025)
    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": DetectionConfig.editions["fcil"],
        "released": {"generator_width": 64, "student_rate": 0.1, "learned_normalisation": True},
    }

    @field_validator("anchors")
    @classmethod
    def _names_a_file(cls, value: str) -> str:
        if not value or "\0" in value:
            raise ValueError("random, or the name of a file")
        return with_home(value)

    def network(self, model: ModelConfig) -> ModelConfig:
        return super().network(model).model_copy(update={"projection": self.anchor_size})


@dataclass(frozen=True)
class AnchoredPool(SyntheticPool):
    """The anchors of all classes, in the order of the outputs, and the digest of the pool, if there is one."""

    anchors: Annotated[Tensor, Shape(("classes", "size"), torch.float16)]


def mapped(net: Classifier, features: Tensor) -> Tensor:
    """Return a(x), which anchors are compared with."""
    found: Tensor = cast(MappedHead, net.head).map(features)
    return found


# --- the client ---------------------------------------------------------------------------------------------------


class Lander(PoolObjective[LanderConfig]):
    """kappa_cur (L_CE among the newest outputs + 5 L_A) + kappa_pre (L_KD + distance of the mapped features).

    The second part is on the pool, and on real samples of older classes where a client has any.
    """

    gradient_limit: ClassVar[float | None] = 10.0  # the distances are squares

    def __init__(self, config: LanderConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        sent, wanted = problem.sent(AnchoredPool), (problem.context.classes, config.anchor_size)
        if sent is None or sent.anchors.shape != wanted:
            found = "none" if sent is None else " x ".join(map(str, sent.anchors.shape))
            raise FederationError(f"the server sent anchors {found}, should be {wanted[0]} x {wanted[1]}")
        self.anchors = sent.anchors.float().to(local.machine.device)

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        config, problem, newest = self.config, self.problem, self.newest(rows)
        net, context = problem.net, problem.context
        features = net.extract(images)
        anchors = self.anchors[problem.targets[rows][newest]]
        current = self.classified(net.head(features), rows)
        current = current + config.anchor_weight * anchor_loss(mapped(net, features[newest]), anchors, config.radius)
        if context.old_classes == 0:
            return current
        ahead, behind = shares(context.old_classes, context.classes, config.current_weight, config.distillation_weight)
        synthetic = self.beside()
        asked = torch.cat([images[~newest], *synthetic])
        if problem.teacher is None or len(asked) == 0:
            return ahead * current
        answers = torch.cat([features[~newest], *(net.extract(batch) for batch in synthetic)])
        return ahead * current + behind * self._previous(answers, problem.teacher, asked)

    def _previous(self, features: Tensor, teacher: Classifier, asked: Tensor) -> Tensor:
        """Return L_KD and the distance of the mapped features from the teacher's."""
        net = self.problem.net
        with torch.no_grad():
            known = teacher.extract(asked)
            wanted, place = teacher.head(known), mapped(teacher, known)
        distilled = distillation(net.head(features), wanted, self.config.temperature).mean()
        return distilled + nn.functional.mse_loss(mapped(net, features), place)


# --- the server ---------------------------------------------------------------------------------------------------


class LanderSynthesis(Synthesis[LanderConfig]):
    """Images begin at the anchors of their labels; as released, the networks see them by a learned normalisation."""

    def __init__(
        self,
        config: LanderConfig,
        model: ModelState,
        image_shape: ImageShape,
        anchors: Tensor,
        seed: int,
        machine: Trainer,
    ) -> None:
        super().__init__(config, model, seed, machine)
        self.anchors = anchors.float().to(machine.device)
        width, rows = config.generator_width or machine.model.width, config.synthesis_batch
        # Rows of one label that share a noisy layer would be one image.
        group = min(GROUP, self.classes)
        make = partial(AnchoredGenerator, config.anchor_size, config.latent, width, image_shape, rows, group)
        self.generator = drawn(make, derive_seed(seed, "generator"), xavier).to(machine.device)
        channels = (image_shape[0], 1, 1)
        self.mean = torch.full(channels, INPUT_MEAN, device=machine.device, requires_grad=True)
        self.deviation = torch.full(channels, INPUT_DEVIATION, device=machine.device, requires_grad=True)

    def new_student(self, seed: int) -> Student:
        return LanderStudent(self.config, self.teacher, seed, self.machine)

    def begin(self, draw: torch.Generator) -> SyntheticBatch:
        labels = balanced_labels(self.config.synthesis_batch, self.classes, draw).to(self.machine.device)
        self.generator.redraw(draw)
        return LanderBatch(self, labels)

    def shown(self, images: Tensor) -> Tensor:
        if not self.config.learned_normalisation:
            return images
        return renormalised(images, self.mean, self.deviation, self.teacher.mean, self.teacher.deviation)

    def label_loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        near = anchor_loss(mapped(self.teacher, features), self.anchors[labels], self.config.radius)
        return super().label_loss(features, logits, labels) + self.config.anchor_weight * near


class LanderBatch(SyntheticBatch):
    """The generator itself is fitted, and with it the normalisation where it is learned."""

    def __init__(self, synthesis: LanderSynthesis, labels: Tensor) -> None:
        self.synthesis, self.labels = synthesis, labels
        self.inner = Adam(synthesis.generator.parameters(), BETAS)
        learned = [synthesis.mean, synthesis.deviation] if synthesis.config.learned_normalisation else []
        self.fitting = Adam(learned, BETAS)

    def images(self) -> Tensor:
        images: Tensor = self.synthesis.generator(self.synthesis.anchors[self.labels])
        return images

    def step(self, value: Tensor) -> None:
        config = self.synthesis.config
        self.inner.zero_grad()
        self.fitting.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        self.inner.step(config.generator_rate)
        self.fitting.step(config.latent_rate)


class LanderStudent(Student):
    """A student that learns the teacher's mapped features as well, at a constant rate."""

    config: LanderConfig
    decay: ClassVar[float] = 2e-4

    def loss(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = mapped(self.teacher, self.teacher.extract(images))
        distance = nn.functional.mse_loss(mapped(self.net, self.net.extract(images)), wanted)
        return super().loss(images) + self.config.anchor_weight * distance

    def _rate(self, call: int) -> float:
        return self.config.student_rate


class LanderServer(PoolServer[LanderConfig]):
    """Sends the anchors with every broadcast, and makes the images by LANDER's synthesis."""

    def synthesis(self, model: ModelState, context: RoundContext, seed: int, machine: Trainer) -> LanderSynthesis:
        anchors = anchors_of(self.config, context.catalogue)
        return LanderSynthesis(self.config, model, self.image_shape, anchors, seed, machine)

    def extra(self, state: PoolState, context: RoundContext) -> Extra:
        plain = super().extra(state, context)
        digest = next(iter(plain.pools), "")
        return Extra(AnchoredPool(digest, anchors_of(self.config, context.catalogue)), plain.pools)


def anchors_of(config: LanderConfig, catalogue: Sequence[str]) -> Tensor:
    """Return the anchors of classes by their ids, in half precision."""
    if config.anchors == RANDOM:
        return random_anchors(catalogue, config.anchor_size).half()
    try:
        known = load_file(Path(config.anchors).expanduser())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"method.anchors: {config.anchors} cannot be read: {reason(error)}") from error
    for name in catalogue:
        shape = tuple(known[name].shape) if name in known else "nothing"
        if shape != (config.anchor_size,):
            raise ConfigError(
                f"method.anchors: {config.anchors} has {shape} for the class id {name}, should have "
                f"{config.anchor_size} numbers"
            )
    rows = [known[name] for name in catalogue]
    return torch.stack(rows).half() if rows else torch.empty(0, config.anchor_size, dtype=torch.float16)


def build(config: LanderConfig, setting: Setting) -> Roles:
    """Return the roles of LANDER."""
    config.check(setting)
    client = RehearsalClient(config, setting, Lander, teacher=newest_older_model)
    return Roles(client, LanderServer(config, setting.image_shape))


register_method(
    Method("lander", "target, with features near fixed anchors of the labels (CVPR 2024)", LanderConfig, build)
)
