"""A site's checks of what the server sends, before it trains or reports an accuracy.

The bounds are wide, since training is wild, and do not widen with the rounds that a site has missed, whose number the
server can make up. They stop crafted models that read images out of gradients or counts, not a patient server that
stays within them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import ModelState, RoundContext
from fcil.deployment.client.begun_round import catalogue_digest
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.party_store import BegunRound, LastEvaluation
from fcil.federation.class_catalogue import is_class_id
from fcil.models.classifier import HEAD_ROWS, WEIGHT, frozen_digest, head_width, is_head
from fcil.models.config import ModelConfig

FLOOR = 0.1  # added to the size of a tensor, which may begin at zero: about the size of fresh weights
SLACK = 1.001  # for rounding
LEAST_FEATURES = 16  # with fewer, directions drawn at random may be alike
ALIKE = 0.99  # cosine of two rows that were not drawn independently


class SuspectError(FederationError):
    """The server has sent something that no honest server sends; the site does not take part in the round."""


def as_many(classes: int) -> tuple[int, ...]:
    """Return the numbers of outputs of a model with one per class."""
    return (classes,)


@dataclass(frozen=True)
class Guard:
    """The checks of one site under its limits; `backbone` is the digest that the terms give, where it is frozen."""

    limits: PartyLimits
    backbone: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    outputs: Callable[[int], tuple[int, ...]] = as_many  # of a model, by the classes of the catalogue
    every_round: bool = True  # whether the terms ask every site in every round, if only to look on

    # --- classes ----------------------------------------------------------------------------------------------------

    def check_context(self, context: RoundContext, before: BegunRound | None, own: Collection[str]) -> None:
        """Refuse a catalogue that is malformed, does not continue the previous one, or grows too fast."""
        if not 0 <= context.round < self.limits.rounds:
            raise SuspectError(f"round {context.round + 1} is beyond this site's limit rounds, {self.limits.rounds}")
        ids, blocks = context.catalogue, context.blocks
        ascending = all(low < high for low, high in zip((0, *blocks), blocks, strict=False))
        if not ascending or (blocks or (0,))[-1] != len(ids) or len(set(ids)) < len(ids):
            raise SuspectError("the blocks of the catalogue do not add up to its classes")
        if not all(map(is_class_id, ids)) or not 0 <= context.rounds_since_growth <= context.round:
            raise SuspectError("the catalogue has class ids or a round of growth that cannot be")
        if before is not None:
            _check_continued(context, before)
        fresh = set(ids[before.classes if before else 0 :]).difference(own)
        if len(fresh) > self.limits.new_classes:
            raise SuspectError(
                f"the catalogue has {len(fresh)} new classes of others, and this site's limit new_classes is "
                f"{self.limits.new_classes}"
            )

    def check_evaluation(
        self,
        context: RoundContext,
        evaluated: LastEvaluation | None,
        last: BegunRound | None,
        own: Collection[str],
        final: bool = False,
    ) -> BegunRound:
        """Return the round to evaluate: the last one, once, within the limit on the number of rounds.

        A server that may name any later round could have one model after the other evaluated; so a site that is asked
        in every round must have taken part in this one, but for the `final` model, of which it then tells nothing.
        """
        if evaluated is not None and context.round <= evaluated.round:
            raise SuspectError(f"a model after round {evaluated.round} was evaluated; a site evaluates one per round")
        if evaluated is not None and evaluated.count >= self.limits.evaluations:
            raise SuspectError(f"this site's limit evaluations is {self.limits.evaluations}, and there were as many")
        if last is None or last.round >= context.round:
            raise SuspectError(f"a model after round {context.round} is none of the last round of this site")
        if self.missed(context, last) and not final:
            raise SuspectError(f"this site took no part in round {context.round}, and tells nothing of its model")
        self.check_context(context, last, own)
        if context.round == last.round + 1 and context.classes != last.classes:
            raise SuspectError("the catalogue is not the one of the round that is evaluated")
        return last

    def missed(self, context: RoundContext, last: BegunRound) -> bool:
        """Return whether a site whose last round is given was to take part in a later one before this evaluation."""
        return self.every_round and context.round != last.round + 1

    # --- models -----------------------------------------------------------------------------------------------------

    def check_model(
        self,
        model: ModelState,
        context: RoundContext,
        before: BegunRound | None,
        former: ModelState | None,
        corrected: bool = False,
    ) -> None:
        """Refuse a model that cannot follow from the former one; the head of a `corrected` one may be any."""
        outputs = (context.classes,) if corrected else self.outputs(context.classes)
        if WEIGHT not in model or head_width(model) not in outputs:
            raise SuspectError("the model does not have an output for each class of the catalogue")
        self.check_backbone(model)
        if not corrected:
            fresh = context.round - (before.round if before else -1) == 1
            self._check_new_rows(model, before.classes if before else 0, fresh)
        if former is not None:
            free = {name for name in model if corrected and is_head(name)}
            free |= set(HEAD_ROWS) if head_width(model) == 0 else set()
            rest = {name: tensor for name, tensor in model.items() if name not in free}
            self._check_step(rest, former)

    def check_release(self, model: ModelState, catalogue: tuple[str, ...], last: BegunRound | None) -> None:
        """Refuse a release that is not of these classes, or whose classes are not those of the rounds so far."""
        if not all(map(is_class_id, catalogue)) or WEIGHT not in model or head_width(model) != len(catalogue):
            raise SuspectError("the release does not have an output for each of its classes")
        if last is not None and len(catalogue) >= last.classes:  # of the first few alone there is no digest
            self._check_same_classes(catalogue[: last.classes], last)
        self.check_backbone(model)

    def _check_same_classes(self, catalogue: tuple[str, ...], last: BegunRound) -> None:
        if catalogue_digest(catalogue) != last.catalogue:
            raise SuspectError("the classes of the release are not those of the rounds so far")

    def check_backbone(self, model: ModelState) -> None:
        """Refuse a model with a value that is not finite, or with another backbone than the terms have frozen."""
        for name, tensor in model.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise SuspectError(f"the model is not finite: {name}")
        if self.backbone and frozen_digest(model, self.model) != self.backbone:
            raise SuspectError("the backbone is not the frozen one of the terms")

    def _check_new_rows(self, model: ModelState, known: int, fresh: bool) -> None:
        """Refuse outputs that no growth makes; outputs that may have been trained since have more room."""
        features = model[WEIGHT].shape[-1]
        room = SLACK if fresh else self.limits.step
        for name in HEAD_ROWS:
            rows = model.get(name, torch.empty(0))[known:].double()
            lengths = rows.norm(dim=-1) if rows.ndim > 1 else rows.abs() * math.sqrt(features)
            if bool((lengths > room).any()):
                raise SuspectError("new outputs of the head are larger than a growth makes them")
        if fresh and features >= LEAST_FEATURES and _alike(model[WEIGHT][known:].flatten(1)):
            raise SuspectError("new outputs of the head are copies of each other")

    def _check_step(self, model: ModelState, former: ModelState) -> None:
        for name, tensor in model.items():
            old = former.get(name)
            if old is None or old.shape[1:] != tensor.shape[1:]:
                raise SuspectError(f"the model has another shape than the one before: {name}")
            if not tensor.is_floating_point() or old.numel() == 0:
                continue
            now = tensor[: len(old)] if is_head(name) else tensor
            if now.shape != old.shape:
                raise SuspectError(f"the model has another shape than the one before: {name}")
            if _size(now - old) > self.limits.step * (_size(old) + FLOOR):
                raise SuspectError(f"{name} has changed by more than this site's limit step, {self.limits.step:g}")

    def check_loss(self, logits: Tensor, targets: Tensor) -> None:
        """Refuse a model whose loss on the site's images is not finite, or far above the loss of a guess."""
        if len(targets) == 0:
            return
        loss = float(F.cross_entropy(logits.double(), targets))
        guess = math.log(max(logits.shape[1], 2))
        if not loss <= self.limits.loss * guess:  # NaN, too
            raise SuspectError("the loss of the received model is out of all proportion")


def _check_continued(context: RoundContext, before: BegunRound) -> None:
    """Refuse a catalogue that has lost or moved a class since a round before, or whose blocks have changed."""
    old, new, gap = before.blocks, context.blocks, context.round - before.round
    if catalogue_digest(context.catalogue[: before.classes]) != before.catalogue:
        raise SuspectError("classes of the catalogue have been removed or moved")
    if old and (len(new) < len(old) or new[: len(old) - 1] != old[:-1] or new[len(old) - 1] < old[-1]):
        raise SuspectError("blocks of the catalogue have been changed")
    since = context.rounds_since_growth
    if since != before.rounds_since_growth + gap if len(new) == len(old) else since >= gap:
        raise SuspectError("the round in which the newest block began has been changed")


def _alike(rows: Tensor) -> bool:
    """Say whether two rows have nearly the same or the opposite direction."""
    unit = F.normalize(rows.double())
    return bool((unit @ unit.T).abs().fill_diagonal_(0).gt(ALIKE).any())


def _size(tensor: Tensor) -> float:
    """Return the root of the mean square."""
    return float(tensor.double().square().mean().sqrt())
