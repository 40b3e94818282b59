"""Networks and seeded training on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fcil.core.messages import ModelState, generator
from fcil.core.settings_table import LARGEST_FLOAT, SettingsTable
from fcil.data.augment import AugmentConfig, as_floats, augment
from fcil.models.batch_feed import BatchFeed
from fcil.models.classifier import Classifier, is_ours, load_classifier
from fcil.models.config import ModelConfig
from fcil.models.folding import folded, laid_out
from fcil.models.frozen import MIRRORED, PLAIN, BlockStore, FrozenOutputs, View
from fcil.models.optimiser import PUBLISHED_MILESTONES, Descent, Milestone, Optimiser, limit_norm

if TYPE_CHECKING:
    from fcil.data.samples import Samples

CHUNK = 128  # images that go through a network at once; with more, activations do not fit into the processor's cache
FEWEST = 4  # samples that batch norm takes statistics of; a smaller batch is trained with the running ones

Loss = Callable[[Tensor, Tensor], Tensor]  # (augmented images, their rows in the training set) -> the batch's loss


class TrainConfig(SettingsTable):
    """Local training, shared by all methods; the defaults are published, but for augmentation, which is off."""

    epochs: int = Field(20, ge=1, le=1_000_000, description="local epochs per round")
    batch_size: int = Field(128, ge=1, description="samples per step")
    learning_rate: float = Field(2.0, gt=0, description="initial learning rate of SGD")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty of SGD")
    milestones: tuple[Milestone, ...] = Field(
        PUBLISHED_MILESTONES, description="epochs of a block from which the learning rate is divided: {epoch, divisor}"
    )
    augment: AugmentConfig = Field(AugmentConfig(), description="augmentation of training images")
    mixed_precision: bool = Field(
        False, description="train in bfloat16 where it is safe; for large networks on CUDA, AVX-512 BF16 or AMX"
    )
    compile: bool = Field(False, description="use torch.compile where a method calls the whole network; meant for CUDA")
    block_epochs: int = Field(
        200,
        ge=1,
        description="local epochs that a block of classes is planned to last; published schedules scale to it",
    )

    @field_validator("milestones")
    @classmethod
    def _in_order(cls, milestones: tuple[Milestone, ...], info: ValidationInfo) -> tuple[Milestone, ...]:
        """Sort the milestones, since their order says nothing, and refuse a list that leaves the learning rate open."""
        ascending = tuple(sorted(milestones, key=lambda milestone: milestone.epoch))
        for one, other in pairwise(ascending):
            if one.epoch == other.epoch:
                raise ValueError(f"a list without two milestones at epoch {one.epoch}")
        rate = info.data.get("learning_rate", 0.0)
        if any(rate / milestone.divisor > LARGEST_FLOAT for milestone in milestones):
            raise ValueError(f"a list that keeps the learning rate below {LARGEST_FLOAT:g}")
        return ascending

    def optimiser(self) -> Optimiser:
        """Return the optimiser that these settings describe."""
        return Optimiser(self.learning_rate, self.momentum, self.weight_decay, self.milestones)


class Trainer:
    """A device and the agreed network; it holds no samples, so a proxy or a server can have one too."""

    private: ClassVar[bool] = False  # whether samples are hidden: nothing may be kept or counted of them for a fit

    def __init__(
        self, model: ModelConfig, train: TrainConfig, device: str = "cpu", store: BlockStore | None = None
    ) -> None:
        if model.mean is None or model.deviation is None:
            raise ValueError("a network needs the mean and the deviation that images are normalised with")
        self.model = model
        self.mean, self.deviation = model.mean, model.deviation
        self.train = train
        self.device = torch.device(device)
        self.frozen = FrozenOutputs(self.device, store or BlockStore())

    def net(self, state: ModelState) -> Classifier:
        """Return a network of its own with these weights, in evaluation mode."""
        net = load_classifier(self.model, self.mean, self.deviation, state, self.device).eval()
        if net.freeze:
            self.frozen.note(net, [tensor for name, tensor in state.items() if not self.model.trains(name)])
        return net

    def tick(self) -> None:
        """Mark a step of long work; a trainer whose time is over raises an error here."""

    def fixed_net(self, state: ModelState) -> Classifier:
        """Return a network with these weights for inference alone."""
        return folded(self.net(state))

    def images(self, samples: Samples, indices: Tensor) -> Tensor:
        """Return images as floats in [0, 1], on the device."""
        return as_floats(samples.pixels(indices).to(self.device))

    def inputs(self, net: Classifier, samples: Samples, indices: Tensor, flipped: bool = False) -> Tensor:
        """Return a network's inputs for images, or for their mirror images.

        These are the images, or else the outputs of the frozen part of the network, computed once. Only images are
        mirrored; other samples stay as they are.
        """
        flipped = flipped and samples.are_images
        if net.freeze:
            return self.frozen.of(net, samples, indices, MIRRORED if flipped else PLAIN)
        images = self.images(samples, indices)
        return images.flip(3) if flipped else images

    def logits(self, net: Classifier, samples: Samples, indices: Tensor) -> Tensor:
        """Return a network's outputs for images; the features of a partly frozen one are kept until it changes."""
        known = self.frozen.features if net.frozen_stages else self.inputs
        with torch.inference_mode():
            found: Tensor = net(known(net, samples, indices))
        return found

    def batch(self, net: Classifier, samples: Samples, indices: Tensor, draw: torch.Generator) -> Tensor:
        """Return a network's training inputs for images: augmented anew or, if it is frozen, in one of its views."""
        settings = self.train.augment
        if not net.freeze:
            return augment(self.images(samples, indices), settings, draw)
        if not self.has_views:
            return self.inputs(net, samples, indices)
        chosen = torch.randint(0, settings.views, (len(indices),), generator=draw)
        versions = [View(number=number, augmentation=settings) for number in range(settings.views)]
        rows = [(chosen == number).nonzero().squeeze(1) for number in range(settings.views)]
        parts = [self.frozen.of(net, samples, indices[part], view) for part, view in zip(rows, versions, strict=True)]
        return torch.cat(parts)[torch.cat(rows).argsort().to(self.device)]

    @property
    def augments(self) -> bool:
        """Say whether an image may look different each time that it is trained on."""
        return self.has_views if self.model.freeze else self.train.augment.changes

    @property
    def repeats(self) -> bool:
        """Say whether outputs for the samples of a fit are worth keeping from epoch to epoch."""
        return not (self.augments or self.private)

    @property
    def has_views(self) -> bool:
        """Say whether a frozen network trains on a fixed number of augmented versions of each image."""
        return bool(self.train.augment.views) and self.train.augment.changes

    def features(self, net: Classifier, samples: Samples, indices: Tensor, flipped: bool = False) -> Tensor:
        """Return a network's features of images, or of their mirror images, without gradients."""
        parts = (self.inputs(net, samples, part, flipped) for part in torch.split(indices, CHUNK))
        with torch.no_grad():
            return torch.cat([net.extract(part) for part in parts])

    def fit(
        self,
        net: Classifier,
        samples: Samples,
        indices: Tensor,
        loss: Loss,
        rates: Sequence[float],
        seed: int,
        optimiser: Optimiser | None = None,
        epoch: Callable[[torch.Generator], list[Tensor]] | None = None,
    ) -> float:
        """Train the network in place, one epoch a rate, and return the mean loss of the last epoch.

        With `model.freeze` this is the trained part; the frozen part's statistics stay as well.
        `epoch` draws the rows of an epoch's batches; unless given, every sample comes once. The optimiser's own
        learning rate is not used; unless given, it is the one of `[train]`.
        """
        draw, settings = generator(seed), self.train
        chosen = optimiser or settings.optimiser()
        lay_out(net, net.layout)
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        descent = Descent(trained, chosen.momentum, chosen.weight_decay)
        losses: list[Tensor] = []
        feed = BatchFeed(self, net, samples, indices)
        if settings.compile:
            net.compile()
        for rate in rates:
            losses = []
            parts = epoch(draw) if epoch else shuffled(torch.arange(len(indices)), settings.batch_size, draw)
            for images, rows in feed.epoch(parts, draw):
                if net.training is not (large := len(rows) >= FEWEST):
                    net.train(large)  # every module is told, which takes long for a small network
                with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.mixed_precision):
                    value = loss(images, rows)
                descent.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                if chosen.clamp is not None:
                    torch.nn.utils.clip_grad_value_(trained, chosen.clamp)
                if chosen.limit is not None:
                    limit_norm(trained, chosen.limit)
                descent.step(rate)
                losses.append(value.detach())
        net.eval()
        lay_out(net, torch.contiguous_format)
        return float(torch.stack(losses).mean())


def lay_out(net: Classifier, layout: torch.memory_format) -> None:
    """Put the weights of our own network's convolutions into a layout, in place."""
    for parameter in net.parameters() if is_ours(net) else ():
        parameter.data = laid_out(parameter.data, layout)


def shuffled(rows: Tensor, size: int, draw: torch.Generator) -> list[Tensor]:
    """Return the rows in random order, cut into batches."""
    return batches(rows[torch.randperm(len(rows), generator=draw)], size)


def longest_batch(samples: int, size: int) -> int:
    """Return the length of the longest batch that `batches` cuts.

    >>> longest_batch(10, 4), longest_batch(3, 4)
    (4, 3)
    """
    return -(-samples // max(1, -(-samples // size)))


def batches(order: Tensor, size: int) -> list[Tensor]:
    """Return the order cut into as few batches as their largest size allows, all of nearly the same length.

    Left-over samples are spread and are no batch of their own: the statistics of two or three samples are so poor that
    a step on them, with gradients a thousand times the usual ones, can undo an epoch.
    """
    return list(torch.tensor_split(order, max(1, -(-len(order) // size))))
