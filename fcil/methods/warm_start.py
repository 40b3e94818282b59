"""Warm start: in the first round of a block, sums of features give the new rows of a method's head their direction.

After Fed3R+FT: participants send the sums of the method `analytic` over what they train on, beside their report. After
the round, the rows of the newest classes point where the ridge solution of these sums does, as long as they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.aggregate import Aggregate
from fcil.core.errors import stage
from fcil.core.messages import (
    Broadcast,
    Diagnostics,
    Message,
    ModelState,
    Order,
    Reply,
    Report,
    RoundContext,
    Weighted,
)
from fcil.maths.analytic import Sums, are_possible, chosen_penalty, feature_sums, ridge, symmetric, triangle
from fcil.methods.base import Choice, ClientRole, Current, Extra, MethodConfig, Roles, ServerRole
from fcil.methods.detection import WARM, FitConfig
from fcil.methods.server import ONE, validate_part
from fcil.models.classifier import WEIGHT, feature_size

if TYPE_CHECKING:
    from fcil.models.client_context import ClientContext
    from fcil.models.trainer import Trainer

GRAM, CLASSES, COUNTS = (f"{WARM}{name}" for name in ("gram", "class_sums", "counts"))
NAMES = frozenset({GRAM, CLASSES, COUNTS})
LARGEST = 1e18  # a sum that is believed: of 2^40 samples with features of a thousand


def warmed(roles: Roles, config: MethodConfig) -> Roles:
    """Return the roles with a warm start where that is asked for."""
    if not isinstance(config, FitConfig) or not config.warm_start:
        return roles
    return replace(roles, client=WarmClient(roles.client), server=WarmServer(roles.server))


def is_due(context: RoundContext) -> bool:
    """Say whether sums are sent: in the first round of a block."""
    return context.rounds_since_growth == 0


class WarmClient(ClientRole[Any]):
    """A method's client that sends sums in the first round of a block."""

    def __init__(self, inner: ClientRole[Any]) -> None:
        self.inner = inner
        self.memory, self.keeps_all, self.teacher = inner.memory, inner.keeps_all, inner.teacher
        self.wants_truth, self.curates = inner.wants_truth, inner.curates

    def init(self) -> Message:
        found: Message = self.inner.init()
        return found

    def round(
        self, state: Message, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[Message, Reply, Diagnostics]:
        state, reply, diagnostics = self.inner.round(state, broadcast, order, current, local)
        if reply.report is not None and is_due(broadcast.context):
            with stage("sums"):
                parts = _sums(self.inner.in_use(state), broadcast, current, local)
                reply = replace(reply, report=replace(reply.report, parts={**reply.report.parts, **parts}))
        return state, reply, diagnostics

    def in_use(self, state: Message) -> Tensor:
        return self.inner.in_use(state)

    def without(self, state: Message, samples: Tensor) -> Message:
        found: Message = self.inner.without(state, samples)
        return found


def _sums(samples: Tensor, broadcast: Broadcast, current: Current, local: ClientContext) -> dict[str, Weighted]:
    outputs = local.samples.outputs(samples, broadcast.context)
    known = samples[outputs >= 0]
    features = local.inference.infer(broadcast.model, current.models[broadcast.model], known).features.cpu()
    sums = feature_sums(features, outputs[outputs >= 0], broadcast.context.classes)
    found = {GRAM: triangle(sums.gram), CLASSES: sums.classes, COUNTS: sums.counts}
    return {name: Weighted(value, ONE) for name, value in found.items()}


class WarmServer(ServerRole[Any]):
    """A method's server that turns the new rows of the head after the first round of a block."""

    def __init__(self, inner: ServerRole[Any]) -> None:
        self.inner = inner
        self.needs = inner.needs | {"parts"}
        self.averages, self.chooses, self.counted_rows = inner.averages, inner.chooses, inner.counted_rows

    def init(self) -> Message:
        found: Message = self.inner.init()
        return found

    def settle(self, state: Message, model: ModelState, context: RoundContext, seed: int, machine: Trainer) -> Message:
        found: Message = self.inner.settle(state, model, context, seed, machine)
        return found

    @property
    def settles(self) -> bool:
        return self.inner.settles

    def grow(
        self, state: Message, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[Message, ModelState]:
        return self.inner.grow(state, model, classes, new_block, seed)

    def extra(self, state: Message, context: RoundContext) -> Extra:
        return self.inner.extra(state, context)

    def choice(self, state: Message, context: RoundContext) -> Choice | None:
        return self.inner.choice(state, context)

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        ours = {name: part for name, part in report.parts.items() if name in NAMES}
        if is_due(context):
            problem = _problem(ours, feature_size(sent), context.classes)
            if problem:
                return problem
            report = replace(report, parts={name: part for name, part in report.parts.items() if name not in NAMES})
        return self.inner.objection(report, sent, context)

    def round(
        self, state: Message, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[Message, ModelState]:
        ours = {name: part.total for name, part in aggregate.parts.items() if name in NAMES}
        others = {name: part for name, part in aggregate.parts.items() if name not in NAMES}
        state, model = self.inner.round(state, model, replace(aggregate, parts=others), context)
        if ours.keys() == NAMES:
            model = turned(model, Sums(symmetric(ours[GRAM]), ours[CLASSES], ours[COUNTS]), context.old_classes)
        return state, model

    def predictor(self, state: Message, model: ModelState) -> ModelState:
        return self.inner.predictor(state, model)


def _problem(parts: dict[str, Weighted], size: int, classes: int) -> str | None:
    """Return an objection to the sums of a report, if there is one."""
    shapes = {GRAM: (size * (size + 1) // 2,), CLASSES: (classes, size), COUNTS: (classes,)}
    for name, shape in shapes.items():
        if name not in parts:
            return f"it should send {', '.join(sorted(NAMES))} in the first round of a block"
        problem = validate_part(name, parts[name], shape, (), LARGEST, heaviest=1.0)
        if problem or not torch.equal(parts[name].weight, ONE):
            return problem or f"its {name} does not count once"
    sums = Sums(symmetric(parts[GRAM].value), parts[CLASSES].value, parts[COUNTS].value)
    return None if are_possible(sums) else f"its {GRAM}, {CLASSES} and {COUNTS} are not sums over the same samples"


def turned(model: ModelState, sums: Sums, old: int) -> ModelState:
    """Return the model whose newest rows, of classes with samples, have the direction of the ridge solution."""
    weight = model[WEIGHT]
    chosen = (sums.counts > 0) & (torch.arange(len(weight)) >= old)
    if not bool(chosen.any()):
        return model
    solution = ridge(sums.gram, sums.classes, chosen_penalty(sums))[chosen]
    lengths = weight[chosen].double().norm(dim=1, keepdim=True)
    rows = weight.clone()
    rows[chosen] = (F.normalize(solution, dim=1) * lengths).to(weight.dtype)
    return {**model, WEIGHT: rows}
