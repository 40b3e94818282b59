"""Fits beside synthetic images, which a server makes and sends once per block: the parts that such methods share."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Message, ModelState, RoundContext, Shape, derive_seed, generator, model_digest
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.maths.distillation import TEMPERATURE
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Extra, Setting, by_edition
from fcil.methods.local_objective import Problem, Settings, UnclippedObjective
from fcil.methods.server import AveragingServer
from fcil.methods.synthesis import Synthesis, SynthesisConfig
from fcil.models.client_context import ClientContext
from fcil.models.generator import ImageShape
from fcil.models.trainer import FEWEST, Trainer, batches

Pooled = TypeVar("Pooled", bound="PoolConfig")
IMAGES = "images"  # name of the pool's only tensor
LARGEST_POOL = 1 << 31  # bytes, half of what a message may have: a checkpoint holds the models beside it
NO_IMAGES = torch.empty(0, 0, 0, 0, dtype=torch.uint8)


class PoolConfig(SynthesisConfig):
    """Settings of methods that send the images themselves."""

    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")
    # synthetic images beside a batch: train.batch_size in turn, or method.images over an epoch's batches
    replay: Literal["batch", "epoch"] = by_edition("batch")

    def check(self, setting: Setting) -> None:
        """Refuse a pool that no checkpoint could hold."""
        size = math.prod(setting.image_shape)
        if self.images * size > LARGEST_POOL:
            pixels = " x ".join(map(str, setting.image_shape))
            most = LARGEST_POOL // size
            raise ConfigError(f"method.images: found {self.images}, should be at most {most} for images of {pixels}")


@dataclass(frozen=True)
class SyntheticPool(Message):
    """Tells participants which of the tensors sent by digest are synthetic images of all old classes."""

    digest: str


@dataclass(frozen=True)
class PoolState(Message):
    """The images made when the last block ended."""

    images: Annotated[Tensor, Shape(("images", "channels", "height", "width"), torch.uint8)] = NO_IMAGES


class NewestObjective(UnclippedObjective[Settings]):
    """A fit in which real images are classified among the newest outputs alone."""

    def newest(self, rows: Tensor) -> Tensor:
        """Say of each sample of a batch whether its class came with the newest block."""
        return self.problem.targets[rows] >= self.problem.context.old_classes

    def classified(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the mean cross-entropy of the newest classes' samples among the newest outputs; 0 without any."""
        newest, old = self.newest(rows), self.problem.context.old_classes
        # A sum over nothing, unlike its mean, is zero: a batch may have no sample of the newest block.
        values = cross_entropy(logits[newest, old:], self.problem.targets[rows][newest] - old)
        return values.sum() / max(1, int(newest.sum()))


class PoolObjective(NewestObjective[Pooled]):
    """A fit beside a pool of synthetic images, of which there is a batch beside each real one."""

    def __init__(self, config: Pooled, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        sent = problem.sent(SyntheticPool)
        taught = problem.teacher is not None
        self.pool = problem.pools[sent.digest][IMAGES] if sent is not None and sent.digest and taught else NO_IMAGES
        self.draw = generator(derive_seed(problem.seed, "pool"))
        self.synthetic = Samples(Split(self.pool, torch.zeros(len(self.pool), dtype=torch.int64)), ("synthetic",))
        self.waiting: list[Tensor] = []  # rows of the synthetic batches to come

    def epoch(self, draw: torch.Generator) -> list[Tensor]:
        real = super().epoch(draw)
        if self.config.replay == "batch" or len(self.pool) == 0:
            return real
        self.waiting = self._shuffled(max(FEWEST, self.config.images // len(real)))
        return real[: len(self.waiting)]

    def beside(self) -> list[Tensor]:
        """Return the next synthetic batch, augmented like real images, if there is a pool."""
        if len(self.pool) == 0:
            return []
        train = self.local.machine.train
        if not self.waiting:
            self.waiting = self._shuffled(train.batch_size)
        return [self.local.machine.batch(self.problem.net, self.synthetic, self.waiting.pop(), self.draw)]

    def _shuffled(self, size: int) -> list[Tensor]:
        """Return the rows of the whole pool in random order, in batches of at most that size."""
        return batches(torch.randperm(len(self.pool), generator=self.draw), size)


class PoolServer(AveragingServer[PoolState], Generic[Pooled]):
    """Averages the models, and sends the images that it made of the classes of all finished blocks."""

    def __init__(self, config: Pooled, image_shape: ImageShape) -> None:
        super().__init__(PoolState())
        self.config = config
        self.image_shape = image_shape

    @abstractmethod
    def synthesis(self, model: ModelState, context: RoundContext, seed: int, machine: Trainer) -> Synthesis[Pooled]:
        """Return what makes the images for a finished model."""

    def settle(
        self, state: PoolState, model: ModelState, context: RoundContext, seed: int, machine: Trainer
    ) -> PoolState:
        return PoolState(self.synthesis(model, context, seed, machine).pool())

    def extra(self, state: PoolState, context: RoundContext) -> Extra:
        if len(state.images) == 0:
            return Extra()
        pool = {IMAGES: state.images}
        digest = model_digest(pool)
        return Extra(SyntheticPool(digest), {digest: pool})
