"""Rankers of a class's samples, which choose the exemplars in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fcil.core.messages import Broadcast
from fcil.data.exemplar_memory import Memory
from fcil.maths.herding import herd
from fcil.methods.base import Current, by_edition
from fcil.methods.detection import DetectionConfig
from fcil.models.client_context import ClientContext


class Ranker(Protocol):
    """Ranks the samples of one class that go out of use."""

    def __call__(
        self, samples: Tensor, output: int, share: int, broadcast: Broadcast, current: Current, local: ClientContext
    ) -> Tensor:
        """Return the best `share` of the samples, best first; `output` is that of their class, -1 if it has none."""
        ...


class Curator(Protocol):
    """Chooses a client's exemplars when samples go out of use, for a method that has to see all of them at once."""

    def __call__(
        self,
        memory: Memory,
        finished: Tensor,
        budget: int,
        broadcast: Broadcast,
        current: Current,
        local: ClientContext,
    ) -> Memory:
        """Return the memory, of at most `budget` samples; it keeps all classes as history, with or without samples."""
        ...


class MemoryConfig(DetectionConfig):
    """A method with a memory; one that does not fill it by herding has no more settings of it than these."""


class RehearsalConfig(MemoryConfig):
    """Settings of a memory that is filled by herding; shared by all methods with exemplars."""

    # herding picks each sample once or repeatedly; first: exemplars in the order of the data
    herding: Literal["unique", "replacement", "first"] = by_edition("unique")
    herding_statistics: Literal["evaluation", "batch"] = by_edition("evaluation")  # batch-norm mode while herding

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": DetectionConfig.editions["fcil"],
        "paper": DetectionConfig.editions["paper"],
        "official": {
            **DetectionConfig.editions["official"],
            "herding": "replacement",
            "herding_statistics": "batch",
        },
    }


class Herding:
    """iCaRL's herding under the received model."""

    def __init__(self, config: RehearsalConfig) -> None:
        self.config = config

    def __call__(
        self, samples: Tensor, output: int, share: int, broadcast: Broadcast, current: Current, local: ClientContext
    ) -> Tensor:
        """Return the best samples; the same samples and model give the same ones at every client."""
        if self.config.herding == "first":
            return samples[:share]

        def ranking() -> Tensor:
            features = self._features(samples, broadcast, current, local)
            return samples[herd(features, share, replacement=self.config.herding == "replacement")]

        settings = (self.config.herding, self.config.herding_statistics)
        return local.inference.once((broadcast.model, share, *settings, samples.numpy().tobytes()), ranking)

    def _features(self, samples: Tensor, broadcast: Broadcast, current: Current, local: ClientContext) -> Tensor:
        model = current.models[broadcast.model]
        if self.config.herding_statistics == "batch" and len(samples) > 1:
            with torch.inference_mode():
                net = local.machine.net(model).train()
                return net.extract(local.inputs(net, samples))
        return local.inference.infer(broadcast.model, model, samples).features


def keep_none(
    samples: Tensor, output: int, share: int, broadcast: Broadcast, current: Current, local: ClientContext
) -> Tensor:
    """Keep no sample: the ranker of methods without a memory."""
    return samples[:0]
