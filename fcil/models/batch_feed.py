"""The batches of a local fit, with as little as possible between the processor and the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcil.data.augment import Draws, as_floats, augmented

if TYPE_CHECKING:
    from fcil.data.samples import Samples
    from fcil.models.classifier import Classifier
    from fcil.models.trainer import Trainer

HELD_BYTES = 512 << 20  # of a fit's samples that stay on the device


class BatchFeed:
    """A fit's training inputs: kept outputs of a frozen network, or images, augmented anew in every epoch.

    An epoch's rows and random draws cross to the device together. Images stay there as bytes if they fit.
    """

    def __init__(self, trainer: Trainer, net: Classifier, samples: Samples, indices: Tensor) -> None:
        self.trainer, self.net, self.samples, self.indices = trainer, net, samples, indices
        self.device, self.settings = trainer.device, trainer.train.augment
        self.is_frozen = bool(net.freeze)
        self.held = self._held()

    def _held(self) -> Tensor | None:
        """Return what stays on the device: inputs that never change, or the bytes of images."""
        if not len(self.indices):
            return None
        if self.is_frozen:
            return None if self.trainer.has_views else self._if_small(self._inputs)
        return None if self.device.type == "cpu" else self._if_small(self._pixels)

    def _if_small(self, read: Callable[[Tensor], Tensor]) -> Tensor | None:
        each = read(self.indices[:1]).nbytes
        return read(self.indices) if each * len(self.indices) <= HELD_BYTES else None

    def _inputs(self, indices: Tensor) -> Tensor:
        return self.trainer.inputs(self.net, self.samples, indices)

    def _pixels(self, indices: Tensor) -> Tensor:
        pixels = self.samples.pixels(indices)
        return (pixels.pin_memory() if self.device.type == "cuda" else pixels).to(self.device, non_blocking=True)

    def epoch(self, parts: Sequence[Tensor], draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs of each batch of an epoch and its rows, on the device."""
        draws = [] if self.is_frozen else [Draws.of(len(rows), self.settings, draw) for rows in parts]
        ends = list(accumulate(map(len, parts)))
        on_device, drawn = self._moved(parts, draws)
        for number, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            rows = parts[number] if on_device is None else on_device[first:last]
            if not self.is_frozen:
                chosen = draws[number] if drawn is None else drawn.rows(first, last)
                yield augmented(as_floats(self._bytes(parts[number], rows)), self.settings, chosen), rows
            elif self.held is not None:
                yield self.held[rows], rows
            else:
                yield self.trainer.batch(self.net, self.samples, self.indices[parts[number]], draw), rows

    def _moved(self, parts: Sequence[Tensor], draws: Sequence[Draws]) -> tuple[Tensor | None, Draws | None]:
        """Return an epoch's rows and draws on the device, or None where that is the processor, which has them."""
        if self.device.type == "cpu" or not parts:
            return None, None
        return torch.cat(list(parts)).to(self.device), Draws.joined(draws).to(self.device) if draws else None

    def _bytes(self, here: Tensor, there: Tensor) -> Tensor:
        return self._pixels(self.indices[here]) if self.held is None else self.held[there]
