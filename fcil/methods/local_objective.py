"""One client's local fit: its inputs, and the parts of it that a method decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fcil.core.messages import Message, ModelState, Prototype, RoundContext, Weighted
from fcil.maths.losses import labelled_bce
from fcil.methods.base import MethodConfig
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.optimiser import NATIVE, Optimiser
from fcil.models.trainer import shuffled

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
    """A teacher's logits for the training samples, of use where no batch is augmented.

    Each sample's are computed once for each length of batch, because the last bits of a network's outputs depend on
    the number of images that go through it together.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # by length of batch: which samples are known, and logits

    def of(self, rows: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Return the logits of these rows; `compute` gives them if any of them is not known yet."""
        if len(rows) in self._kept:
            known, logits = self._kept[len(rows)]
            if bool(known[rows].all()):
                return logits[rows.to(logits.device)]
        found = compute()
        if len(rows) not in self._kept:
            known = torch.zeros(self._samples, dtype=torch.bool)
            self._kept[len(rows)] = known, found.new_empty(self._samples, found.shape[1])
        known, logits = self._kept[len(rows)]
        logits[rows.to(found.device)] = found
        known[rows] = True
        return found


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The training problem of a client in a round: the network as received, its teacher if any, and the samples.

    `targets` and `old` have one entry per training sample; a loss finds its batch's by `rows`.
    """

    net: Classifier
    teacher: Classifier | None
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

    def teacher_logits(self, images: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """Return the teacher's outputs for the images, without gradients.

        `rows` says that they are the batch of these training samples, whose logits may be known from an earlier epoch.
        """
        if self.teacher is None:
            return None
        teacher = self.teacher

        def compute() -> Tensor:
            with torch.no_grad():
                logits: Tensor = teacher(images)
            return logits

        return compute() if rows is None or self.kept is None else self.kept.of(rows, compute)


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
