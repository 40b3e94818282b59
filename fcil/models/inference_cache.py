"""Inference that is done once: outputs, entropies and small results, remembered by the model's digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcil.maths.entropy import softmax_entropy
from fcil.models.classifier import feature_size

if TYPE_CHECKING:
    from fcil.core.messages import ModelState
    from fcil.data.samples import Samples
    from fcil.models.classifier import Classifier
    from fcil.models.trainer import Trainer

CACHE_BYTES = 512 << 20
ENTROPIES_KEPT = 4  # models whose entropies are kept, one number per sample
RESULTS_KEPT, RESULTS_BYTES = 4096, 256 << 20  # tensors that `once` remembers
UNKNOWN = -1.0  # no entropy is negative


@dataclass(frozen=True)
class Outputs:
    """Features and logits of some samples under one model, in evaluation mode."""

    features: Tensor
    logits: Tensor


class Inference:
    """Cached inference on one store of samples.

    All simulated clients of a process share one, so each pair of model and sample is computed once. Results do not
    depend on earlier calls: inference always runs on whole blocks of samples.
    """

    def __init__(self, samples: Samples, machine: Trainer) -> None:
        self.samples = samples
        self.machine = machine
        self._cache: OrderedDict[tuple[str, int], Outputs] = OrderedDict()
        self._cached_bytes = 0
        self._entropies: OrderedDict[tuple[str, int], Tensor] = OrderedDict()
        self._results: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._results_bytes = 0
        self._net: tuple[str, Classifier] | None = None  # the one that was used last

    def infer(self, digest: str, state: ModelState, indices: Tensor) -> Outputs:
        """Return features and logits of samples; each block is computed once per model."""
        classes, size = state["head.weight"].shape[0], feature_size(state)
        features = torch.empty(len(indices), size, device=self.machine.device)
        logits = torch.empty(len(indices), classes, device=self.machine.device)
        for block, rows, places in self.samples.blocks.parts(indices):
            outputs = self._block(digest, state, block)
            features[rows] = outputs.features[places]
            logits[rows] = outputs.logits[places]
        return Outputs(features, logits)

    def entropies(self, digest: str, state: ModelState, indices: Tensor, outputs: int) -> Tensor:
        """Return the entropy of the first `outputs` outputs for each sample.

        One number per sample is kept for the whole store, so a client's share of it is a single gather.
        """
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
        for block, _, _ in self.samples.blocks.parts(indices[found == UNKNOWN]):
            values = softmax_entropy(self._block(digest, state, block).logits[:, :outputs])
            known[self.samples.blocks.members(block)] = values.cpu()
        return known[indices]

    def once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, computed once per key: work that several simulated clients would repeat.

        The key must name everything the result depends on. Nobody may write to the result.
        """
        if key not in self._results:
            self._results[key] = compute()
            self._results_bytes += self._results[key].nbytes
            while len(self._results) > 1 and (len(self._results) > RESULTS_KEPT or self._results_bytes > RESULTS_BYTES):
                self._results_bytes -= self._results.popitem(last=False)[1].nbytes
        return self._results[key]

    def _block(self, digest: str, state: ModelState, block: int) -> Outputs:
        key = (digest, block)
        if key in self._cache:
            return self._cache[key]
        with torch.inference_mode():
            net = self._inference_net(digest, state)
            members = self.samples.blocks.members(block)
            features = net.extract(self.machine.inputs(net, self.samples, members))
            outputs = Outputs(features, net.head(features))
        self._keep(key, outputs)
        return outputs

    def _inference_net(self, digest: str, state: ModelState) -> Classifier:
        if self._net is None or self._net[0] != digest:
            self._net = digest, self.machine.fixed_net(state)
        return self._net[1]

    def _keep(self, key: tuple[str, int], outputs: Outputs) -> None:
        self._cache[key] = outputs
        self._cached_bytes += outputs.features.nbytes + outputs.logits.nbytes
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.features.nbytes + dropped.logits.nbytes
