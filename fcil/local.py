"""What one machine offers to a method: networks, cached inference and seeded training on its own samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fcil.data.source import Source
from fcil.data.transforms import AugmentConfig, as_floats, augment
from fcil.models import Classifier, ModelConfig, load_classifier
from fcil.wire import ModelState, generator

BLOCK = 256  # a sample's last bits depend on its batch, so inference always runs on whole blocks of the source
CACHE_BYTES = 512 << 20

Loss = Callable[[Tensor, Tensor], Tensor]  # (augmented images, their rows in the training set) -> the batch's loss


class Milestone(BaseModel):
    """From an epoch of the block on, the learning rate is divided."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epoch: int = Field(ge=1, description="local epochs accumulated since the newest block of classes began")
    divisor: float = Field(gt=0, description="what the initial learning rate is divided by")


PUBLISHED_MILESTONES = tuple(Milestone(epoch=e, divisor=d) for e, d in ((100, 5), (150, 25), (180, 125)))


class TrainConfig(BaseModel):
    """Local training, shared by all methods; the defaults are published, but for augmentation, which is off."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(20, ge=1, description="local epochs a round")
    batch_size: int = Field(128, ge=1, description="samples a step")
    learning_rate: float = Field(2.0, gt=0, description="initial learning rate of SGD")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty of SGD")
    milestones: tuple[Milestone, ...] = Field(PUBLISHED_MILESTONES, description="when the learning rate falls")
    augment: AugmentConfig = Field(AugmentConfig(), description="augmentation of training images")


def learning_rates(train: TrainConfig, rounds_since_growth: int, clock: Literal["growth", "round"]) -> list[float]:
    """Return the learning rate of each local epoch of a round.

    On the clock `growth` a milestone holds for the rest of the block; on `round`, as in the released code, only for the
    rest of the round in which it falls.
    """
    first = rounds_since_growth * train.epochs
    since = 0 if clock == "growth" else first
    rates = []
    for epoch in range(first, first + train.epochs):
        reached = [milestone for milestone in train.milestones if since <= milestone.epoch <= epoch]
        divisor = max(reached, key=lambda milestone: milestone.epoch).divisor if reached else 1.0
        rates.append(train.learning_rate / divisor)
    return rates


@dataclass(frozen=True)
class Outputs:
    """Features and logits of some samples under one model, in evaluation mode."""

    features: Tensor
    logits: Tensor


class Local:
    """One machine's samples, device and cache; it holds no client's state."""

    def __init__(self, source: Source, model: ModelConfig, train: TrainConfig, device: str = "cpu") -> None:
        self.source = source
        self.model = model
        self.train = train
        self.device = torch.device(device)
        self.current_stage = "start"
        self._cache: OrderedDict[tuple[str, int], Outputs] = OrderedDict()
        self._cached_bytes = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name what a client is doing, so that a failure can say where it happened."""
        self.current_stage = name
        yield

    def net(self, state: ModelState) -> Classifier:
        """Return a network of its own with these weights, in evaluation mode."""
        return load_classifier(self.model, self.source.mean, self.source.deviation, state, self.device).eval()

    def labels(self, indices: Tensor) -> Tensor:
        """Return the class ids of training samples."""
        return self.source.train.labels[indices]

    def images(self, indices: Tensor) -> Tensor:
        """Return training images as floats in [0, 1]."""
        return as_floats(self.source.train.images[indices].to(self.device))

    def infer(self, digest: str, state: ModelState, indices: Tensor) -> Outputs:
        """Return features and logits of training samples; each block of the source is computed once a model."""
        blocks = torch.unique(indices // BLOCK).tolist()
        missing = [block for block in blocks if (digest, block) not in self._cache]
        fresh = dict(zip(missing, self._compute(state, missing), strict=True))
        found = {block: fresh.get(block) or self._cache[(digest, block)] for block in blocks}
        for block, outputs in fresh.items():
            self._keep((digest, block), outputs)
        classes, size = state["head.weight"].shape
        features = torch.empty(len(indices), size, device=self.device)
        logits = torch.empty(len(indices), classes, device=self.device)
        for block in blocks:
            rows = (indices // BLOCK == block).nonzero().squeeze(1)
            features[rows] = found[block].features[indices[rows] % BLOCK]
            logits[rows] = found[block].logits[indices[rows] % BLOCK]
        return Outputs(features, logits)

    def _compute(self, state: ModelState, blocks: Sequence[int]) -> Iterator[Outputs]:
        net = self.net(state) if blocks else None
        for block in blocks:
            assert net is not None
            images = self.source.train.images[block * BLOCK : (block + 1) * BLOCK]
            with torch.inference_mode():
                features = net.extract(as_floats(images.to(self.device)))
                yield Outputs(features, net.head(features))

    def _keep(self, key: tuple[str, int], outputs: Outputs) -> None:
        self._cache[key] = outputs
        self._cached_bytes += outputs.features.nbytes + outputs.logits.nbytes
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.features.nbytes + dropped.logits.nbytes

    def fit(self, net: Classifier, indices: Tensor, loss: Loss, rates: Sequence[float], seed: int) -> float:
        """Train the network in place, one epoch a rate, and return the mean loss of the last epoch."""
        draw = generator(seed)
        settings = self.train
        optimiser = torch.optim.SGD(net.parameters(), rates[0], settings.momentum, weight_decay=settings.weight_decay)
        losses: list[Tensor] = []
        for rate in rates:
            for group in optimiser.param_groups:
                group["lr"] = rate
            losses = []
            for rows in batches(torch.randperm(len(indices), generator=draw), settings.batch_size):
                net.train(len(rows) > 1)  # batch statistics of a single sample do not exist
                value = loss(augment(self.images(indices[rows]), settings.augment, draw), rows)
                optimiser.zero_grad(set_to_none=True)
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                losses.append(value.detach())
        net.eval()
        return float(torch.stack(losses).mean())


def batches(order: Tensor, size: int) -> list[Tensor]:
    """Return the order cut into batches; a last batch of one sample joins the one before it."""
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
