"""What one machine offers to a method: networks, cached inference and seeded training on its own samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fcil.data.source import Source
from fcil.data.transforms import AugmentConfig, as_floats, augment
from fcil.maths.entropy import softmax_entropy
from fcil.models import Classifier, ModelConfig, load_classifier
from fcil.optimiser import PUBLISHED_MILESTONES, Descent, Milestone, Optimiser
from fcil.section import LARGEST_FLOAT, Section
from fcil.wire import ModelState, generator

BLOCK = 256  # a sample's last bits depend on its batch, so inference always runs on whole blocks of samples
CACHE_BYTES = 512 << 20
FEWEST = 4  # samples that batch norm takes statistics of; a smaller batch is trained with the running ones
ENTROPIES_KEPT = 4  # models whose entropies are kept, one number per sample of the source
RESULTS_KEPT = 4096  # small tensors that `once` remembers
UNKNOWN = -1.0  # no entropy is negative

Loss = Callable[[Tensor, Tensor], Tensor]  # (augmented images, their rows in the training set) -> the batch's loss


class TrainConfig(Section):
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
    mixed_precision: bool = Field(False, description="compute in bfloat16 where it is safe; meant for CUDA")
    compile: bool = Field(False, description="use torch.compile where a method calls the whole network; meant for CUDA")

    @field_validator("milestones")
    @classmethod
    def _in_order(cls, milestones: tuple[Milestone, ...], info: ValidationInfo) -> tuple[Milestone, ...]:
        """Sort the milestones, since their order says nothing, and refuse what leaves the learning rate open."""
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


@dataclass(frozen=True)
class Outputs:
    """Features and logits of some samples under one model, in evaluation mode."""

    features: Tensor
    logits: Tensor


class Local:
    """One machine's samples, device and cache; it holds no client's state.

    All simulated clients of a process share one `Local`, so what several of them ask about the same model and sample is
    computed once. Answers do not depend on who asked before: inference always runs on whole blocks of samples.
    """

    def __init__(self, source: Source, model: ModelConfig, train: TrainConfig, device: str = "cpu") -> None:
        self.source = source
        self.model = model
        self.train = train
        self.device = torch.device(device)
        self.current_stage = "start"
        self._cache: OrderedDict[tuple[str, int], Outputs] = OrderedDict()
        self._cached_bytes = 0
        self._entropies: OrderedDict[tuple[str, int], Tensor] = OrderedDict()
        self._results: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._net: tuple[str, Classifier] | None = None  # the one that inference used last
        # Blocks are cut from the samples sorted by class: who holds some classes needs few blocks beside their samples.
        self._sorted = source.train.labels.argsort(stable=True)
        self._places = torch.empty_like(self._sorted)
        self._places[self._sorted] = torch.arange(len(self._sorted))

    def stage(self, name: str) -> nullcontext[None]:
        """Name what a client is doing, so that a failure can say where it happened."""
        self.current_stage = name
        return nullcontext()

    def net(self, state: ModelState) -> Classifier:
        """Return a network of its own with these weights, in evaluation mode."""
        return load_classifier(self.model, self.source.mean, self.source.deviation, state, self.device).eval()

    def labels(self, indices: Tensor) -> Tensor:
        """Return the class ids of training samples."""
        return self.source.train.labels[indices]

    def classes(self, indices: Tensor) -> set[int]:
        """Return the class ids that occur among training samples."""
        counts = torch.bincount(self.source.train.labels[indices])
        return set(counts.nonzero().squeeze(1).tolist())

    def images(self, indices: Tensor) -> Tensor:
        """Return training images as floats in [0, 1]."""
        return as_floats(self.source.train.images[indices].to(self.device))

    def infer(self, digest: str, state: ModelState, indices: Tensor) -> Outputs:
        """Return features and logits of training samples; each block of the source is computed once per model."""
        classes, size = state["head.weight"].shape[0], state["head.weight"].shape[-1]
        features = torch.empty(len(indices), size, device=self.device)
        logits = torch.empty(len(indices), classes, device=self.device)
        for block, rows, places in _by_block(self._places[indices]):
            outputs = self._block(digest, state, block)
            features[rows] = outputs.features[places]
            logits[rows] = outputs.logits[places]
        return Outputs(features, logits)

    def features(self, net: Classifier, indices: Tensor, flipped: bool = False) -> Tensor:
        """Return a network's features of training samples, or of their mirror images, without gradients or cache."""
        parts = (self.images(part) for part in torch.split(indices, BLOCK))
        with torch.no_grad():
            return torch.cat([net.extract(part.flip(3) if flipped else part) for part in parts])

    def entropies(self, digest: str, state: ModelState, indices: Tensor, outputs: int) -> Tensor:
        """Return the entropy of the first `outputs` outputs for each training sample.

        One number per sample is kept for the whole source, so a client's share of it is a single gather.
        """
        key = (digest, outputs)
        if key not in self._entropies:
            self._entropies[key] = torch.full((len(self.source.train),), UNKNOWN)
            while len(self._entropies) > ENTROPIES_KEPT:
                self._entropies.popitem(last=False)
        known = self._entropies[key]
        found = known[indices]
        if not bool((found == UNKNOWN).any()):
            return found
        for block in torch.unique(self._places[indices[found == UNKNOWN]] // BLOCK).tolist():
            values = softmax_entropy(self._block(digest, state, block).logits[:, :outputs])
            known[self._members(block)] = values.cpu()
        return known[indices]

    def once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return what `compute` gives, computed once per key: work that several simulated clients would repeat.

        The key must name everything the result depends on. Nobody may write to the result.
        """
        if key not in self._results:
            self._results[key] = compute()
            while len(self._results) > RESULTS_KEPT:
                self._results.popitem(last=False)
        return self._results[key]

    def _block(self, digest: str, state: ModelState, block: int) -> Outputs:
        key = (digest, block)
        if key in self._cache:
            return self._cache[key]
        with torch.inference_mode():
            net = self._inference_net(digest, state)
            features = net.extract(self.images(self._members(block)))
            outputs = Outputs(features, net.head(features))
        self._keep(key, outputs)
        return outputs

    def _members(self, block: int) -> Tensor:
        """Return the samples of a block."""
        return self._sorted[block * BLOCK : (block + 1) * BLOCK]

    def _inference_net(self, digest: str, state: ModelState) -> Classifier:
        if self._net is None or self._net[0] != digest:
            self._net = digest, self.net(state)
        return self._net[1]

    def _keep(self, key: tuple[str, int], outputs: Outputs) -> None:
        self._cache[key] = outputs
        self._cached_bytes += outputs.features.nbytes + outputs.logits.nbytes
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.features.nbytes + dropped.logits.nbytes

    def fit(
        self,
        net: Classifier,
        indices: Tensor,
        loss: Loss,
        rates: Sequence[float],
        seed: int,
        optimiser: Optimiser | None = None,
        epoch: Callable[[torch.Generator], list[Tensor]] | None = None,
    ) -> float:
        """Train the network in place, one epoch a rate, and return the mean loss of the last epoch.

        `epoch` draws the rows of an epoch's batches; unless given, every sample comes once. The optimiser's own
        learning rate plays no part; unless given, it is the one of `[train]`.
        """
        draw, settings = generator(seed), self.train
        chosen = optimiser or settings.optimiser()
        descent = Descent(net.parameters(), chosen.momentum, chosen.weight_decay)
        losses: list[Tensor] = []
        if settings.compile:
            net.compile()
        for rate in rates:
            losses = []
            for rows in epoch(draw) if epoch else shuffled(torch.arange(len(indices)), settings.batch_size, draw):
                net.train(len(rows) >= FEWEST)
                images = augment(self.images(indices[rows]), settings.augment, draw)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.mixed_precision):
                    value = loss(images, rows)
                descent.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                if chosen.clamp is not None:
                    torch.nn.utils.clip_grad_value_(net.parameters(), chosen.clamp)
                descent.step(rate)
                losses.append(value.detach())
        net.eval()
        return float(torch.stack(losses).mean())


def shuffled(rows: Tensor, size: int, draw: torch.Generator) -> list[Tensor]:
    """Return the rows in random order, cut into batches."""
    return batches(rows[torch.randperm(len(rows), generator=draw)], size)


def batches(order: Tensor, size: int) -> list[Tensor]:
    """Return the order cut into as few batches as their largest size allows, all of nearly the same length.

    What is left over is spread and not a batch of its own: the statistics of two or three samples are so poor that a
    step on them, with gradients a thousand times the usual ones, can undo an epoch.
    """
    return list(torch.tensor_split(order, max(1, -(-len(order) // size))))


def longest_batch(samples: int, size: int) -> int:
    """Return the length of the longest batch that `batches` cuts.

    >>> longest_batch(10, 4), longest_batch(3, 4)
    (4, 3)
    """
    return -(-samples // max(1, -(-samples // size)))


def _by_block(places: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each block that places lie in, with their positions in `places` and where they are within the block."""
    if len(places) == 0:
        return
    ascending, order = places.sort()
    numbers, counts = torch.unique_consecutive(ascending // BLOCK, return_counts=True)
    start = 0
    for block, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        yield block, order[start : start + count], ascending[start : start + count] - block * BLOCK
        start += count
