"""Shared parts of the speed benchmarks: images that need no download, a bare training loop, clocks and a gauge."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.messages import ModelState, RoundContext, generator
from fcil.data.augment import AugmentConfig, augment
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.experiment.build import agreed_model
from fcil.methods import Setting
from fcil.methods.glfc import GLFC, GLFCConfig
from fcil.methods.local_objective import Problem
from fcil.models import ModelConfig, grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.trainer import TrainConfig, Trainer

MODEL = ModelConfig(width=16)
AUGMENT = AugmentConfig(crop_padding=4, flip=True)


def patterns(classes: int, per_class: int, size: int, test_per_class: int = 1, channels: int = 3) -> Source:
    """Return uint8 images of one random pattern per class plus noise, in shuffled order like the files of CIFAR."""
    draw = generator(7)
    base = torch.rand(classes, channels, size, size, generator=draw)

    def split(count: int) -> Split:
        labels = torch.arange(classes).repeat(count)[torch.randperm(classes * count, generator=draw)]
        images = torch.empty(len(labels), channels, size, size, dtype=torch.uint8)
        for rows in torch.arange(len(labels)).split(4096):  # in pieces, so that no float copy of the whole is made
            noise = 0.15 * torch.randn(len(rows), channels, size, size, generator=draw)
            images[rows] = ((base[labels[rows]] + noise).clamp(0, 1) * 255).to(torch.uint8)
        return Split(images, labels)

    return Source("patterns", split(per_class), split(test_per_class), tuple(str(label) for label in range(classes)))


def local_of(source: Source, train: TrainConfig | None = None) -> ClientContext:
    """Return what a place with these images offers to a client."""
    return ClientContext.at(Samples.of(source), Trainer(agreed_model(MODEL, source), train or TrainConfig()))


@dataclass(frozen=True)
class LocalObjective:
    """One client's local training: what it starts from, its teacher, and its samples."""

    source: Source
    model: ModelState
    teacher: ModelState
    train: TrainConfig
    classes: int
    old_classes: int

    @property
    def samples(self) -> Tensor:
        """Return all training samples."""
        return torch.arange(len(self.source.train))

    def context(self, round: int) -> RoundContext:
        """Return a round in which half of the classes are old."""
        return RoundContext(round, tuple(map(str, range(self.classes))), (self.old_classes, self.classes), 0)


def objective(classes: int = 20, per_class: int = 32, size: int = 32, epochs: int = 1) -> LocalObjective:
    """Return a local objective in the shape of CIFAR-100's second task, with a narrower network."""
    source = patterns(classes, per_class, size)
    start = initial_state(MODEL, 3, 1)
    train = TrainConfig(epochs=epochs, batch_size=128, learning_rate=0.1, augment=AUGMENT)
    return LocalObjective(source, grow(start, classes, 2), grow(start, classes // 2, 3), train, classes, classes // 2)


def our_loop(given: LocalObjective) -> None:
    """Train as a GLFC client does."""
    local = local_of(given.source, given.train)
    net = local.machine.net(given.model)
    labels = local.samples.labels(given.samples)
    problem = Problem(
        net=net,
        teacher=local.machine.net(given.teacher).requires_grad_(False),
        targets=labels,
        old=labels < given.old_classes,
        has_history=True,
        context=given.context(0),
    )
    setting = Setting(0, given.source.image_shape, secret=0)
    loss = GLFC(GLFCConfig(), problem, local, setting).loss
    rates = [given.train.learning_rate] * given.train.epochs
    local.machine.fit(net, local.samples, given.samples, loss, rates, seed=5)


def bare_loop(given: LocalObjective) -> None:
    """Train on the same samples with the same augmentation, loss and teacher, as few lines as it takes."""
    machine = local_of(given.source, given.train).machine  # only to build the two networks
    net, teacher = machine.net(given.model).train(), machine.net(given.teacher).requires_grad_(False)
    images, labels = given.source.train.images, given.source.train.labels
    old = labels < given.old_classes
    settings = given.train
    optimiser = torch.optim.SGD(net.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    draw = generator(5)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(labels), generator=draw).split(settings.batch_size):
            batch = augment(images[rows].float() / 255, settings.augment, draw)
            with torch.no_grad():
                known = torch.sigmoid(teacher(batch))
            logits = net(batch)
            hot = F.one_hot(labels[rows], given.classes).float()
            each = F.binary_cross_entropy_with_logits(logits, hot, reduction="none").mean(1)
            with torch.no_grad():
                measure = 1 - torch.sigmoid(logits).gather(1, labels[rows, None]).squeeze(1)
                weights = torch.empty_like(measure)
                for group in (old[rows], ~old[rows]):
                    weights[group] = measure[group] / measure[group].mean()
            target = hot.clone()
            target[:, : given.old_classes] = known
            distilled = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1)
            loss = 0.5 * (weights * each).mean() + 0.5 * distilled.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


class FitClock:
    """Adds up the seconds that a machine spends on local training."""

    def __init__(self, machine: Trainer, now: Callable[[], float]) -> None:
        self.seconds = 0.0
        fit = machine.fit

        def timed(*arguments: Any, **named: Any) -> float:
            began = now()
            loss = fit(*arguments, **named)
            self.seconds += now() - began
            return loss

        machine.fit = timed  # type: ignore[method-assign]


def resident(field: str) -> float:
    """Return the memory of this process in MB: VmRSS now, VmHWM at its peak.

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor time that a piece of work takes in this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def median(values: list[float]) -> float:
    """Return the middle value."""
    return float(torch.tensor(values, dtype=torch.float64).median())
