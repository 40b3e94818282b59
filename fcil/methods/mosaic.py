"""Mosaic, a method of our own: every client trains the outputs of its classes, and the server joins them row by row.

A client that holds some of the classes knows nothing about the others, but an ordinary cross-entropy lets it push their
outputs down, and averaging then mixes rows that were trained with rows that were spoiled. Here the loss is taken over
the client's own classes, in proportion to its samples of each, and a row of the head is averaged over the clients that
hold its class.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.messages import Broadcast, derive_seed, generator
from fcil.maths.distillation import TEMPERATURE, distillation
from fcil.maths.owned import class_counts, counted_cross_entropy
from fcil.methods.base import Current, Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import Herding, Ranker, RehearsalConfig
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.methods.own_classes import SAMPLES_PER_CLASS, averaged_over_holders
from fcil.methods.privacy import Kind
from fcil.methods.server import newest_older_model, plain_server
from fcil.models.client_context import ClientContext
from fcil.models.config import Head
from fcil.models.optimiser import COSINE, Optimiser

ROWS = "head.weight"


class MosaicConfig(RehearsalConfig):
    """Mosaic's hyper-parameters, chosen on seeds that no table shows."""

    optimiser: Literal["train", "paper", "gentle", "cosine", "native"] = Field(
        "native",
        description="as for all methods; a linear head's steps are too long here",
    )
    absent: float = Field(0.0, ge=0, description="pseudo-count for classes the client lacks; 0: they are left out")
    distillation_weight: float = Field(0.3, ge=0, description="lambda, weight of the distillation")
    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")
    exemplars: Literal["random", "herding"] = Field("random", description="how a client chooses its exemplars")

    private: ClassVar[Kind | None] = "training"
    native: ClassVar[Optimiser] = COSINE
    head: ClassVar[Head] = "cosine"

    def sends(self) -> dict[str, str]:
        return {ROWS: SAMPLES_PER_CLASS, **super().sends()}


class Mosaic(UnclippedObjective[MosaicConfig]):
    """Counted cross-entropy over the client's own classes + weight T^2 KL(teacher || student) over the old outputs."""

    def __init__(self, config: MosaicConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        counts = class_counts(problem.targets, problem.context.classes)
        self.counts = counts.clamp(max=1) if local.machine.private else counts  # a count would tell of single samples

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        config, problem = self.config, self.problem
        teacher = problem.teacher_logits(images, rows)
        logits = problem.net(images)
        classified = counted_cross_entropy(logits, problem.targets[rows], self.counts, config.absent).mean()
        if teacher is None:
            return classified
        distilled = distillation(logits, teacher, config.temperature, rescaled=True).mean()
        return classified + config.distillation_weight * distilled

    def row_weights(self) -> dict[str, Tensor]:
        """Give each row of the head the weight of the client's samples of its class."""
        return {ROWS: self.counts.cpu().double()}


def at_random(
    samples: Tensor, output: int, share: int, broadcast: Broadcast, current: Current, local: ClientContext
) -> Tensor:
    """Keep samples drawn by the client's own seed: clients that share a class keep different parts of it."""
    draw = generator(derive_seed(current.seed, "exemplars", output))
    return samples[torch.randperm(len(samples), generator=draw)[:share]]


def build(config: MosaicConfig, setting: Setting) -> Roles:
    """Return the roles of Mosaic."""
    ranker: Ranker = at_random if config.exemplars == "random" else Herding(config)
    client = RehearsalClient(config, setting, Mosaic, teacher=newest_older_model, ranker=ranker)
    return Roles(client, averaged_over_holders(plain_server(), (ROWS,)))


register_method(
    Method("mosaic", "count-weighted loss over local classes, per-class head averaging (ours)", MosaicConfig, build)
)
