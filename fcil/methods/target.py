"""TARGET (Zhang et al., ICCV 2023): old outputs are distilled on images that the server makes, without any memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.messages import ModelState, RoundContext, derive_seed
from fcil.maths.distillation import distillation
from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.server import newest_older_model
from fcil.methods.synthesis import BETAS, Synthesis, SyntheticBatch
from fcil.methods.synthetic_replay import PoolConfig, PoolObjective, PoolServer
from fcil.models.generator import Generator, build_generator
from fcil.models.optimiser import Adam, Optimiser
from fcil.models.trainer import Trainer


class TargetConfig(PoolConfig):
    """The clients' part; the published settings unless said otherwise."""

    distillation_weight: float = Field(
        5.0, ge=0, description="lambda, weight of the distillation on synthetic images; 25 in the source"
    )

    native: ClassVar[Optimiser] = Optimiser(0.01, 0.9, 5e-4)
    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": DetectionConfig.editions["fcil"],
        "released": {
            "distillation_weight": 25.0,
            "calls": 10,  # 2,560 images of the 8,000 asked for, and none with a student
            "generator_width": 64,
            "student_steps": 400,
            "student_rate": 0.2,
            "replay": "epoch",
        },
    }


class Target(PoolObjective[TargetConfig]):
    """Softmax cross-entropy among the newest outputs + lambda KL(teacher || student) of old outputs, on the pool.

    Real samples of older classes, where a client has any, have no part in the first term and join the second.
    """

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        problem, old = self.problem, ~self.newest(rows)
        logits = problem.net(images)
        classified, synthetic = self.classified(logits, rows), self.beside()
        answers = torch.cat([logits[old], *(problem.net(batch) for batch in synthetic)])
        asked = torch.cat([images[old], *synthetic])
        wanted = problem.teacher_logits(asked) if len(asked) else None
        if wanted is None:
            return classified
        distilled = distillation(answers, wanted, self.config.temperature).mean()
        return classified + self.config.distillation_weight * distilled


# --- the server ---------------------------------------------------------------------------------------------------


class TargetBatch(SyntheticBatch):
    """A copy of the generator and the noise are fitted; then the generator moves by the copy's gradients.

    This is first-order MAML.
    """

    def __init__(self, config: TargetConfig, whole: Generator, outer: Adam, noise: Tensor, labels: Tensor) -> None:
        self.config, self.whole, self.outer, self.labels = config, whole, outer, labels
        self.noise, self.fast = noise, copy.deepcopy(whole)
        self.inner, self.fitting = Adam(self.fast.parameters(), BETAS), Adam([noise], BETAS)
        outer.zero_grad()

    def images(self) -> Tensor:
        images: Tensor = self.fast(self.noise)
        return images

    def step(self, value: Tensor) -> None:
        self.inner.zero_grad()
        self.fitting.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        add_gradients(self.whole, self.fast)
        self.inner.step(self.config.generator_rate)
        self.fitting.step(self.config.latent_rate)

    def end(self) -> None:
        self.outer.step(self.config.generator_rate * self.config.generator_steps)


class TargetSynthesis(Synthesis[TargetConfig]):
    """Random labels, and one generator that goes on from call to call."""

    def __init__(
        self,
        config: TargetConfig,
        model: ModelState,
        image_shape: tuple[int, int, int],
        seed: int,
        machine: Trainer,
    ) -> None:
        super().__init__(config, model, seed, machine)
        width = config.generator_width or machine.model.width
        drawn = build_generator(config.latent, width, image_shape, derive_seed(seed, "generator"))
        self.generator: Generator = drawn.to(machine.device)
        self.outer = Adam(self.generator.parameters(), BETAS)

    def begin(self, draw: torch.Generator) -> SyntheticBatch:
        config, device = self.config, self.machine.device
        noise = torch.randn(config.synthesis_batch, config.latent, generator=draw).to(device).requires_grad_(True)
        labels = torch.randint(self.classes, (config.synthesis_batch,), generator=draw).to(device)
        return TargetBatch(config, self.generator, self.outer, noise, labels)


def add_gradients(to: Generator, source: Generator) -> None:
    """Add the gradients of one generator to those of another."""
    for own, other in zip(to.parameters(), source.parameters(), strict=True):
        assert other.grad is not None
        own.grad = other.grad if own.grad is None else own.grad + other.grad


class TargetServer(PoolServer[TargetConfig]):
    """Makes the images by TARGET's synthesis."""

    def synthesis(self, model: ModelState, context: RoundContext, seed: int, machine: Trainer) -> TargetSynthesis:
        return TargetSynthesis(self.config, model, self.image_shape, seed, machine)


def build(config: TargetConfig, setting: Setting) -> Roles:
    """Return the roles of TARGET."""
    config.check(setting)
    client = RehearsalClient(config, setting, Target, teacher=newest_older_model)
    return Roles(client, TargetServer(config, setting.image_shape))


register_method(
    Method("target", "distillation on images made by the server, without memory (ICCV 2023)", TargetConfig, build)
)
