"""TARGET (Zhang et al., ICCV 2023): old outputs are distilled on images that the server makes, without any memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Message, ModelState, RoundContext, Shape, derive_seed, generator, model_digest
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.maths.distillation import TEMPERATURE, distillation
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Extra, Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.methods.server import AveragingServer, newest_older_model
from fcil.methods.synthesis import Synthesis, SynthesisConfig
from fcil.models.client_context import ClientContext
from fcil.models.config import ModelConfig
from fcil.models.optimiser import Optimiser
from fcil.models.statistics import has_batch_norm
from fcil.models.trainer import FEWEST, Trainer, batches

IMAGES = "images"  # name of the pool's only tensor
LARGEST_POOL = 1 << 31  # bytes, half of what a message may have: a checkpoint holds the models beside it
NO_IMAGES = torch.empty(0, 0, 0, 0, dtype=torch.uint8)


class TargetConfig(SynthesisConfig):
    """The clients' part; the published settings unless said otherwise."""

    distillation_weight: float = Field(
        5.0, ge=0, description="lambda, weight of the distillation on synthetic images; 25 in the source"
    )
    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")
    # synthetic images beside a batch: train.batch_size in turn, or method.images over an epoch's batches
    replay: Literal["batch", "epoch"] = by_edition("batch")

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

    def network(self, model: ModelConfig) -> ModelConfig:
        chosen = super().network(model)
        if self.statistics_weight and not has_batch_norm(chosen):
            wrong = f"model.name: found {model.name}, should be a network with batch norm"
            if "norm" in model.network.reads:
                wrong = f"model.norm: found {model.norm}, should be batch"
            raise ValueError(f"{wrong}, or method.statistics_weight 0,")
        return chosen


@dataclass(frozen=True)
class SyntheticPool(Message):
    """Tells participants which of the tensors sent by digest are synthetic images of all old classes."""

    digest: str


@dataclass(frozen=True)
class PoolState(Message):
    """The images made when the last block ended."""

    images: Annotated[Tensor, Shape(("images", "channels", "height", "width"), torch.uint8)] = NO_IMAGES


# --- the client ---------------------------------------------------------------------------------------------------


class Target(UnclippedObjective[TargetConfig]):
    """Softmax cross-entropy among the newest outputs + lambda KL(teacher || student) of old outputs, on the pool.

    Real samples of older classes, where a client has any, have no part in the first term and join the second.
    """

    def __init__(self, config: TargetConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        sent = problem.sent(SyntheticPool)
        taught = problem.teacher is not None
        self.pool = problem.pools[sent.digest][IMAGES] if sent is not None and taught else NO_IMAGES
        self.draw = generator(derive_seed(problem.seed, "pool"))
        self.synthetic = Samples(Split(self.pool, torch.zeros(len(self.pool), dtype=torch.int64)), ("synthetic",))
        self.waiting: list[Tensor] = []  # rows of the synthetic batches to come

    def epoch(self, draw: torch.Generator) -> list[Tensor]:
        real = super().epoch(draw)
        if self.config.replay == "batch" or len(self.pool) == 0:
            return real
        self.waiting = self._shuffled(max(FEWEST, self.config.images // len(real)))
        return real[: len(self.waiting)]

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        problem, old = self.problem, self.problem.context.old_classes
        logits, targets = problem.net(images), problem.targets[rows]
        newest = targets >= old
        # A sum over nothing, unlike its mean, is zero: a batch may have no sample of the newest block.
        classified = cross_entropy(logits[newest, old:], targets[newest] - old).sum() / max(1, int(newest.sum()))
        known, answers = [images[~newest]], [logits[~newest]]
        if len(self.pool):
            synthetic = self._synthetic()
            known, answers = [*known, synthetic], [*answers, problem.net(synthetic)]
        asked = torch.cat(known)
        wanted = problem.teacher_logits(asked) if len(asked) else None
        if wanted is None:
            return classified
        distilled = distillation(torch.cat(answers), wanted, self.config.temperature).mean()
        return classified + self.config.distillation_weight * distilled

    def _synthetic(self) -> Tensor:
        """Return the next synthetic batch, augmented like real images."""
        train = self.local.machine.train
        if not self.waiting:
            self.waiting = self._shuffled(train.batch_size)
        return self.local.machine.batch(self.problem.net, self.synthetic, self.waiting.pop(), self.draw)

    def _shuffled(self, size: int) -> list[Tensor]:
        """Return the rows of the whole pool in random order, in batches of at most that size."""
        return batches(torch.randperm(len(self.pool), generator=self.draw), size)


# --- the server ---------------------------------------------------------------------------------------------------


class TargetServer(AveragingServer[PoolState]):
    """Averages the models, and at the end of a block makes the images that stand for its classes and all before."""

    def __init__(self, config: TargetConfig, image_shape: tuple[int, int, int]) -> None:
        super().__init__(PoolState())
        self.config = config
        self.image_shape = image_shape

    def settle(
        self, state: PoolState, model: ModelState, context: RoundContext, seed: int, machine: Trainer
    ) -> PoolState:
        return PoolState(Synthesis(self.config, model, self.image_shape, seed, machine).pool())

    def extra(self, state: PoolState, context: RoundContext) -> Extra:
        if len(state.images) == 0:
            return Extra()
        pool = {IMAGES: state.images}
        digest = model_digest(pool)
        return Extra(SyntheticPool(digest), {digest: pool})


def build(config: TargetConfig, setting: Setting) -> Roles:
    """Return the roles of TARGET."""
    size = math.prod(setting.image_shape)
    if config.images * size > LARGEST_POOL:
        pixels = " x ".join(map(str, setting.image_shape))
        raise ConfigError(
            f"method.images: found {config.images}, should be at most {LARGEST_POOL // size} for images of {pixels}"
        )
    client = RehearsalClient(config, setting, Target, teacher=newest_older_model)
    return Roles(client, TargetServer(config, setting.image_shape))


register_method(
    Method("target", "distillation on images made by the server, without memory (ICCV 2023)", TargetConfig, build)
)
