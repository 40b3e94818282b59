"""A small data set of noise and some models for it, for tests of what a machine offers."""

from __future__ import annotations

import torch

from fcil.core.messages import generator
from fcil.data.blocks import BLOCK
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.models import ModelConfig, grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.trainer import TrainConfig, Trainer

PUBLISHED = TrainConfig()


def make_source(samples: int) -> Source:
    """Return images of noise in four classes that take turns."""
    images = torch.randint(0, 256, (samples, 1, 8, 8), generator=generator(11), dtype=torch.uint8)
    split = Split(images, torch.arange(samples) % 4)
    return Source("noise", split, split.select(torch.arange(4)), ("a", "b", "c", "d"))


SOURCE = make_source(2 * BLOCK + 40)
MODEL = ModelConfig(width=2, mean=SOURCE.mean, deviation=SOURCE.deviation)
MODELS = [grow(initial_state(MODEL, 1, seed), 3 + seed, seed) for seed in range(3)]


def make_machine(train: TrainConfig = PUBLISHED) -> Trainer:
    """Return a machine for the noise."""
    return Trainer(MODEL, train)


def make_local(train: TrainConfig = PUBLISHED) -> ClientContext:
    """Return a place that holds the noise."""
    return ClientContext.at(Samples.of(SOURCE), make_machine(train))
