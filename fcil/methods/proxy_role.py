"""The proxy server: it rebuilds prototypes from gradients, and keeps the global models that do best on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fcil.core.messages import Message, ModelState, RoundContext, derive_seed, generator
from fcil.core.stopwatch import timed
from fcil.data.augment import augment
from fcil.maths.inversion import invert, labels_from_gradients, wrap_to_pixels
from fcil.methods.base import Choice, ProxyRole, Setting
from fcil.methods.prototypes import PrototypeGradient, PrototypesConfig, shared_encoder
from fcil.methods.teachers import KeptModel, offered
from fcil.models.classifier import Classifier
from fcil.models.lenet import LAST_LAYER, LeNet
from fcil.models.trainer import Trainer

SCORING_BATCH = 64  # of the released code, whose last incomplete batch is dropped

Judge = Callable[[Classifier, Tensor, Tensor, int], float]  # (network, images, labels, seed) -> how well it does


@dataclass(frozen=True)
class Probes(Message):
    """Rebuilt prototypes of the newest block's classes, with the gradient-matching loss of each."""

    images: Tensor
    labels: Tensor
    loss: Tensor


@dataclass(frozen=True)
class ProxyState(Message):
    """The state of the proxy: its probes, and the best model of the current block and of the one before."""

    blocks: tuple[int, ...] = ()
    probes: Probes | None = None
    current: KeptModel | None = None
    last: KeptModel | None = None
    score: float = -1.0  # of the current model on the probes; negative: not scored

    @property
    def former_width(self) -> int:
        """Return the head's width before the newest block."""
        return self.blocks[-2] if len(self.blocks) > 1 else 0


def is_sound(gradient: dict[str, Tensor], encoder: LeNet) -> bool:
    """Say whether a gradient has the encoder's shapes and type, and only finite values."""
    wanted = {name: (parameter.shape, parameter.dtype) for name, parameter in encoder.named_parameters()}
    fits = {name: (value.shape, value.dtype) for name, value in gradient.items()} == wanted
    return fits and all(bool(torch.isfinite(value).all()) for value in gradient.values())


def share_right(net: Classifier, images: Tensor, labels: Tensor, seed: int) -> float:
    """Return the share of the images that a network gets right."""
    return float((net(images).argmax(1) == labels).float().mean())


class PrototypeProxy(ProxyRole[ProxyState]):
    """Rebuilds prototypes from gradients and keeps the global model that does best on them, as `judge` says."""

    def __init__(self, config: PrototypesConfig, setting: Setting, judge: Judge = share_right) -> None:
        self.config = config
        self.setting = setting
        self.judge = judge

    def init(self) -> ProxyState:
        return ProxyState()

    def offering(self, state: ProxyState, known: Collection[str], context: RoundContext) -> ProxyState:
        old, new = state.blocks, context.blocks
        if old and (len(new) < len(old) or new[: len(old) - 1] != old[:-1] or new[len(old) - 1] < old[-1]):
            return ProxyState()  # of blocks that the server has gone back behind
        kept = {key: model for key in ("current", "last") if (model := getattr(state, key)) and model.digest in known}
        score = state.score if "current" in kept else -1.0
        return replace(state, **{"current": None, "last": None, **kept}, score=score)

    def choice(self, state: ProxyState, context: RoundContext) -> Choice:
        return offered(state.current, state.last, context)

    def round(
        self,
        state: ProxyState,
        uploads: Sequence[Message],
        sent: ModelState,
        averaged: ModelState,
        context: RoundContext,
        seed: int,
        machine: Trainer,
    ) -> ProxyState:
        if not context.blocks:  # no class has an output yet, so there is nothing to keep
            return state
        state = self._roll(state, context)
        gradients = [upload.gradient for upload in uploads if isinstance(upload, PrototypeGradient)]
        fresh = self._rebuild(gradients, context, state.former_width, seed, machine)
        if fresh is not None:
            state = self._join(state, fresh, seed, machine)
        scored = (sent, averaged) if self.config.scored == "both" else (averaged,)
        for model in scored:
            state = self._consider(state, model, seed, machine)
        return state

    def measures(self, state: ProxyState) -> dict[str, float]:
        if state.probes is None:
            return {"probes": 0}
        loss = float(state.probes.loss.median())
        return {"probes": len(state.probes.labels), "score": state.score, "matching_loss": loss}

    def rebuilt(self, state: ProxyState) -> tuple[Tensor, Tensor] | None:
        return None if state.probes is None else (state.probes.images, state.probes.labels)

    def _roll(self, state: ProxyState, context: RoundContext) -> ProxyState:
        """Once the head has a new block, make the best of the current block the best of the last one."""
        if len(context.blocks) == len(state.blocks):
            return replace(state, blocks=context.blocks)
        rolled = replace(state, blocks=context.blocks, probes=None, last=state.current or state.last)
        afresh = {"reset": True, "once": len(state.blocks) == 1, "forever": False}
        return replace(rolled, current=None, score=-1.0) if afresh[self.config.best] else rolled

    def _rebuild(
        self, gradients: list[dict[str, Tensor]], context: RoundContext, former_width: int, seed: int, machine: Trainer
    ) -> Probes | None:
        """Return the images behind a round's gradients, of those classes that the newest block brought."""
        if not gradients:
            return None
        encoder = shared_encoder(self.setting, context.classes, machine.device)
        draw = generator(derive_seed(seed, "rebuild"))
        pooled = self._pool([gradient for gradient in gradients if is_sound(gradient, encoder)], draw)
        labels = labels_from_gradients(pooled[LAST_LAYER]) if pooled else torch.empty(0)
        newest = labels >= former_width
        if not bool(newest.any()):
            return None
        labels = labels[newest].to(machine.device)
        with timed("inversion"):
            found = invert(
                encoder,
                {name: value[newest].to(machine.device) for name, value in pooled.items()},
                labels,
                self.setting.image_shape,
                generator=draw,
                evaluations=self.config.rebuild_evaluations,
                learning_rate=self.config.rebuild_learning_rate,
                restarts=self.config.rebuild_restarts,
                keep=self.config.rebuild_keep,
                start=self.config.rebuild_start,
                tick=machine.tick,
            )
        rebuilt = torch.isfinite(found.loss)  # a gradient too large for its square cannot be matched
        if not bool(rebuilt.any()):
            return None
        labels, loss = labels[rebuilt].cpu(), found.loss[rebuilt].cpu()
        if self.config.rebuild_keep == 1:
            return Probes(found.images[rebuilt].cpu(), labels, loss)
        kept = len(found.trail)
        images = found.trail[:, rebuilt].flatten(0, 1)
        if self.setting.columns is None:
            images = wrap_to_pixels(images)
        return Probes(images.cpu(), labels.repeat(kept), loss.repeat(kept))

    def _pool(self, gradients: list[dict[str, Tensor]], draw: torch.Generator) -> dict[str, Tensor]:
        """Return the gradients as one batch per parameter, in an order that tells nothing about their senders."""
        if not gradients:
            return {}
        order = torch.randperm(len(gradients), generator=draw).tolist()
        pooled = {name: torch.stack([gradients[row][name] for row in order]) for name in gradients[0]}
        if self.config.pool == "by-label":
            grouped = labels_from_gradients(pooled[LAST_LAYER]).argsort(stable=True)
            pooled = {name: value[grouped] for name, value in pooled.items()}
        return pooled

    def _join(self, state: ProxyState, fresh: Probes, seed: int, machine: Trainer) -> ProxyState:
        """Add probes to those of the block, and score the kept model again on all of them."""
        old = state.probes
        probes = (
            fresh
            if old is None
            else Probes(
                torch.cat([old.images, fresh.images]),
                torch.cat([old.labels, fresh.labels]),
                torch.cat([old.loss, fresh.loss]),
            )
        )
        state = replace(state, probes=probes)
        if state.current is None or self.config.best != "reset":
            return state
        return replace(state, score=self._score(state.current.model, probes, seed, machine))

    def _consider(self, state: ProxyState, model: ModelState, seed: int, machine: Trainer) -> ProxyState:
        """Keep the model if it does at least as well as the kept one; without probes the latest is kept."""
        score = -1.0 if state.probes is None else self._score(model, state.probes, seed, machine)
        if score < state.score:
            return state
        return replace(state, current=KeptModel.of(model), score=score)

    def _score(self, model: ModelState, probes: Probes, seed: int, machine: Trainer) -> float:
        """Return how well a model does on the probes."""
        images, labels = probes.images.to(machine.device), probes.labels.to(machine.device)
        if self.config.scoring == "augmented":
            images = augment(images, machine.train.augment, generator(derive_seed(seed, "scoring")))
            whole = len(images) // SCORING_BATCH * SCORING_BATCH or len(images)
            images, labels = images[:whole], labels[:whole]
        with torch.inference_mode():
            return self.judge(machine.fixed_net(model), images, labels, seed)
