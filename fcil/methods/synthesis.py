"""A server's pool of synthetic images: a generator is trained until the global network takes them for its data.

This is data-free knowledge distillation as TARGET and LANDER run it. The network at the end of a block is frozen and
teaches. In each call the generator is fitted for some steps to make one batch of images. Later calls also look for
images that a student, which learns from the pool so far, still gets wrong.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.messages import ModelState, derive_seed, generator
from fcil.data.augment import as_floats, augment
from fcil.maths.distillation import distillation
from fcil.maths.losses import cross_entropy
from fcil.maths.synthesis import Where, adversarial_loss, blended, statistics_gap
from fcil.methods.base import by_edition
from fcil.methods.detection import DetectionConfig
from fcil.models.classifier import Classifier, grow, head_width, initial_state
from fcil.models.optimiser import Descent
from fcil.models.statistics import BatchStatistics, Statistics, has_batch_norm
from fcil.models.trainer import FEWEST, Trainer

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig

Config = TypeVar("Config", bound="SynthesisConfig")
BETAS = (0.5, 0.999)  # of Adam, for the generator and its noise
STUDENT_LAST = 1e-3  # share of its rate that the student ends with
STUDENT_MOMENTUM = 0.9


class GeneratorConfig(DetectionConfig):
    """Settings of a generator that the server trains at the end of a block."""

    images_only = True

    synthesis_batch: int = Field(256, ge=FEWEST, le=4096, description="synthetic images per batch")
    # channels of the generator's last layer; None: as many as model.width
    generator_width: int | None = by_edition(None, ge=1, le=512)
    latent: int = by_edition(256, ge=1, le=4096)  # numbers of noise per synthetic image
    generator_steps: int = Field(10, ge=1, le=100_000, description="steps of the generator per batch")
    generator_rate: float = by_edition(2e-3, gt=0)  # rate of the generator's steps, by Adam
    statistics_weight: float = by_edition(10.0, ge=0)  # weight of the distance from batch norm's statistics

    def network(self, model: ModelConfig) -> ModelConfig:
        chosen = super().network(model)
        if self.statistics_weight and not has_batch_norm(chosen):
            wrong = f"model.name: found {model.name}, should be a network with batch norm"
            if "norm" in model.network.reads:
                wrong = f"model.norm: found {model.norm}, should be batch"
            unless = ", or method.statistics_weight 0," if "statistics_weight" in self.settings() else ","
            raise ValueError(wrong + unless)
        return chosen


class SynthesisConfig(GeneratorConfig):
    """Settings of the server's pool of images; the defaults are the published ones unless said otherwise."""

    images: int = Field(8000, ge=FEWEST, le=1_000_000, description="synthetic images in the pool, at most")
    calls: int = Field(
        40, ge=1, le=100_000, description="batches that the generator makes, the last of which are the pool"
    )
    warm_up: int = by_edition(0, ge=0)  # batches before these, which are no part of the pool
    latent_rate: float = by_edition(0.01, gt=0)  # rate at which the noise itself is fitted, by Adam
    statistics_weight: float = Field(
        10.0, ge=0, description="weight of L_bn, the distance from batch norm's statistics; a network without needs 0"
    )
    statistics_momentum: float = by_edition(0.9, ge=0, lt=1)  # share of earlier batches in these statistics
    label_weight: float = by_edition(0.5, ge=0)  # weight of the cross-entropy with the drawn labels
    # weight of L_adv, which looks for images that a student gets wrong
    adversarial_weight: float = by_edition(1.0, ge=0)
    adversarial_from: int = by_edition(20, ge=1)  # first batch of the pool, counted from 0, with L_adv
    student_lead: int = by_edition(0, ge=0)  # batches before it with a student already
    # images that count in L_adv: where student and network agree, as released, or differ
    adversarial_where: Where = by_edition("agree")
    student_steps: int = Field(50, ge=1, le=1_000_000, description="steps of the student per batch; 400 in the source")
    student_rate: float = Field(
        0.05,
        gt=0,
        description="first rate of the student, by SGD; 0.1 (lander) and 0.2 (target) in the sources, too high for "
        "narrow networks",
    )
    student_temperature: float = by_edition(20.0, gt=0)  # temperature at which the student learns


class SyntheticBatch(ABC):
    """One batch of images in the making."""

    labels: Tensor  # that the network should find in them

    @abstractmethod
    def images(self) -> Tensor:
        """Return the images as they are by now, with values in [0, 1]."""

    @abstractmethod
    def step(self, value: Tensor) -> None:
        """Move so that the loss falls."""

    def end(self) -> None:
        """Run after the last step."""
        return


class Synthesis(ABC, Generic[Config]):
    """Makes images for one finished model; every draw follows from the seed."""

    def __init__(self, config: Config, model: ModelState, seed: int, machine: Trainer) -> None:
        self.config, self.seed, self.machine = config, seed, machine
        self.teacher = machine.net(model).requires_grad_(False)
        self.classes = head_width(model)
        self.statistics = BatchStatistics(self.teacher)
        self.kept: list[Statistics] | None = None  # a running mean over the calls
        self.student = self.new_student(derive_seed(seed, "student"))

    @abstractmethod
    def begin(self, draw: torch.Generator) -> SyntheticBatch:
        """Return the batch of a call before its first step."""

    def new_student(self, seed: int) -> Student:
        """Return a student with fresh weights."""
        return Student(self.config, self.teacher, seed, self.machine)

    def pool(self) -> Tensor:
        """Return the images as uint8; if more were made than are wanted, the last ones."""
        config, made = self.config, list[Tensor]()
        for call in range(-config.warm_up, config.calls):
            adversarial = call >= config.adversarial_from and config.adversarial_weight > 0
            if made and call >= config.adversarial_from - config.student_lead and config.adversarial_weight > 0:
                self.student.learn(torch.cat(made), call)
            images = self._call(call, adversarial)
            if call >= 0:
                made.append(images)
        return torch.cat(made)[-config.images :]

    def _call(self, call: int, adversarial: bool) -> Tensor:
        """Return one batch: of its steps the one with the lowest loss."""
        draw = generator(derive_seed(self.seed, "call", call))
        batch = self.begin(draw)
        best, lowest = None, math.inf
        for _ in range(self.config.generator_steps):
            images = batch.images()
            value = self._loss(augment(images, self.machine.train.augment, draw), batch.labels, adversarial)
            if best is None or value.item() < lowest:
                best, lowest = images.detach(), value.item()
            batch.step(value)
        self.kept = [Statistics(mean.detach(), variance.detach()) for mean, variance in self._blended()]
        batch.end()
        assert best is not None
        return as_pixels(best)

    def shown(self, images: Tensor) -> Tensor:
        """Return augmented images as both networks are shown them."""
        return images

    def label_loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss by which images become those of their labels."""
        return self.config.label_weight * cross_entropy(logits, labels).mean()

    def _loss(self, images: Tensor, labels: Tensor, adversarial: bool) -> Tensor:
        """Return weighted L_bn + CE + L_adv of a batch."""
        config, images = self.config, self.shown(images)
        features = self.teacher.extract(images)
        logits = self.teacher.head(features)
        value = self.label_loss(features, logits, labels)
        if config.statistics_weight:
            value = value + config.statistics_weight * self._gap()
        if adversarial:
            erring = adversarial_loss(self.student.net(images), logits, config.adversarial_where).mean()
            if erring.isfinite():  # a student that diverged must not take the generator with it
                value = value + config.adversarial_weight * erring
        return value

    def _gap(self) -> Tensor:
        """Return L_bn of the batch that the network was shown last."""
        pairs = zip(self._blended(), self.statistics.kept, strict=True)
        return torch.stack([statistics_gap(*found, *wanted) for found, wanted in pairs]).sum()

    def _blended(self) -> list[Statistics]:
        """Return that batch's statistics, mixed with those of the calls before."""
        given, share = self.statistics.given(), self.config.statistics_momentum
        if self.kept is None:
            return given
        return [
            Statistics(blended(new.mean, old.mean, share), blended(new.variance, old.variance, share))
            for new, old in zip(given, self.kept, strict=True)
        ]


class Student:
    """A network of the same shape with fresh weights, which learns the teacher's outputs on the pool."""

    decay: ClassVar[float] = 1e-4

    def __init__(self, config: SynthesisConfig, teacher: Classifier, seed: int, machine: Trainer) -> None:
        self.config, self.teacher, self.seed = config, teacher, seed
        # All of it is trained, whatever the global network starts from and whichever part of that is frozen.
        own = Trainer(machine.model.bare(), machine.train, str(machine.device))
        self.augmentation, self.device = own.train.augment, own.device
        fresh = initial_state(own.model, len(own.mean), seed)
        self.net = own.net(grow(fresh, len(teacher.head.weight), derive_seed(seed, "head"))).requires_grad_(False)
        self.descent = Descent(self.net.parameters(), STUDENT_MOMENTUM, self.decay)

    def learn(self, pool: Tensor, call: int) -> None:
        """Take the steps before a call."""
        config, rate = self.config, self._rate(call)
        draw = generator(derive_seed(self.seed, call))
        self.net.requires_grad_(True).train()
        for _ in range(config.student_steps):
            rows = torch.randperm(len(pool), generator=draw)[: config.synthesis_batch]
            images = augment(as_floats(pool[rows].to(self.device)), self.augmentation, draw)
            loss = self.loss(images)
            self.descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.descent.step(rate)
        self.net.requires_grad_(False).eval()

    def loss(self, images: Tensor) -> Tensor:
        """Return the loss of a batch of the pool."""
        with torch.no_grad():
            wanted = self.teacher(images)
        return distillation(self.net(images), wanted, self.config.student_temperature, rescaled=True).mean()

    def _rate(self, call: int) -> float:
        """Return the rate of a call, along a cosine from the first one with a student to the end."""
        first = self.config.adversarial_from
        along = (call - first) / (self.config.calls - first)
        share = STUDENT_LAST + (1 - STUDENT_LAST) * (1 + math.cos(math.pi * along)) / 2
        return self.config.student_rate * share


def as_pixels(images: Tensor) -> Tensor:
    """Return images with values in [0, 1] as uint8, on the CPU; NaN, after a model diverged, is black."""
    return images.nan_to_num(0).mul(255).round().to(torch.uint8).cpu().contiguous()
