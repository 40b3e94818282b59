"""Training with differential privacy of every image: a method's client whose fits add noise, and its ledger of them.

The noise of a fit is the one with which training for `train.block_epochs` epochs spends `privacy.epsilon`. The ledger
knows the fits that an image may have been in, and an image whose budget is spent is not trained on again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import Broadcast, Diagnostics, Message, Order, Reply, Report, Shape
from fcil.maths.accountant import NoisySteps, Uses, joined, noise_for, spent
from fcil.methods.base import ClientRole, Current, Roles
from fcil.methods.privacy import PrivacyConfig
from fcil.models.client_context import ClientContext
from fcil.models.noisy_trainer import NoisyFit, NoisyTrainer
from fcil.models.trainer import TrainConfig

NOTHING = torch.empty(0, dtype=torch.int64)
NO_NOISE = torch.zeros(0, dtype=torch.float64)


@dataclass(frozen=True)
class Fits(Message):
    """A client's fits so far, and of each image the first and the last one that it may have been in."""

    noise: Annotated[Tensor, Shape(("fits",), torch.float64)] = NO_NOISE
    steps: Annotated[Tensor, Shape(("fits",), torch.int64)] = NOTHING  # of an epoch
    epochs: Annotated[Tensor, Shape(("fits",), torch.int64)] = NOTHING
    images: Annotated[Tensor, Shape(("images",), torch.int64)] = NOTHING  # ascending
    first: Annotated[Tensor, Shape(("images",), torch.int64)] = NOTHING
    last: Annotated[Tensor, Shape(("images",), torch.int64)] = NOTHING

    def uses(self, first: int, last: int) -> Uses:
        """Return the steps of some fits."""
        rows = range(first, last + 1)
        return joined(tuple(_steps(float(self.noise[n]), int(self.steps[n]), int(self.epochs[n])) for n in rows))

    def after(self, fit: NoisyFit, epochs: int) -> Fits:
        """Return the fits with one more."""
        number = len(self.noise)
        images = torch.unique(torch.cat([self.images, fit.samples]))
        first, last = torch.full_like(images, number), torch.full_like(images, number)
        known = torch.searchsorted(images, self.images)
        first[known], last[known] = self.first, torch.where(torch.isin(self.images, fit.samples), number, self.last)
        return Fits(
            torch.cat([self.noise, torch.tensor([fit.noise], dtype=torch.float64)]),
            torch.cat([self.steps, torch.tensor([fit.steps])]),
            torch.cat([self.epochs, torch.tensor([epochs])]),
            images,
            first,
            last,
        )

    def histories(self, images: Tensor) -> Iterator[tuple[Tensor, Uses]]:
        """Yield images with the same history together, and the steps that they may have been in until now."""
        new = images[~torch.isin(images, self.images)]
        if len(new):
            yield new, ()
        old = images[torch.isin(images, self.images)]
        first = self.first[torch.searchsorted(self.images, old)]
        for begun in torch.unique(first).tolist():
            yield old[first == begun], self.uses(begun, len(self.noise) - 1)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Return the first and the last fit of all images, each pair once."""
        pairs = torch.unique(torch.stack([self.first, self.last], 1), dim=0)
        return [(int(first), int(last)) for first, last in pairs]


@dataclass(frozen=True)
class NoisyState(Message):
    """The state of a method's client, and its fits."""

    inner: Message
    fits: Fits


class NoisyClient(ClientRole[NoisyState]):
    """A method's client that trains with noise; its report tells no number of images."""

    def __init__(self, inner: ClientRole[Any], privacy: PrivacyConfig) -> None:
        self.inner, self.privacy = inner, privacy
        self.memory, self.keeps_all, self.teacher = inner.memory, inner.keeps_all, inner.teacher
        self.wants_truth, self.curates = inner.wants_truth, inner.curates

    def init(self) -> NoisyState:
        return NoisyState(self.inner.init(), Fits())

    def round(
        self, state: NoisyState, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[NoisyState, Reply, Diagnostics]:
        train = local.machine.train

        def chosen(images: Tensor, epochs: int) -> NoisyFit:
            return allowed(self.privacy, state.fits, images, epochs, train)

        machine = NoisyTrainer(local.machine, self.privacy.clip, current.noise_key, chosen)
        inner, reply, measured = self.inner.round(
            state.inner, broadcast, order, current, replace(local, machine=machine)
        )
        fits = state.fits
        for fit, epochs in machine.fits:
            fits = fits.after(fit, epochs)
        if reply.report is not None:
            reply = replace(reply, report=_uncounted(reply.report))
        same = inner is state.inner and fits is state.fits
        return state if same else NoisyState(inner, fits), reply, measured

    def spent(self, state: NoisyState) -> float:
        fits = state.fits
        return max((spent(fits.uses(*window), self.privacy.delta) for window in fits.windows), default=0.0)

    def in_use(self, state: NoisyState) -> Tensor:
        return self.inner.in_use(state.inner)

    def without(self, state: NoisyState, samples: Tensor) -> NoisyState:
        return replace(state, inner=self.inner.without(state.inner, samples))


def noised(roles: Roles, privacy: PrivacyConfig) -> Roles:
    """Return the roles with noise in every fit of a client, where images are to be hidden."""
    if privacy.unit != "image":
        return roles
    roles.server.privacy = privacy
    return replace(roles, client=NoisyClient(roles.client, privacy))


def allowed(privacy: PrivacyConfig, fits: Fits, images: Tensor, epochs: int, train: TrainConfig) -> NoisyFit:
    """Return the fit of those images whose budget allows so many epochs."""
    usable, least = images, math.inf
    while len(usable):
        fit = planned_fit(privacy, usable, train)
        step = _steps(fit.noise, fit.steps, epochs)
        costs = [(group, spent(joined((*uses, step)), privacy.delta)) for group, uses in fits.histories(usable)]
        within = [group for group, cost in costs if cost <= privacy.most]
        if len(within) == len(costs):
            return fit
        least = min(cost for _, cost in costs)
        usable = torch.cat([NOTHING, *within])
    raise FederationError(
        f"training on {len(images)} images once more would spend epsilon {least:.3g} of each; privacy.budget allows "
        f"{privacy.most:g}"
    )


def planned_fit(privacy: PrivacyConfig, images: Tensor, train: TrainConfig) -> NoisyFit:
    """Return the fit of some images whose noise keeps `train.block_epochs` epochs within `privacy.epsilon`."""
    assert privacy.epsilon is not None
    steps = -(-len(images) // train.batch_size)
    noise = noise_for(privacy.epsilon, privacy.delta, (_steps(1.0, steps, train.block_epochs),))
    return NoisyFit(images, noise, steps)


def _steps(noise: float, steps: int, epochs: int) -> NoisySteps:
    return NoisySteps(noise, 1 / steps, steps * epochs)


def _uncounted(report: Report) -> Report:
    """Return the report as that of one sample, or of one sample of each class that rows are weighted by."""
    rows = {name: weights.clamp(max=1) for name, weights in report.rows.items()}
    samples = max((int(weights.sum()) for weights in rows.values()), default=1)
    return replace(report, samples=samples, rows=rows)
