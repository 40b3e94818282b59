"""Reports as vectors of whole numbers modulo 2^64, so that masks hide them and cancel exactly in their sum.

Each number has a bound and a scale, a power of two. Bounded numbers of 1,024 participants cannot overflow: a scaled
number has at most 52 bits and a sign, ten more bits are for the participants, and one is spare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fcil.core.aggregate import Aggregate, PartSum, ReportLayout, by_row
from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import ModelState, Report
from fcil.federation.masking.primitives import Ring
from fcil.federation.reply_checks import RUNNING, STATISTICS

MOST_PARTICIPANTS, BITS = 1 << 10, 52
LEAST_BITS = 20  # of the range of updates: with fewer the sum would be too coarse
LARGEST_STEP = 1 << 20  # of a counter, such as the number of batches that batch norm has seen
WEIGHT, CLIPPED, MODEL, ROWS, VALUE, WEIGHTS = "weight", "clipped", "model.", "rows.", "value.", "weights."


@dataclass(frozen=True)
class Slot:
    """One tensor's place in the vector: its numbers are at most `most`, and are multiplied by `scale`."""

    start: int
    shape: tuple[int, ...]
    most: float
    whole: bool = False  # whether its numbers are whole

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)

    @property
    def scale(self) -> float:
        """Return the power of two that numbers are multiplied by before they are rounded."""
        exponent = BITS - math.ceil(math.log2(max(self.most, 1e-30)))
        return 1.0 if self.whole else 2.0**exponent


@dataclass(frozen=True)
class Bounds:
    """The bounds of a federation's numbers."""

    range: float  # of a number of an update
    samples: int  # of a report
    by_samples: bool  # whether a report weighs as much as it has samples

    @property
    def heaviest(self) -> int:
        """Return the largest weight of a report."""
        return self.samples if self.by_samples else 1

    def check(self, rows: bool) -> None:
        """Refuse bounds that leave too few bits for an update."""
        weight = self.heaviest * (self.samples if rows else 1)
        if BITS - math.log2(weight) < LEAST_BITS:
            raise ConfigError(
                "federation.averaging: samples, with rows of the head that are weighted by samples, leaves fewer than "
                f"{LEAST_BITS} bits for an update in masked sums at federation.max_samples {self.samples}; lower that, "
                "or choose uniform"
            )


class Form:
    """The vector of every report of a round; it depends on public facts alone."""

    def __init__(self, layout: ReportLayout, bounds: Bounds) -> None:
        self.layout, self.bounds = layout, bounds
        self.slots: dict[str, Slot] = {}
        self.size = 0
        self._add(WEIGHT, (), bounds.heaviest, whole=True)
        self._add(CLIPPED, (), 1 << 40, whole=True)
        for name, tensor in layout.model.items():
            weight = bounds.heaviest * (bounds.samples if name in layout.rows else 1)
            self._add(f"{MODEL}{name}", tuple(tensor.shape), self.range(name) * weight, _is_counter(tensor))
        for name in layout.rows:
            shape = tuple(layout.model[name].shape[:1])
            self._add(f"{ROWS}{name}", shape, bounds.heaviest * bounds.samples, whole=True)
        for name, part in layout.parts.items():
            heaviest = bounds.samples if part.heaviest is None else part.heaviest
            self._add(f"{VALUE}{name}", part.shape, part.most * heaviest)
            self._add(f"{WEIGHTS}{name}", part.weights, heaviest)

    def _add(self, name: str, shape: tuple[int, ...], most: float, whole: bool = False) -> None:
        self.slots[name] = Slot(self.size, shape, most, whole)
        self.size += self.slots[name].size

    def range(self, name: str) -> float:
        """Return the bound of a tensor's update; running statistics may move further than parameters."""
        if _is_counter(self.layout.model[name]):
            return LARGEST_STEP
        return self.bounds.range * (STATISTICS if RUNNING in name else 1.0)

    # --- at a participant -------------------------------------------------------------------------------------------

    def numbers(self, report: Report) -> Ring:
        """Return a report as whole numbers; zeros stand for all that it does not have."""
        vector = np.zeros(self.size, dtype=np.int64)
        strange = report.rows.keys() - set(self.layout.rows) | report.parts.keys() - self.layout.parts.keys()
        if strange or (report.model and report.model.keys() != self.layout.model.keys()):
            raise FederationError(f"the report has no place for {', '.join(sorted(strange)) or 'other parameters'}")
        weight = (report.samples if self.bounds.by_samples else 1) if report.samples else 0
        clipped = 0
        self._put(vector, WEIGHT, torch.tensor(float(weight), dtype=torch.float64))
        for name, found in report.model.items():
            if found.shape != self.layout.model[name].shape:
                raise FederationError(f"{name} has the shape {tuple(found.shape)}, which is not the one that was sent")
            update = found.double() - self.layout.model[name].double()
            inside = update.clamp(-self.range(name), self.range(name))
            clipped += int((update != inside).sum())
            each = self._row_weight(vector, name, report, weight)
            self._put(vector, f"{MODEL}{name}", inside * by_row(each, inside))
        for name, part in report.parts.items():
            layout = self.layout.parts[name]
            most = self.bounds.samples if layout.heaviest is None else layout.heaviest
            value, held = part.value.double(), part.weight.clamp(0, most)
            inside = value.clamp(-layout.most, layout.most)
            clipped += int((value != inside).sum()) + int((held != part.weight).sum())
            self._put(vector, f"{VALUE}{name}", inside * by_row(held, inside))
            self._put(vector, f"{WEIGHTS}{name}", held)
        self._put(vector, CLIPPED, torch.tensor(float(clipped), dtype=torch.float64))
        return vector.view(np.uint64)

    def _row_weight(self, vector: np.typing.NDArray[np.int64], name: str, report: Report, weight: int) -> Tensor:
        """Return the weight of a tensor or of its rows, and put the latter into the vector."""
        if name not in self.layout.rows:
            return torch.tensor(float(weight), dtype=torch.float64)
        each = weight * report.rows.get(name, torch.ones(len(report.model[name]), dtype=torch.float64))
        self._put(vector, f"{ROWS}{name}", each)
        return each

    def _put(self, vector: np.typing.NDArray[np.int64], name: str, values: Tensor) -> None:
        slot = self.slots[name]
        if tuple(values.shape) != slot.shape:
            raise FederationError(f"{name} has the shape {tuple(values.shape)}, should be {slot.shape}")
        if not bool(values.isfinite().all()):
            raise FederationError(f"{name} is not finite; a lower train.learning_rate may help")
        scaled = (values.reshape(-1) * slot.scale).round_()
        vector[slot.start : slot.start + slot.size] = scaled.to(torch.int64).numpy()

    # --- at the server ----------------------------------------------------------------------------------------------

    def aggregate(self, total: Ring, reports: int) -> Aggregate:
        """Return the aggregate of an opened sum over so many reports."""
        signed = total.view(np.int64)
        weight = float(self._get(signed, WEIGHT))
        rows = {name: self._get(signed, f"{ROWS}{name}") for name in self.layout.rows}
        model = {name: self._mean(signed, name, base, rows.get(name), weight) for name, base in self._model()}
        parts = {name: self._part(signed, name, reports) for name in self.layout.parts}
        known = {name: part for name, part in parts.items() if bool((part.weight > 0).any())}
        return Aggregate(model, reports, rows if weight else {}, known, clipped=int(self._get(signed, CLIPPED)))

    def _model(self) -> list[tuple[str, Tensor]]:
        return list(self.layout.model.items())

    def _get(self, signed: np.typing.NDArray[np.int64], name: str) -> Tensor:
        slot = self.slots[name]
        found = torch.from_numpy(signed[slot.start : slot.start + slot.size].astype(np.float64))
        return found.div_(slot.scale).reshape(slot.shape)

    def _mean(
        self, signed: np.typing.NDArray[np.int64], name: str, base: Tensor, rows: Tensor | None, weight: float
    ) -> Tensor:
        """Return one tensor after the mean update; a row without weight stays as it was sent."""
        each = torch.tensor(weight, dtype=torch.float64) if rows is None else rows
        total = self._get(signed, f"{MODEL}{name}")
        step = total / by_row(torch.where(each > 0, each, 1.0), total)
        return (base.double() + (step.round_() if _is_counter(base) else step)).to(base.dtype)

    def _part(self, signed: np.typing.NDArray[np.int64], name: str, reports: int) -> PartSum:
        value, weight = self._get(signed, f"{VALUE}{name}"), self._get(signed, f"{WEIGHTS}{name}")
        return PartSum(value, weight, reports / self.slots[f"{VALUE}{name}"].scale / 2)


def as_report(numbers: Ring) -> Report:
    """Return a vector as the report that leaves a participant; its samples are in the sum alone."""
    return Report({"sum": torch.from_numpy(numbers.view(np.int64))}, 1)


def of_report(report: Report) -> Ring:
    """Return the vector of a report that has left a participant."""
    return report.model["sum"].numpy().view(np.uint64)


def expected(form: Form) -> ModelState:
    """Return the tensors of a report that leaves a participant, in a shape that takes no memory."""
    return {"sum": torch.zeros(1, dtype=torch.int64).expand(form.size)}


def _is_counter(tensor: Tensor) -> bool:
    return not tensor.dtype.is_floating_point
