"""iCaRL (CVPR 2017) in federated form: exemplars by herding, old outputs distilled, and the nearest mean by choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.maths.nearest_mean import class_means, merge_means, nearest_mean_head
from fcil.maths.relation import distilled_bce
from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.lesson import Lesson
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import MOST_SAMPLES, AveragingServer, ServerState, extras, newest_older_model
from fcil.optimiser import Optimiser, milestones
from fcil.wire import Message, ModelState, Moment, Report, Shape


class ICaRLConfig(RehearsalConfig):
    """The rule of prediction; the rest is shared."""

    predict: Literal["fc", "nme"] = Field(
        "fc",
        description="fc: by the highest output; nme: by the nearest class mean, for which clients upload the means of "
        "their training data",
    )

    native: ClassVar[Optimiser] = Optimiser(2.0, 0.9, 2e-5, milestones((49, 5), (63, 25)), epochs=70)


@dataclass(frozen=True)
class ClassMeans(Message):
    """The mean features of the classes that a client trains on, and the number of its samples of each."""

    outputs: Annotated[Tensor, Shape(("classes",), torch.int64)]
    means: Annotated[Tensor, Shape(("classes", "features"), torch.float32)]
    counts: Annotated[Tensor, Shape(("classes",), torch.int64)]

    def spread(self, classes: int) -> tuple[Tensor, Tensor]:
        """Return means and counts with a row for every output."""
        means, counts = torch.zeros(classes, self.means.shape[1]), torch.zeros(classes, dtype=torch.int64)
        means[self.outputs], counts[self.outputs] = self.means, self.counts
        return means, counts


@dataclass(frozen=True)
class MeansState(ServerState):
    """The newest class means that came in, by output."""

    known: ClassMeans | None = None


class ICaRL(Lesson[ICaRLConfig]):
    """One binary cross-entropy, whose target is the teacher's sigmoid for every old output."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher = self.problem.teacher_logits(images)
        return distilled_bce(self.problem.net(images), self.problem.targets[rows], teacher).mean()

    def extra(self) -> ClassMeans | None:
        """Return the class means under the fitted model, which stands in for the average that is yet to come."""
        if self.config.predict == "fc":
            return None
        problem = self.problem
        features, flipped = (self.local.features(problem.net, problem.samples, flip) for flip in (False, True))
        means, counts = class_means(features, problem.targets, problem.moment.classes, flipped)
        own = counts.nonzero().squeeze(1)
        return ClassMeans(own.cpu(), means[own].cpu(), counts[own].cpu())


class MeansServer(AveragingServer[MeansState]):
    """Averages class means by their counts, where they were asked for; one that nobody sent keeps its last value."""

    def __init__(self, setting: Setting, config: ICaRLConfig) -> None:
        super().__init__(setting, MeansState())
        self.wanted = config.predict == "nme"

    def round(
        self, state: MeansState, model: ModelState, reports: Sequence[Report], moment: Moment
    ) -> tuple[MeansState, ModelState]:
        state, averaged = super().round(state, model, reports, moment)
        size = model["head.weight"].shape[1]
        sent = [means for means in extras(reports, ClassMeans) if is_sound(means, moment.classes, size)]
        if not sent or not self.wanted:
            return state, averaged
        spread = [means.spread(moment.classes) for means in sent]
        means, counts = merge_means([mean for mean, _ in spread], [count for _, count in spread])
        if state.known is not None:
            kept, kept_counts = state.known.spread(moment.classes)
            stale = counts == 0
            means[stale], counts[stale] = kept[stale], kept_counts[stale]
        own = counts.nonzero().squeeze(1)
        return replace(state, known=ClassMeans(own, means[own], counts[own])), averaged

    def predictor(self, state: MeansState, model: ModelState) -> ModelState:
        if state.known is None:
            return model
        weight, bias = nearest_mean_head(*state.known.spread(len(model["head.weight"])))
        return {**model, "head.weight": weight, "head.bias": bias}


def is_sound(sent: ClassMeans, classes: int, size: int) -> bool:
    """Say whether class means fit the head, are means of vectors of length one, and have counts one can add."""
    inside = bool(((sent.outputs >= 0) & (sent.outputs < classes)).all())
    once = len(torch.unique(sent.outputs)) == len(sent.outputs)
    counted = bool(((sent.counts > 0) & (sent.counts <= MOST_SAMPLES)).all())
    short = sent.means.shape[1] == size and bool((sent.means.norm(dim=1) <= 1 + 1e-3).all())  # false of NaN too
    return inside and once and counted and short


def build(config: ICaRLConfig, setting: Setting) -> Roles:
    """Return the roles of iCaRL."""
    client = RehearsalClient(config, setting, ICaRL, teacher=newest_older_model)
    return Roles(client, MeansServer(setting, config))


register(Method("icarl", "exemplars by herding and distillation of the old outputs (CVPR 2017)", ICaRLConfig, build))
