"""One client's local fit: its inputs, and the parts of it that a method decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fcil.core.messages import Message, ModelState, Prototype, RoundContext, Weighted
from fcil.core.stopwatch import timed
from fcil.maths.losses import labelled_bce
from fcil.methods.base import MethodConfig
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.folding import folded, halved
from fcil.models.optimiser import NATIVE, Optimiser
from fcil.models.trainer import CHUNK, shuffled

NOTHING = torch.empty(0, dtype=torch.int64)
Settings = TypeVar("Settings", bound=MethodConfig)
Sent = TypeVar("Sent", bound=Message)


@dataclass(frozen=True)
class News:
    """The results of arrival and detection in this round."""

    latest: Tensor = NOTHING  # the newest arrival
    finished: Tensor = NOTHING  # what an alarm has just ended the use of, but for the exemplars
    classes: tuple[int, ...] = ()  # labels for which the alarm of this round was raised; empty without an alarm


class KeptLogits:
    """A teacher's logits for the training samples, of use where no batch is augmented: computed once in a fit."""

    def __init__(self, samples: Tensor, local: ClientContext) -> None:
        self._samples, self._local = samples, local
        self._logits: Tensor | None = None

    def of(self, teacher: Classifier, rows: Tensor) -> Tensor:
        """Return the teacher's logits for these rows of the training samples; it has to be the same each time."""
        if self._logits is None:
            parts = torch.split(self._samples, CHUNK)
            self._logits = torch.cat([teacher(self._local.inputs(teacher, part)) for part in parts])
        return self._logits[rows]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The training problem of a client in a round: the network as received, its teacher if any, and the samples.

    `targets` and `old` have one entry per training sample; a loss finds its batch's by `rows`.
    """

    net: Classifier
    teacher: Classifier | None  # with its tensors as they were sent
    targets: Tensor  # output of each sample's class
    old: Tensor  # whether the class belongs to the client's history
    has_history: bool  # whether the client has learned classes before, with or without exemplars
    context: RoundContext
    samples: Tensor = NOTHING  # all that it trains on: current data and memory
    news: News = field(default_factory=News)
    extra: Message | None = None  # what the server sent in addition to the models
    pools: Mapping[str, ModelState] = field(default_factory=dict)  # tensors that the extra names, by digest
    optimiser: Optimiser = NATIVE
    seed: int = 0
    kept: KeptLogits | None = None  # where a sample looks the same in every epoch

    @property
    def newest(self) -> Tensor:
        """Say of each training sample whether its class came with the newest block."""
        return self.targets >= self.context.old_classes

    def sent(self, kind: type[Sent]) -> Sent | None:
        """Return the server's extra if it is one of that kind."""
        return self.extra if isinstance(self.extra, kind) else None

    @property
    def fixed_teacher(self) -> Classifier | None:
        """Return the teacher for inference: the same outputs but for rounding, other tensors."""
        if self.teacher is None:
            return None
        return self._half_teacher if torch.is_autocast_enabled("cpu") else self._folded_teacher

    @cached_property
    def _folded_teacher(self) -> Classifier:
        assert self.teacher is not None
        return folded(self.teacher)

    @cached_property
    def _half_teacher(self) -> Classifier:
        return halved(self._folded_teacher)

    def teacher_logits(self, images: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """Return the teacher's outputs for the images, without gradients.

        `rows` says that they are the batch of these training samples, whose logits may be known from an earlier epoch.
        """
        teacher = self.fixed_teacher
        if teacher is None:
            return None
        with timed("teacher"), torch.no_grad():
            logits: Tensor = teacher(images) if rows is None or self.kept is None else self.kept.of(teacher, rows)
        return logits


class LocalObjective(ABC, Generic[Settings]):
    """One local fit as a method sees it; a method defines a batch's loss and may change the other steps.

    An objective lasts for one participation, so it may take notes on the way.
    """

    gradient_limit: ClassVar[float | None] = 10.0  # largest norm of a batch's gradient; `train.learning_rate` of the
    # presets suits a mean over outputs, and a softmax has gradients as many times larger as there are classes

    def __init__(self, config: Settings, problem: Problem, local: ClientContext) -> None:
        self.config = config
        self.problem = problem
        self.local = local

    def rows(self) -> Tensor:
        """Return the rows of the training samples that are fitted."""
        return torch.arange(len(self.problem.targets))

    def epoch(self, draw: torch.Generator) -> list[Tensor]:
        """Return the rows of each batch of an epoch."""
        return shuffled(self.rows(), self.local.machine.train.batch_size, draw)

    @abstractmethod
    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the loss of a batch of augmented images."""

    def finish(self) -> None:
        """Run after the fit; the network may still change."""
        return

    def row_weights(self) -> dict[str, Tensor]:
        """Return weights for the rows of some of the model's tensors, where not all of them count alike."""
        return {}

    def parts(self) -> dict[str, Weighted]:
        """Return the parts sent to the server in addition to the weights; it learns their sums over participants."""
        return {}

    def uploads(self) -> tuple[Message, ...]:
        """Return the messages for the proxy, which it gets without a sender."""
        return ()

    def shown(self) -> tuple[Prototype, ...]:
        """Return prototypes behind the uploads for a simulation's report; they never leave a real site."""
        return ()


class UnclippedObjective(LocalObjective[Settings]):
    """An objective that is trained as published: its gradients are not limited."""

    gradient_limit: ClassVar[float | None] = None


class Classification(UnclippedObjective[Settings]):
    """L_CE alone: the mean binary cross-entropy with the labels."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        return labelled_bce(self.problem.net(images), self.problem.targets[rows]).mean()
