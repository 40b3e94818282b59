"""Training under differential privacy (DP-SGD, Abadi et al., 2016): each sample's gradient is clipped, noise is added.

Batches are drawn sample by sample, each with the same probability, as the accountant supposes. A sample that came with
another loss would have changed no other sample's gradient: so there is neither batch norm nor a loss that mixes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fcil.core.keystream import Keystream
from fcil.core.messages import generator
from fcil.maths.gaussian_mechanism import normal
from fcil.models.batch_feed import BatchFeed
from fcil.models.classifier import Classifier
from fcil.models.optimiser import Descent, Optimiser
from fcil.models.trainer import Loss, Trainer

if TYPE_CHECKING:
    from fcil.core.messages import ModelState
    from fcil.data.samples import Samples

HELD = 1 << 24  # numbers of gradients, one per sample and parameter, that are in memory at once


@dataclass(frozen=True)
class NoisyFit:
    """One fit: the samples that may be in its batches, the noise of a step, and the steps of an epoch."""

    samples: Tensor
    noise: float  # in units of the largest gradient
    steps: int  # of an epoch; a sample is in each with a probability of one over this

    @property
    def rate(self) -> float:
        """Return the probability of a sample to be in a batch."""
        return 1 / self.steps


class NoisyTrainer(Trainer):
    """A client's trainer in one round; its noise and its batches come from a key that is used once."""

    private: ClassVar[bool] = True

    def __init__(self, plain: Trainer, clip: float, key: bytes, chosen: Callable[[Tensor, int], NoisyFit]) -> None:
        """Take the largest gradient of a sample, and how a fit follows from the samples and its epochs."""
        super().__init__(plain.model, plain.train, str(plain.device))
        self.frozen, self.plain = plain.frozen, plain
        self.clip, self.chosen, self.draw = clip, chosen, Keystream(key)
        self.fits: list[tuple[NoisyFit, int]] = []  # so far, and the epochs of each

    def tick(self) -> None:
        self.plain.tick()

    def net(self, state: ModelState) -> Classifier:
        net = super().net(state)
        net.layout = torch.contiguous_format  # the other one is unknown to vmap
        return net

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
        """Train the network in place, one epoch a rate, and return the mean loss of the samples in the last epoch.

        Batches are drawn here; `epoch` is not asked.
        """
        fit, chosen, draw = self.chosen(indices, len(rates)), optimiser or self.train.optimiser(), generator(seed)
        self.fits.append((fit, len(rates)))
        usable = torch.isin(indices, fit.samples).nonzero().squeeze(1)
        gradients = ClippedGradients(net.train(), loss, self.clip)
        parameters = gradients.parameters
        descent = Descent(parameters.values(), chosen.momentum, chosen.weight_decay)
        feed, losses = BatchFeed(self, net, samples, indices), [torch.zeros(0, device=self.device)]
        for rate in rates:
            parts = [usable[self._drawn(len(usable), fit.steps)] for _ in range(fit.steps)]
            batches = feed.epoch([rows for rows in parts if len(rows)], draw)
            losses = losses[:1]
            for rows in parts:
                self.tick()
                total, values = gradients.total(*next(batches)) if len(rows) else ({}, losses[0])
                for name, parameter in parameters.items():
                    noise = self._noise(parameter) * (fit.noise * self.clip)
                    parameter.grad = (total.get(name, 0.0) + noise) * (fit.steps / len(usable))
                descent.step(rate)
                losses.append(values)
        net.eval()
        found = torch.cat(losses)
        found = found[found.isfinite()]  # a fit that fails for one sample would tell of it
        return float(found.mean()) if len(found) else 0.0

    def _drawn(self, count: int, steps: int) -> Tensor:
        """Return which of so many samples are in a batch: each by itself, with a probability of one over the steps."""
        return torch.from_numpy((self.draw.below(steps, count) == 0).nonzero()[0])

    def _noise(self, like: Tensor) -> Tensor:
        return torch.from_numpy(normal(like.numel(), self.draw)).view(like.shape).to(like)


class ClippedGradients:
    """The sum of the gradients of single samples, each of them scaled to a length of at most `clip`."""

    def __init__(self, net: Classifier, loss: Loss, clip: float) -> None:
        self.clip = clip
        self.parameters = {
            f"net.{name}": parameter for name, parameter in net.named_parameters() if parameter.requires_grad
        }
        part = _Loss(net, loss)

        def one(parameters: dict[str, Tensor], image: Tensor, row: Tensor) -> Tensor:
            found: Tensor = functional_call(part, parameters, (image[None], row[None]))
            return found

        size = sum(parameter.numel() for parameter in self.parameters.values())
        self._each = vmap(grad_and_value(one), in_dims=(None, 0, 0), chunk_size=max(HELD // size, 1))

    def total(self, images: Tensor, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the sum over some samples by parameter, and the loss of each; one without a gradient adds nothing."""
        detached = {name: parameter.detach() for name, parameter in self.parameters.items()}
        gradients, losses = self._each(detached, images, rows)
        flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
        flat[~flat.isfinite().all(1)] = 0.0
        summed = (flat * (self.clip / flat.norm(dim=1, keepdim=True).clamp(min=self.clip))).sum(0)
        pieces = torch.split(summed, [parameter.numel() for parameter in detached.values()])
        shaped = zip(detached.items(), pieces, strict=True)
        return {name: piece.view(parameter.shape) for (name, parameter), piece in shaped}, losses.detach()


class _Loss(nn.Module):
    """A method's loss as a module, so that its network's parameters can be exchanged."""

    def __init__(self, net: Classifier, loss: Loss) -> None:
        super().__init__()
        self.net, self._loss = net, loss

    def forward(self, images: Tensor, rows: Tensor) -> Tensor:
        return self._loss(images, rows)
