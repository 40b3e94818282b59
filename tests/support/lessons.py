"""One local fit of a method, built by hand, for tests that look inside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fcil.data.source import Source
from fcil.local import Local, TrainConfig
from fcil.methods import Setting, get_method
from fcil.methods.lesson import Lesson, Problem, outputs_of
from fcil.methods.rehearsal import RehearsalClient
from fcil.models import ModelConfig, grow, head_width, initial_state
from fcil.optimiser import Optimiser
from fcil.wire import Message, ModelState, Moment

MODEL = ModelConfig(width=2)
SETTING_SECRET = 11


class Workshop:
    """A machine, a method's client, and the models before and after the head grew from `old` to `classes` outputs."""

    def __init__(self, method: str, source: Source, old: int, classes: int, **fields: Any) -> None:
        self.config = get_method(method).config(**fields)
        self.network = self.config.network(MODEL)
        self.local = Local(source, self.network, TrainConfig(epochs=2, batch_size=8, learning_rate=0.05))
        self.setting = Setting(24, source.image_shape, "uniform", SETTING_SECRET)
        self.roles = get_method(method).build(self.config, self.setting)
        self.moment = Moment(3, tuple(range(classes)), (old, classes) if old else (classes,), 0)
        self.before = grow(initial_state(self.network, source.image_shape[0], 0), old, 1)
        self.model = grow(self.before, classes, 2)

    def of_classes(self, *classes: int, each: int | None = None) -> Tensor:
        """Return the samples of some classes, the first `each` of every one."""
        labels = self.local.source.train.labels
        return torch.cat([(labels == label).nonzero().squeeze(1)[:each] for label in classes])

    def lesson(
        self, samples: Tensor, server: Message | None = None, model: ModelState | None = None, **more: Any
    ) -> Lesson[Any]:
        """Return the lesson of a client that trains on these samples, with the old model as its teacher."""
        client = self.roles.client
        assert isinstance(client, RehearsalClient)
        taught = client.teacher is not None and head_width(self.before) > 0
        targets = outputs_of(self.local.labels(samples), self.moment)
        problem = Problem(
            net=self.local.net(model or self.model),
            teacher=self.local.net(self.before).requires_grad_(False) if taught else None,
            targets=targets,
            old=targets < self.moment.old_classes,
            has_history=self.moment.old_classes > 0,
            moment=self.moment,
            samples=samples,
            server=server,
            optimiser=self.local.train.optimiser(),
            epochs=self.local.train.epochs,
            **more,
        )
        return client.lesson(self.config, problem, self.local)

    def fit(self, lesson: Lesson[Any], epochs: int = 2, rate: float = 0.05, seed: int = 4) -> Lesson[Any]:
        """Train the lesson's network and return the lesson."""
        optimiser = Optimiser(rate, 0.9)
        samples = lesson.problem.samples
        self.local.fit(lesson.problem.net, samples, lesson.loss, [rate] * epochs, seed, optimiser, lesson.epoch)
        lesson.finish()
        return lesson
