"""Inference that is done once: outputs, entropies and small results, remembered by the model's digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcil.maths.entropy import softmax_entropy

if TYPE_CHECKING:
    from fcil.core.messages import ModelState
    from fcil.data.samples import Samples
    from fcil.models.classifier import Classifier
    from fcil.models.trainer import Trainer

BLOCK = 256  # a sample's last bits depend on its batch, so inference always runs on whole blocks of samples
CACHE_BYTES = 512 << 20
ENTROPIES_KEPT = 4  # models whose entropies are kept, one number per sample
RESULTS_KEPT = 4096  # small tensors that `once` remembers
UNKNOWN = -1.0  # no entropy is negative


@dataclass(frozen=True)
class Outputs:
    """Features and logits of some samples under one model, in evaluation mode."""

    features: Tensor
    logits: Tensor


class Inference:
    """Cached inference on one store of samples.

    All simulated clients of a process share one, so what several of them ask about the same model and sample is
    computed once. Answers do not depend on who asked before: inference always runs on whole blocks of samples.
    """

    def __init__(self, samples: Samples, machine: Trainer) -> None:
        self.samples = samples
        self.machine = machine
        self._cache: OrderedDict[tuple[str, int], Outputs] = OrderedDict()
        self._cached_bytes = 0
        self._entropies: OrderedDict[tuple[str, int], Tensor] = OrderedDict()
        self._results: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._net: tuple[str, Classifier] | None = None  # the one that was used last
        self._sorted = torch.empty(0, dtype=torch.int64)  # samples by place; -1: no sample
        self._places = torch.empty(0, dtype=torch.int64)  # of each sample
        self._take_in()

    def _take_in(self) -> None:
        """Give places to samples that have none yet, from the start of a block on: blocks stay as they were cut.

        Blocks are cut from samples sorted by class: who holds some classes needs few blocks beside their samples.
        """
        known = len(self._places)
        if known == len(self.samples):
            return
        # Each addition has blocks of its own, so that a site which starts again cuts them as they were cut before.
        starts = [start for start in self.samples.starts if start >= known]
        for start, end in pairwise([*starts, len(self.samples)]):
            self._place(start, end)

    def _place(self, start: int, end: int) -> None:
        fresh = start + self.samples.labels(torch.arange(start, end)).argsort(stable=True)
        gap = torch.full((-len(self._sorted) % BLOCK,), -1)
        places = torch.empty_like(fresh)
        places[fresh - start] = torch.arange(len(fresh)) + len(self._sorted) + len(gap)
        self._sorted = torch.cat([self._sorted, gap, fresh])
        self._places = torch.cat([self._places, places])

    def infer(self, digest: str, state: ModelState, indices: Tensor) -> Outputs:
        """Return features and logits of samples; each block is computed once per model."""
        self._take_in()
        classes, size = state["head.weight"].shape[0], state["head.weight"].shape[-1]
        features = torch.empty(len(indices), size, device=self.machine.device)
        logits = torch.empty(len(indices), classes, device=self.machine.device)
        for block, rows, places in _by_block(self._places[indices]):
            outputs = self._block(digest, state, block)
            features[rows] = outputs.features[places]
            logits[rows] = outputs.logits[places]
        return Outputs(features, logits)

    def entropies(self, digest: str, state: ModelState, indices: Tensor, outputs: int) -> Tensor:
        """Return the entropy of the first `outputs` outputs for each sample.

        One number per sample is kept for the whole store, so a client's share of it is a single gather.
        """
        self._take_in()
        key = (digest, outputs)
        known = self._entropies.get(key, torch.empty(0))
        if len(known) < len(self.samples):
            more = torch.full((len(self.samples) - len(known),), UNKNOWN)
            self._entropies[key] = torch.cat([known, more])
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
            features = net.extract(self.machine.images(self.samples, self._members(block)))
            outputs = Outputs(features, net.head(features))
        self._keep(key, outputs)
        return outputs

    def _members(self, block: int) -> Tensor:
        """Return the samples of a block."""
        members = self._sorted[block * BLOCK : (block + 1) * BLOCK]
        return members[members >= 0]

    def _inference_net(self, digest: str, state: ModelState) -> Classifier:
        if self._net is None or self._net[0] != digest:
            self._net = digest, self.machine.net(state)
        return self._net[1]

    def _keep(self, key: tuple[str, int], outputs: Outputs) -> None:
        self._cache[key] = outputs
        self._cached_bytes += outputs.features.nbytes + outputs.logits.nbytes
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.features.nbytes + dropped.logits.nbytes


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
