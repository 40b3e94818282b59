"""LGA: No One Left Behind (Dong et al., TPAMI 2023), GLFC's successor, after its released code."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.messages import Message, ModelState, Prototype, RoundContext, derive_seed, generator
from fcil.maths.adaptive import accelerated_measure, adaptive_weights
from fcil.maths.compensation import gradient_measure
from fcil.maths.feature_noise import bounded_noise, class_variances, feature_radius, noise_shape
from fcil.maths.losses import labelled_bce
from fcil.maths.relation import distilled_bce
from fcil.methods.base import Choice, Method, ProxyRole, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.methods.prototypes import GRADIENT_SENT, PrototypeGradient, PrototypesConfig, take_prototypes
from fcil.methods.proxy_role import Judge, PrototypeProxy, ProxyState
from fcil.methods.server import plain_server
from fcil.methods.teachers import teacher_rule
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.trainer import Trainer

LARGEST_SPREAD = 1e6  # of a class's features that is believed


class LGAConfig(PrototypesConfig):
    """The released settings, with our repairs in the edition `fcil`; the paper's own text could not be consulted."""

    # old samples that share a mean gradient: those of one block, or of all blocks up to each one, added up
    grouping: Literal["block", "cumulative"] = by_edition("block")
    smallest_weight: float = by_edition(0.5, ge=0)  # bound that a sample's weight is raised to
    largest_weight: float = by_edition(5.0, gt=0)  # bound that a sample's weight is lowered to
    loss_weight: float = Field(1.0, ge=0, description="lambda of both terms once there is a teacher; 1 before")
    # scale of the noise on the probes' features: their own spread, or that of the first block's images, uploaded
    radius: Literal["prototypes", "participants"] = by_edition("prototypes")
    # the participants' radius until the second block, or if they uploaded none
    first_radius: float = by_edition(0.15, ge=0)
    # noise per feature, before the radius: the class's deviation, or its variance squared
    feature_noise: Literal["deviation", "square"] = by_edition("deviation")
    noise_limit: float = by_edition(0.1, gt=0)  # largest squared length of the noise, in sums of its variances
    noise_draws: int = by_edition(5, ge=1, le=1000)  # features with noise per probe
    score_after: int = by_edition(0, ge=0)  # rounds at the start of a block in which every model scores zero

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": PrototypesConfig.editions["fcil"],
        "released": {
            **PrototypesConfig.editions["official"],
            "best": "once",
            "grouping": "cumulative",
            "radius": "participants",
            "feature_noise": "square",
            "score_after": 6,
        },
    }

    def sends(self) -> dict[str, str]:
        gradient = {"PrototypeGradient": GRADIENT_SENT, **super().sends()}
        if self.radius == "participants":
            return {"MeasuredGradient": "in the first block, how far the features of each class spread", **gradient}
        return gradient


@dataclass(frozen=True)
class MeasuredGradient(PrototypeGradient):
    """A prototype's gradient with the spread of its class: trace(covariance) / D of the features."""

    spread: float


@dataclass(frozen=True)
class SpreadState(Message):
    """The state of the proxy: probes and models, and the spreads that were uploaded in the first block."""

    kept: ProxyState = field(default_factory=ProxyState)
    total: float = 0.0
    count: int = 0


# --- the client ---------------------------------------------------------------------------------------------------


class LGA(UnclippedObjective[LGAConfig]):
    """L = lambda (mean(w L_CE) + mean(w L_RD)), the same weights w on both terms."""

    def __init__(self, config: LGAConfig, problem: Problem, local: ClientContext, setting: Setting) -> None:
        super().__init__(config, problem, local)
        self.setting = setting
        self.before = max(0, len(problem.context.blocks) - 1)
        ends = torch.tensor(problem.context.blocks, device=problem.targets.device)
        self.block = torch.bucketize(problem.targets, ends, right=True)
        self.old = problem.old & ~problem.newest  # of the newest block no class is old, learned before or not
        self.noted: tuple[Prototype, ...] = ()  # what a simulated client shows of its prototypes

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        problem = self.problem
        teacher = problem.teacher_logits(images, rows)
        logits, labels = problem.net(images), problem.targets[rows]
        weights = self.weights(logits, rows)
        classified = (weights * labelled_bce(logits, labels)).mean()
        if teacher is None:
            return classified
        distilled = (weights * distilled_bce(logits, labels, teacher)).mean()
        return self.config.loss_weight * (classified + distilled)

    def weights(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the weight of each sample of a batch; one at a client that has learned nothing before."""
        measure = gradient_measure(logits, self.problem.targets[rows])
        if not self.problem.has_history:
            return torch.ones_like(measure)
        measure = accelerated_measure(measure, self.before)
        found = adaptive_weights(measure, self.block[rows], self.old[rows], self.before, self.config.grouping)
        return found.clamp(self.config.smallest_weight, self.config.largest_weight)

    def uploads(self) -> tuple[Message, ...]:
        """Return one gradient for each class that is new to the client, with the class's spread where it is used."""
        if not self.problem.news.classes:
            return ()
        taken = take_prototypes(self.config, self.setting, self.problem, self.local)
        self.noted = taken.shown
        if self.config.radius == "prototypes" or self.before:
            return tuple(map(PrototypeGradient, taken.gradients))
        spreads = taken.deviations.square().mean(1).tolist()
        return tuple(map(MeasuredGradient, taken.gradients, spreads))

    def shown(self) -> tuple[Prototype, ...]:
        return self.noted


# --- the proxy server ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureJudge:
    """Scores a network by its head, on the features of the probes with noise."""

    config: LGAConfig
    radius: float | None  # none given: that of the probes, under the network itself

    def __call__(self, net: Classifier, images: Tensor, labels: Tensor, seed: int) -> float:
        """Return the share of the features with noise that the head gets right."""
        features = net.extract(images)
        variances, classes = class_variances(features, labels)
        radius = feature_radius(variances) if self.radius is None else self.radius
        deviation, whole = noise_shape(variances, self.config.feature_noise)
        rows = classes.repeat(self.config.noise_draws)
        draw = generator(derive_seed(seed, "feature noise"))
        noise = bounded_noise(radius * deviation[rows], self.config.noise_limit * whole[rows], draw)
        guesses = net.head(features.repeat(self.config.noise_draws, 1) + noise).argmax(1)
        return float((guesses == labels.repeat(self.config.noise_draws)).float().mean())


def no_score(net: Classifier, images: Tensor, labels: Tensor, seed: int) -> float:
    """Return zero for every network, so that the latest one is kept unless there is a score to beat."""
    return 0.0


class SpreadProxy(ProxyRole[SpreadState]):
    """GLFC's proxy with another judge, whose radius may come from the participants' features."""

    def __init__(self, config: LGAConfig, setting: Setting) -> None:
        self.config = config
        self.setting = setting
        self.plain = PrototypeProxy(config, setting)

    def init(self) -> SpreadState:
        return SpreadState()

    def offering(self, state: SpreadState, known: Collection[str], context: RoundContext) -> SpreadState:
        return replace(state, kept=self.plain.offering(state.kept, known, context))

    def choice(self, state: SpreadState, context: RoundContext) -> Choice:
        return self.plain.choice(state.kept, context)

    def round(
        self,
        state: SpreadState,
        uploads: Sequence[Message],
        sent: ModelState,
        averaged: ModelState,
        context: RoundContext,
        seed: int,
        machine: Trainer,
    ) -> SpreadState:
        total, count = state.total, state.count
        if len(context.blocks) == 1:
            spreads = believed(uploads)
            total, count = total + math.fsum(spreads), count + len(spreads)
        judging = PrototypeProxy(self.config, self.setting, self._judge(state, context))
        kept = judging.round(state.kept, uploads, sent, averaged, context, seed, machine)
        return SpreadState(kept, total, count)

    def measures(self, state: SpreadState) -> dict[str, float]:
        return self.plain.measures(state.kept)

    def rebuilt(self, state: SpreadState) -> tuple[Tensor, Tensor] | None:
        return self.plain.rebuilt(state.kept)

    def _judge(self, state: SpreadState, context: RoundContext) -> Judge:
        if context.rounds_since_growth < self.config.score_after:
            return no_score
        if self.config.radius == "prototypes":
            return FeatureJudge(self.config, None)
        known = len(context.blocks) > 1 and state.count > 0
        return FeatureJudge(self.config, math.sqrt(state.total / state.count) if known else self.config.first_radius)


def believed(uploads: Sequence[Message]) -> list[float]:
    """Return the plausible spreads among the uploads."""
    spreads = [upload.spread for upload in uploads if isinstance(upload, MeasuredGradient)]
    return [spread for spread in spreads if 0 <= spread <= LARGEST_SPREAD]  # false of NaN too


def build(config: LGAConfig, setting: Setting) -> Roles:
    """Return the roles of LGA."""
    objective, rule = partial(LGA, setting=setting), teacher_rule(config.teacher)
    client = RehearsalClient(config, setting, objective, teacher=rule)
    return Roles(client, plain_server(), SpreadProxy(config, setting))


register_method(Method("lga", "gradient-adaptive weights on both terms of GLFC's loss (TPAMI 2023)", LGAConfig, build))
