"""Analytic: a head in closed form on a frozen backbone, from sums over samples that each are counted once.

After AFL (CVPR 2025), Fed3R and STSA (WWW 2026): clients send G = sum of f f^T, the sum of each class's features f and
its samples. The head that follows is the one of all samples in one place, for any split and any order of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, ReportLayout, validate_row_counts
from fcil.core.errors import ConfigError
from fcil.core.messages import Message, ModelState, Report, RoundContext, Shape
from fcil.maths.analytic import (
    Sums,
    are_possible,
    chosen_penalty,
    gaussian_head,
    ridge_head,
    symmetric,
    trace,
)
from fcil.maths.nearest_mean import nearest_mean_head
from fcil.methods.adaptation import AdaptingClient, all_but_the_last_stage
from fcil.methods.base import Extra, Method, MethodConfig, Roles, ServerRole, Setting, register_method
from fcil.methods.ledger import Receipts
from fcil.methods.own_classes import SAMPLES_PER_CLASS
from fcil.methods.privacy import Kind
from fcil.methods.private_sums import NoisyRelease, private_head
from fcil.methods.server import ONE, only_parts, validate_part
from fcil.methods.sums_client import BIAS, CLASSES, COUNTS, GRAM, NOISE, WEIGHT, SumsClient
from fcil.models.classifier import grow, head_width
from fcil.models.config import ModelConfig

LARGEST = 1e18  # a sum that is believed: of 2^40 samples with features of a thousand
MASKED = {
    GRAM: 2.0**26,
    CLASSES: 2.0**22,
    COUNTS: 2.0**20,
    NOISE: 2.0**20,
}  # a masked sum has room for 65,000 samples of features of 32

Matrix = Annotated[Tensor | None, Shape(("features", "features"), torch.float64)]


class AnalyticConfig(MethodConfig):
    """The head that is solved for."""

    private: ClassVar[Kind | None] = "sums"

    solver: Literal["ridge", "gaussian", "nearest-mean"] = Field(
        "ridge",
        description="how the head follows from the sums",
    )
    unit_columns: bool = Field(
        True, description="ridge: weights of length one for each class, which helps small classes"
    )
    shrinkage: float = Field(0.1, gt=0, le=1, description="gaussian: weight of the identity in the covariance")

    projection: int = Field(
        0,
        ge=0,
        le=20_000,
        description="random projections that replace the features; 0: none",
    )
    adapt: Literal["none", "last-stage"] = Field(
        "none",
        description="last-stage: federated averaging trains the network's last stage in the first rounds, with "
        "mosaic's loss; then it is frozen, and sums follow",
    )
    adapt_rounds: int = Field(
        5, ge=1, description="rounds of that training; it ends with the first block at the latest"
    )

    def network(self, model: ModelConfig) -> ModelConfig:
        plain = super().network(model.model_copy(update={"head": self.head}))
        head = "projected" if self.projection else self.head
        freeze = True if self.adapt == "none" else all_but_the_last_stage(model)
        return plain.model_copy(update={"freeze": freeze, "head": head, "projection": self.projection})

    def sends(self) -> dict[str, str]:
        trained = {WEIGHT: SAMPLES_PER_CLASS} if self.adapt != "none" else {}
        return {
            GRAM: "the sum of its features' products with each other, a matrix, instead of a model",
            CLASSES: "the sum of its features of each class",
            COUNTS: SAMPLES_PER_CLASS,
            **trained,
        }


@dataclass(frozen=True)
class SumsState(Message):
    """The sums over all samples so far, and the receipts for them; the head follows from them whenever it is used."""

    classes: int = 0
    gram: Matrix = None
    class_sums: Annotated[Tensor | None, Shape(("counted", "features"), torch.float64)] = None
    counts: Annotated[Tensor | None, Shape(("counted",), torch.float64)] = None
    receipts: Receipts = field(default_factory=Receipts)
    error: float = 0.0  # by which a number of the sums may be wrong, where they were summed in fixed point
    adapted: Annotated[Tensor | None, Shape(("adapted", "features"), torch.float32)] = None  # head of the adaptation
    noise: float = 0.0  # variance of a number of G off its diagonal, under differential privacy

    @property
    def sums(self) -> Sums | None:
        """Return the sums, once there are any."""
        if self.gram is None or self.class_sums is None or self.counts is None:
            return None
        return Sums(self.gram, self.class_sums, self.counts)


class SumsServer(ServerRole[SumsState]):
    """Adds the sums, keeps the receipts beside them, and solves for the head; the model it broadcasts never changes."""

    needs: frozenset[Need] = frozenset({"parts", "exact parts"})
    averages = False

    def __init__(self, config: AnalyticConfig, release: NoisyRelease | None = None) -> None:
        self.config, self.release = config, release

    def init(self) -> SumsState:
        return SumsState()

    def grow(
        self, state: SumsState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[SumsState, ModelState]:
        # The broadcast model has no outputs: clients need its features alone, and so download it once
        return replace(state, classes=classes), model

    def extra(self, state: SumsState, context: RoundContext) -> Extra:
        return Extra(state.receipts)

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        shapes = self.shapes(sent, context)
        return ReportLayout(
            {}, parts={name: PartLayout(shape, MASKED[name], heaviest=1.0) for name, shape in shapes.items()}
        )

    def shapes(self, sent: ModelState, context: RoundContext) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parts of a report."""
        size, classes = sent[WEIGHT].shape[-1], context.classes
        last = {NOISE: ()} if self.release else {COUNTS: (classes,)}
        return {GRAM: (size * (size + 1) // 2,), CLASSES: (classes, size), **last}

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        shapes = self.shapes(sent, context)
        if report.parts.keys() != shapes.keys() or report.rows:
            return only_parts(report, set(shapes)) or f"it should send {', '.join(shapes)}"
        for name, shape in shapes.items():
            problem = validate_part(name, report.parts[name], shape, (), LARGEST, heaviest=1.0)
            if problem or not torch.equal(report.parts[name].weight, ONE):
                return problem or f"its {name} does not count once"
        if self.release:
            return f"its {NOISE} is below zero" if report.parts[NOISE].value < 0 else None
        return _contradiction(report)

    def round(
        self, state: SumsState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[SumsState, ModelState]:
        if not aggregate.clients:
            return state, model
        if self.release:
            return self._released(state, aggregate, context), model
        found = {name: part.total for name, part in aggregate.parts.items()}
        sums = Sums(symmetric(found[GRAM]), found[CLASSES], found[COUNTS])
        size, error = 0.0, state.error + aggregate.parts[GRAM].error
        if state.sums is not None:
            size, sums = trace(state.sums), (state.sums.widened(context.classes) + sums).exact()
        if not are_possible(sums, size, error):
            return state, model  # somebody has withdrawn what was never there: nothing is counted, and all sent again
        receipts = state.receipts.after(context.round, aggregate.clients)
        counted = replace(
            state, gram=sums.gram, class_sums=sums.classes, counts=sums.counts, receipts=receipts, error=error
        )
        return counted, model

    def _released(self, state: SumsState, aggregate: Aggregate, context: RoundContext) -> SumsState:
        """Return the state after a round under differential privacy; a class counts as there once it has noise."""
        if self.release is None or not self.release.happens(context) or NOISE not in aggregate.parts:
            return state
        found = {name: part.total for name, part in aggregate.parts.items()}
        sums = Sums(symmetric(found[GRAM]), found[CLASSES], torch.zeros(context.classes, dtype=torch.float64))
        if state.sums is not None:
            sums = state.sums.widened(context.classes) + sums
        counts = sums.classes.any(1).to(torch.float64)
        receipts = state.receipts.after(context.round, aggregate.clients)
        noise = state.noise + float(found[NOISE])
        return replace(state, gram=sums.gram, class_sums=sums.classes, counts=counts, receipts=receipts, noise=noise)

    def guarantee(self, state: SumsState) -> tuple[float, float] | None:
        if self.release is None or state.sums is None:
            return None
        return self.release.budget, self.release.config.delta

    def predictor(self, state: SumsState, model: ModelState) -> ModelState:
        size, sums = model[WEIGHT].shape[-1], state.sums
        if sums is None:
            return {**model, WEIGHT: torch.zeros(state.classes, size), BIAS: torch.zeros(state.classes)}
        sums = sums.widened(state.classes)
        if self.release:
            weight, bias = private_head(sums, state.noise, self.config.unit_columns)
        else:
            weight, bias = solved(self.config, sums, state.error)
        return {**model, WEIGHT: weight.float(), BIAS: bias.float()}


class AdaptingServer(SumsServer):
    """Trains the last stage first, as long as the model that it broadcasts has outputs."""

    needs: frozenset[Need] = SumsServer.needs | {"rows"}

    def outputs(self, classes: int) -> tuple[int, ...]:
        return (0, classes)

    def expected(self, sent: ModelState) -> ModelState:
        return sent if head_width(sent) else {}

    def grow(
        self, state: SumsState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[SumsState, ModelState]:
        if state.classes == 0 or (head_width(model) and not new_block):
            return replace(state, classes=classes), grow(model, classes, seed)
        if head_width(model):
            state, model = _settled(state, model)
        return super().grow(state, model, classes, new_block, seed)

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        return ReportLayout(sent, (WEIGHT,)) if head_width(sent) else super().layout(sent, context)

    def refusal(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if not head_width(sent):
            return super().refusal(report, sent, context)
        return validate_row_counts(report, (WEIGHT,), context.classes) or only_parts(replace(report, rows={}), set())

    def round(
        self, state: SumsState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[SumsState, ModelState]:
        if not head_width(model):
            return super().round(state, model, aggregate, context)
        is_last = context.rounds_since_growth + 1 >= self.config.adapt_rounds
        return _settled(state, aggregate.model) if is_last else (state, aggregate.model)

    def predictor(self, state: SumsState, model: ModelState) -> ModelState:
        trained = model[WEIGHT] if head_width(model) else state.adapted
        if state.sums is not None or trained is None:
            return super().predictor(state, model)
        rows = F.pad(F.normalize(trained), (0, 0, 0, state.classes - len(trained)))  # it was trained on cosines
        return {**model, WEIGHT: rows, BIAS: torch.zeros(len(rows))}


def _settled(state: SumsState, model: ModelState) -> tuple[SumsState, ModelState]:
    """End the adaptation: the model loses its outputs, which predict until there are sums."""
    return replace(state, adapted=model[WEIGHT]), {**model, WEIGHT: model[WEIGHT][:0], BIAS: model[BIAS][:0]}


def shapes_of(sent: ModelState, context: RoundContext) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the sums."""
    size, classes = sent[WEIGHT].shape[-1], context.classes
    return {GRAM: (size * (size + 1) // 2,), CLASSES: (classes, size), COUNTS: (classes,)}


def solved(config: AnalyticConfig, sums: Sums, error: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the head that follows from sums, whose numbers may be wrong by `error`."""
    if config.solver == "ridge":
        return ridge_head(sums, chosen_penalty(sums, error), config.unit_columns)
    if config.solver == "gaussian":
        return gaussian_head(sums, config.shrinkage)
    return nearest_mean_head(sums.means, sums.counts)


def _contradiction(report: Report) -> str | None:
    """Say which of a report's sums cannot belong to the same samples, if any."""
    gram, classes, counts = (report.parts[name].value for name in (GRAM, CLASSES, COUNTS))
    sign = -1.0 if bool(counts.sum() < 0) else 1.0
    whole = torch.equal(counts, counts.round()) and not bool((sign * counts < 0).any())
    if not whole or float(sign * counts.sum()) != report.samples:
        return f"its {COUNTS} are not whole numbers that add up to its samples"
    if not are_possible(Sums(sign * symmetric(gram), sign * classes, sign * counts)):
        return f"its {GRAM}, {CLASSES} and {COUNTS} are not sums over the same samples"
    return None


def build(config: AnalyticConfig, setting: Setting) -> Roles:
    """Return the roles of the analytic method."""
    release = NoisyRelease(setting.privacy) if setting.privacy.on else None
    if release and config.solver != "ridge":
        raise ConfigError(
            f"method.solver: found {config.solver!r}, should be 'ridge': with privacy.epsilon clients send no counts"
        )
    if config.adapt == "none":
        return Roles(SumsClient(release), SumsServer(config, release))
    if release:
        raise ConfigError(
            f"method.adapt: found {config.adapt!r}, should be 'none': privacy.epsilon covers sums and no training"
        )
    return Roles(AdaptingClient(SumsClient(), setting, config.adapt_rounds), AdaptingServer(config))


register_method(
    Method("analytic", "a head in closed form on frozen features, from sums over all samples", AnalyticConfig, build)
)
