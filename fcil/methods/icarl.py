"""iCaRL (CVPR 2017) in federated form: exemplars by herding, old outputs distilled, and the nearest mean by choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, ReportLayout
from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted
from fcil.maths.nearest_mean import class_means, nearest_mean_head
from fcil.maths.relation import distilled_bce
from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.own_classes import OwnedConfig, OwnedObjective
from fcil.methods.server import AveragingServer, newest_older_model, only_parts, plain_server, validate_part
from fcil.models.optimiser import Optimiser, milestones


class ICaRLConfig(OwnedConfig):
    """The rule of prediction; the rest is shared."""

    predict: Literal["fc", "nme"] = Field(
        "fc",
        description="fc: by the highest output; nme: by the nearest class mean, for which clients upload the means of "
        "their training data",
    )

    native: ClassVar[Optimiser] = Optimiser(2.0, 0.9, 2e-5, milestones((49, 5), (63, 25)), epochs=70)

    def sends(self) -> dict[str, str]:
        means = {MEANS: "for each class: the mean feature and the number of samples"} if self.predict == "nme" else {}
        return {**means, **super().sends()}


MEANS = "means"  # of the classes that a client trains on, weighted by its samples of each


@dataclass(frozen=True)
class MeansState(Message):
    """The newest class means that came in, and how many samples each is of; a row per output."""

    means: Tensor | None = None
    counts: Tensor | None = None


class ICaRL(OwnedObjective[ICaRLConfig]):
    """One binary cross-entropy, whose target is the teacher's sigmoid for every old output."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher = self.problem.teacher_logits(images, rows)
        logits, labels = self.problem.net(images), self.problem.targets[rows]
        return distilled_bce(logits, labels, teacher, self.outputs(teacher)).mean()

    def parts(self) -> dict[str, Weighted]:
        """Return the class means under the fitted model, which stands in for the average that is yet to come."""
        if self.config.predict == "fc":
            return {}
        problem = self.problem
        features, flipped = (self.local.features(problem.net, problem.samples, flip) for flip in (False, True))
        means, counts = class_means(features, problem.targets, problem.context.classes, flipped)
        return {MEANS: Weighted(means.cpu(), counts.cpu().double())}


class MeansServer(AveragingServer[MeansState]):
    """Averages class means by their counts, where they were asked for; a mean that no client sent keeps its value."""

    needs: frozenset[Need] = frozenset({"parts"})

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        shape = (context.classes, sent["head.weight"].shape[1])
        return ReportLayout(sent, self.counted_rows, {MEANS: PartLayout(shape, 2.0, shape[:1])})

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if MEANS not in report.parts:
            return only_parts(report, set())
        part, shape = report.parts[MEANS], (context.classes, sent["head.weight"].shape[1])
        problem = only_parts(report, {MEANS}) or validate_part(
            MEANS, part, shape, shape[:1], 2.0, heaviest=report.samples
        )
        if problem is None and bool((part.value.norm(dim=1) > 1 + 1e-3).any()):
            return f"its {MEANS} are longer than one, as means of vectors of length one cannot be"
        return problem

    def round(
        self, state: MeansState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[MeansState, ModelState]:
        if MEANS in aggregate.parts:
            found = aggregate.parts[MEANS]
            means, counts = found.mean().float(), found.weight.clone()
            if state.means is not None and state.counts is not None:
                stale = (counts == 0).nonzero().squeeze(1)
                stale = stale[stale < len(state.counts)]
                means[stale], counts[stale] = state.means[stale], state.counts[stale]
            state = MeansState(means, counts)
        return super().round(state, model, aggregate, context)

    def predictor(self, state: MeansState, model: ModelState) -> ModelState:
        if state.means is None or state.counts is None:
            return model
        missing = len(model["head.weight"]) - len(state.means)
        means = torch.cat([state.means, torch.zeros(missing, state.means.shape[1])])
        weight, bias = nearest_mean_head(means, torch.cat([state.counts, torch.zeros(missing)]))
        return {**model, "head.weight": weight, "head.bias": bias}


def build(config: ICaRLConfig, setting: Setting) -> Roles:
    """Return the roles of iCaRL."""
    client = RehearsalClient(config, setting, ICaRL, teacher=newest_older_model)
    server = MeansServer(MeansState()) if config.predict == "nme" else plain_server()
    return Roles(client, config.server(server))


register_method(
    Method("icarl", "exemplars by herding and distillation of the old outputs (CVPR 2017)", ICaRLConfig, build)
)
