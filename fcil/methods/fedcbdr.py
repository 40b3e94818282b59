"""FedCBDR (NeurIPS 2025): replay by leverage over all clients, separate temperatures for old and new classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, ReportLayout
from fcil.core.messages import (
    Broadcast,
    Message,
    ModelState,
    Notice,
    Report,
    RoundContext,
    Shape,
    Weighted,
    derive_seed,
    generator,
)
from fcil.maths.leverage import drawn_order, leverage, mixed_rows, pseudo_inverse, second_moments
from fcil.maths.losses import cross_entropy
from fcil.maths.tempered import (
    NEW_TEMPERATURE,
    NEW_WEIGHT,
    OLD_TEMPERATURE,
    OLD_WEIGHT,
    group_weights,
    tempered_cross_entropy,
)
from fcil.methods.base import Current, Extra, Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import MemoryConfig
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.methods.server import AveragingServer, only_parts, validate_part
from fcil.models.client_context import ClientContext
from fcil.models.optimiser import Optimiser

MOMENTS = "moments"  # X^T X / n of the features of a participant's newest arrival, weighted by its n samples
LARGEST = 1e8  # second moment that is believed
USUAL = 64.0  # feature that a masked sum has room for; larger moments are clipped
ROUNDING = 1e-4  # by which second moments may fail to be symmetric or positive, as a share of the largest one


class FedCBDRConfig(MemoryConfig):
    """Settings of the choice of exemplars and of the loss; the defaults are the best ones of the paper."""

    # leverage of each sample, or of random mixtures of samples, as the paper prints it
    scores: Literal["leverage", "mixed"] = by_edition("leverage")
    pick: Literal["draw", "top"] = Field(
        "draw",
        description="how exemplars are chosen by these scores: drawn in proportion to them, or the highest ones",
    )
    old_temperature: float = Field(OLD_TEMPERATURE, gt=0, description="tau_o: the old outputs are divided by it")
    new_temperature: float = Field(
        NEW_TEMPERATURE, gt=0, description="tau_n: the outputs of the newest block are divided by it"
    )
    old_weight: float = Field(OLD_WEIGHT, ge=0, description="omega_o: weight of a batch's mean over its old samples")
    new_weight: float = Field(
        NEW_WEIGHT, ge=0, description="omega_n: weight of a batch's mean over its samples of the newest block"
    )

    native: ClassVar[Optimiser] = Optimiser(0.01, weight_decay=1e-5)
    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {**MemoryConfig.editions, "released": {"scores": "mixed"}}

    def sends(self) -> dict[str, str]:
        return {MOMENTS: "the mean product of its features with each other, a matrix", **super().sends()}


@dataclass(frozen=True)
class InverseGram(Notice):
    """The pseudo-inverse of the Gram matrix of all features that participants had in the latest round."""

    inverse: Annotated[Tensor, Shape(("features", "features"), torch.float32)]


@dataclass(frozen=True)
class LeverageState(Message):
    """The sums over the participants of the latest round, if any sent something."""

    known: InverseGram | None = None


# --- the client ---------------------------------------------------------------------------------------------------


class Leverage:
    """Ranks the samples of a class by their leverage among the data of the last round's participants."""

    def __init__(self, config: FedCBDRConfig) -> None:
        self.config = config

    def __call__(
        self, samples: Tensor, output: int, share: int, broadcast: Broadcast, current: Current, local: ClientContext
    ) -> Tensor:
        """Return the exemplars of a class; where nothing is known of other clients, by the class's own features."""
        features = local.inference.infer(broadcast.model, current.models[broadcast.model], samples).features
        features = features.cpu().nan_to_num()  # a network that has diverged leaves some order, not an error
        known, draw = broadcast.extra, generator(derive_seed(current.seed, "exemplars", output))
        inverse = known.inverse if isinstance(known, InverseGram) else pseudo_inverse(second_moments(features))
        scores = leverage(mixed_rows(features, draw) if self.config.scores == "mixed" else features, inverse)
        if self.config.pick == "top":
            return samples[scores.argsort(descending=True, stable=True)[:share]]
        return samples[drawn_order(scores, draw)[:share]]


class FedCBDR(UnclippedObjective[FedCBDRConfig]):
    """omega_o mean(-ln q_y) over old samples + omega_n mean(-ln q_y) over new ones, q with two temperatures."""

    def __init__(self, config: FedCBDRConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.moments = self._moments()

    def _moments(self) -> Weighted | None:
        """Return the second moments of the newest arrival under the model as received, which the fit is to change."""
        latest = self.problem.news.latest
        if len(latest) == 0:
            return None
        moments = second_moments(self.local.features(self.problem.net, latest)).float().cpu()
        if not bool((moments.abs() <= LARGEST).all()):
            return None  # the network has diverged, and nobody would believe it
        return Weighted(moments, torch.tensor(float(len(latest)), dtype=torch.float64))

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        logits, labels = self.problem.net(images), self.problem.targets[rows]
        old_classes, config = self.problem.context.old_classes, self.config
        if not old_classes:
            return cross_entropy(logits, labels).mean()
        losses = tempered_cross_entropy(logits, labels, old_classes, config.old_temperature, config.new_temperature)
        weights = group_weights(~self.problem.newest[rows], config.old_weight, config.new_weight)
        return (weights * losses).sum()

    def parts(self) -> dict[str, Weighted]:
        return {} if self.moments is None else {MOMENTS: self.moments}


# --- the server ---------------------------------------------------------------------------------------------------


class LeverageServer(AveragingServer[LeverageState]):
    """Adds up the participants' Gram matrices, and tells everybody the inverse.

    Of the latest round only: an earlier one has other features, and who trained in both would count twice. A round in
    which nobody sends any leaves the last ones.
    """

    needs: frozenset[Need] = frozenset({"parts"})

    def extra(self, state: LeverageState, context: RoundContext) -> Extra:
        return Extra(state.known)

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        size = sent["head.weight"].shape[1]
        return ReportLayout(sent, self.counted_rows, {MOMENTS: PartLayout((size, size), USUAL**2)})

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if MOMENTS not in report.parts:
            return only_parts(report, set())
        part, size = report.parts[MOMENTS], sent["head.weight"].shape[1]
        problem = only_parts(report, {MOMENTS})
        problem = problem or validate_part(MOMENTS, part, (size, size), (), LARGEST, heaviest=report.samples)
        return problem or _impossible(part.value.double())

    def round(
        self, state: LeverageState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[LeverageState, ModelState]:
        if MOMENTS in aggregate.parts:
            state = LeverageState(InverseGram(pseudo_inverse(aggregate.parts[MOMENTS].total).float()))
        return super().round(state, model, aggregate, context)


def _impossible(moments: Tensor) -> str | None:
    """Say why a matrix cannot be one of second moments, if it cannot."""
    allowed = ROUNDING * moments.abs().max()
    if bool((moments - moments.T).abs().max() > allowed):
        return f"its {MOMENTS} are not symmetric, as second moments are"
    if bool(torch.linalg.eigvalsh(moments)[0] < -allowed):
        return f"its {MOMENTS} have negative eigenvalues, as second moments cannot"
    return None


def build(config: FedCBDRConfig, setting: Setting) -> Roles:
    """Return the roles of FedCBDR."""
    client = RehearsalClient(config, setting, FedCBDR, ranker=Leverage(config))
    return Roles(client, LeverageServer(LeverageState()))


register_method(
    Method(
        "fedcbdr",
        "exemplars by leverage over all clients, a temperature for old and for new classes (NeurIPS 2025)",
        FedCBDRConfig,
        build,
    )
)
