"""The tools of a client's role: its samples, a trainer, and cached inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fcil.models.inference_cache import Inference

if TYPE_CHECKING:
    import torch

    from fcil.data.samples import Samples
    from fcil.models.classifier import Classifier
    from fcil.models.trainer import Trainer


@dataclass(frozen=True)
class ClientContext:
    """Samples, machine and inference of one place; it holds no client's state."""

    samples: Samples
    machine: Trainer
    inference: Inference

    @classmethod
    def at(cls, samples: Samples, machine: Trainer) -> ClientContext:
        """Return the context of a client with these samples and this trainer."""
        return cls(samples, machine, Inference(samples, machine))

    def images(self, indices: Tensor) -> Tensor:
        """Return images as floats in [0, 1], on the device."""
        return self.machine.images(self.samples, indices)

    def inputs(self, net: Classifier, indices: Tensor) -> Tensor:
        """Return a network's inputs for images: the images, or the outputs of its frozen part."""
        return self.machine.inputs(net, self.samples, indices)

    def batch(self, net: Classifier, indices: Tensor, draw: torch.Generator) -> Tensor:
        """Return a network's training inputs for images, augmented."""
        return self.machine.batch(net, self.samples, indices, draw)

    def features(self, net: Classifier, indices: Tensor, flipped: bool = False) -> Tensor:
        """Return a network's features of images, or of their mirror images, without gradients or cache."""
        return self.machine.features(net, self.samples, indices, flipped)
