"""Attackers at the server and at the proxy, who see what these parties see, and the truth to measure them by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fcil.core.messages import Failure, ModelState, Order, Reply, Report, RoundContext
from fcil.federation.aggregation.masked import Masked
from fcil.federation.diagnostics import PrototypeComparison
from fcil.federation.masking.fixed_point import Form, of_report
from fcil.federation.simulation import Simulation
from fcil.federation.traffic import RoundTraffic
from fcil.maths.calibration import area_under_curve
from fcil.maths.leakage import nearest, structural_similarity
from fcil.models.classifier import HEAD_ROWS

WEIGHT, BIAS = HEAD_ROWS
COUNTS, CLASS_SUMS = "counts", "class_sums"  # parts of reports that tell of classes
MOST_PROTOTYPES = 64


@dataclass
class ServerView:
    """The attacker at the server: a score for each class of the newest block in each report, and the truth."""

    scores: list[float] = field(default_factory=list)
    present: list[bool] = field(default_factory=list)
    reports: int = 0
    counted: int = 0  # reports that name the number of the client's samples, but for exemplars

    @property
    def area(self) -> float | None:
        """Return the chance that a class that a client holds scores higher than one that it does not hold."""
        scores, held = torch.tensor(self.scores, dtype=torch.float64), torch.tensor(self.present, dtype=torch.bool)
        if not bool(held.any()) or bool(held.all()):
            return None
        return area_under_curve(scores[held], scores[~held])


class Tap:
    """An engine whose replies the attacker reads before the server does."""

    def __init__(self, simulation: Simulation) -> None:
        self.inner, self.scenario = simulation.engine, simulation.scenario
        self.aggregator, self.samples = simulation.server.aggregator, simulation.clients.samples
        self.machine, self.view = simulation.server.machine, ServerView()

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Carry out the orders."""
        context = traffic.broadcast.context
        sent = self.machine.model.trained(traffic.models[traffic.broadcast.model])
        for answer in self.inner.run(traffic, orders):
            if isinstance(answer, Reply) and answer.report is not None:
                self._look(answer.client, answer.report, sent, context)
            yield answer

    def close(self) -> None:
        """Stop the engine."""
        self.inner.close()

    def _look(self, client: int, report: Report, sent: ModelState, context: RoundContext) -> None:
        held = self.scenario.holding(context.round, client)
        outputs = self.samples.outputs(held, context)
        scores = self._scores(report, sent, context)
        self.view.reports += 1
        memory = self.scenario.config.memory
        self.view.counted += report.samples > 1 and len(held) <= report.samples <= len(held) + memory
        for output in range(context.old_classes, context.classes):
            self.view.scores.append(float(scores[output]))
            self.view.present.append(bool((outputs == output).any()))

    def _scores(self, report: Report, sent: ModelState, context: RoundContext) -> Tensor:
        """Return a score for each class; of a masked report, from the numbers in the place of the same tensor."""
        if not isinstance(self.aggregator, Masked) or self.aggregator.layout is None:
            return class_scores(report, sent, context.classes)
        layout = self.aggregator.layout(sent, context)
        assert layout is not None
        form, numbers = Form(layout, self.aggregator.bounds), of_report(report).view("int64")
        name = next(name for name in (f"value.{CLASS_SUMS}", f"model.{BIAS}", f"model.{WEIGHT}") if name in form.slots)
        slot = form.slots[name]
        found = torch.from_numpy(numbers[slot.start : slot.start + slot.size].astype("float64"))
        scores: Tensor = found.view(context.classes, -1).sum(1)
        return scores


def class_scores(report: Report, sent: ModelState, classes: int) -> Tensor:
    """Return a score for each class: counts where a report has some, or else the growth of the head's row."""
    if report.rows:
        rows: Tensor = next(iter(report.rows.values()))
        return rows
    if COUNTS in report.parts:
        counts: Tensor = report.parts[COUNTS].value
        return counts
    if CLASS_SUMS in report.parts:
        lengths: Tensor = report.parts[CLASS_SUMS].value.norm(dim=1)
        return lengths
    name = BIAS if BIAS in report.model else WEIGHT
    grown: Tensor = report.model[name].double() - sent[name].double()
    return grown.reshape(classes, -1).sum(1)


@dataclass
class ProxyView:
    """The attacker at the proxy: the images that it rebuilds, against the originals at clients."""

    items: list[PrototypeComparison] = field(default_factory=list)
    similar: list[float] = field(default_factory=list)  # SSIM
    identified: list[bool] = field(default_factory=list)  # the nearest image of the class is the original
    guess: list[float] = field(default_factory=list)  # chance of that without looking

    def look(self, simulation: Simulation) -> None:
        """Take in the prototypes of a round."""
        for one in simulation.diagnostics.prototype_comparisons[: MOST_PROTOTYPES - len(self.items)]:
            samples = simulation.clients.samples
            rows = (samples.split.labels == samples.ids.index(one.label)).nonzero().squeeze(1)
            found = nearest(one.rebuilt, samples.split.images[rows])
            pair = (one.rebuilt.double() / 255, one.original.double() / 255)
            self.items.append(one)
            self.similar.append(float(structural_similarity(pair[0][None], pair[1][None])))
            self.identified.append(torch.equal(samples.split.images[rows[found]], one.original))
            self.guess.append(1 / len(rows))
