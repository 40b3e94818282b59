"""Reports as whole numbers: what is lost in the sum, what is clipped, and that nothing overflows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fcil.core.aggregate import PartLayout, ReportLayout
from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import ModelState, Report, Weighted, generator
from fcil.federation.masking.fixed_point import MOST_PARTICIPANTS, Bounds, Form

BOUNDS = Bounds(8.0, 1_000_000, by_samples=False)
SENT: ModelState = {
    "weight": torch.zeros(3, 2),
    "running_var": torch.ones(2),
    "num_batches_tracked": torch.tensor(4),
}
ONE = torch.ones((), dtype=torch.float64)


def form(bounds: Bounds = BOUNDS, **parts: PartLayout) -> Form:
    return Form(ReportLayout(SENT, ("weight",), parts), bounds)


def model(weight: float = 0.5, variance: float = 2.0, batches: int = 7) -> ModelState:
    return {
        "weight": torch.full((3, 2), weight),
        "running_var": torch.full((2,), variance),
        "num_batches_tracked": torch.tensor(batches),
    }


def test_a_sum_is_exact_to_the_quantum() -> None:
    """By hand: two clients of weights 3 and 1 in the first row, none in the last one."""
    made = form()
    rows = [torch.tensor([3.0, 1.0, 0.0]).double(), torch.tensor([1.0, 1.0, 0.0]).double()]
    one, other = (model(weight, batches=6) for weight in (1, -1))
    reports = [Report(one, 4, {"weight": rows[0]}), Report(other, 2, {"weight": rows[1]})]
    found = made.aggregate(made.numbers(reports[0]) + made.numbers(reports[1]), 2)
    assert found.model["weight"].tolist() == [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]
    assert (found.rows["weight"].tolist(), found.reports, found.clipped) == ([4.0, 2.0, 0.0], 2, 0)
    assert found.model["running_var"].tolist() == [2.0, 2.0]
    assert (found.model["num_batches_tracked"].item(), found.model["num_batches_tracked"].dtype) == (6, torch.int64)


def test_random_numbers_are_wrong_by_half_a_quantum_at_most() -> None:
    made, draw = form(gram=PartLayout((50,), 2.0**32, heaviest=1.0)), generator(3)
    value = 100 * torch.randn(50, generator=draw, dtype=torch.float64)
    found = made.aggregate(made.numbers(Report({}, 1, parts={"gram": Weighted(value, ONE)})), 1).parts["gram"]
    assert found.error == 2.0**-21
    assert 0 < float((found.total - value).abs().max()) <= found.error
    assert 100 / found.error > 2**20, "at least 20 bits of the largest entry, here of sums around 100"


def test_numbers_out_of_range_are_clipped_and_counted() -> None:
    made = form(part=PartLayout((2,), 1.0, heaviest=1.0))
    part = Weighted(torch.tensor([2.0, -0.5]), 3 * ONE)
    report = Report(model(weight=9.0, variance=1e6), 4, {"weight": torch.ones(3).double()}, {"part": part})
    found = made.aggregate(made.numbers(report), 1)
    assert found.model["weight"].tolist() == [[8.0, 8.0]] * 3
    assert found.model["running_var"].tolist() == [801.0, 801.0], "statistics have a hundred times the room"
    assert found.parts["part"].total.tolist() == [1.0, -0.5]
    assert found.clipped == 6 + 2 + 1 + 1


def test_the_largest_sum_of_the_most_participants_does_not_overflow() -> None:
    samples = 1 << 20
    made = form(Bounds(8.0, samples, by_samples=False), gram=PartLayout((2,), 2.0**32, heaviest=1.0))
    value = torch.tensor([2.0**32, -(2.0**32)]).double()
    rows = {"weight": torch.full((3,), float(samples)).double()}
    one = made.numbers(Report(model(weight=-8.0, variance=801.0), samples, rows, {"gram": Weighted(value, ONE)}))
    found = made.aggregate(one * np.uint64(MOST_PARTICIPANTS), MOST_PARTICIPANTS)
    assert found.parts["gram"].total.tolist() == (value * MOST_PARTICIPANTS).tolist()
    assert found.model["weight"].unique().tolist() == [-8.0]
    assert found.model["running_var"].unique().tolist() == [801.0]


def test_a_report_without_anything_is_of_the_same_form() -> None:
    """Presence tells nothing: zeros stand for a model, rows and parts; a part of nobody is no part."""
    made = form(part=PartLayout((2,), 1.0))
    empty, full = made.numbers(Report({}, 0)), made.numbers(Report(model(), 4, {"weight": torch.ones(3).double()}))
    assert empty.shape == full.shape == (made.size,)
    assert not empty.any()
    found = made.aggregate(empty, 1)
    assert (found.model["weight"].tolist(), dict(found.rows), dict(found.parts)) == (SENT["weight"].tolist(), {}, {})


def test_what_has_no_place_is_refused_at_the_client() -> None:
    made = form()
    for report, said in (
        (Report({}, 1, parts={"part": Weighted(ONE, ONE)}), "no place for part"),
        (Report({"other": ONE}, 1), "no place for other parameters"),
        (Report({**model(), "running_var": torch.zeros(1)}, 1), "has the shape"),
        (Report(model(weight=float("nan")), 1), "is not finite"),
    ):
        with pytest.raises(FederationError, match=said):
            made.numbers(report)


def test_too_few_bits_are_refused_by_both_keys() -> None:
    Bounds(8.0, 1_000_000, by_samples=True).check(rows=False)
    Bounds(8.0, 1_000_000, by_samples=False).check(rows=True)
    with pytest.raises(ConfigError, match=r"federation\.averaging: samples.*federation\.max_samples 1000000"):
        Bounds(8.0, 1_000_000, by_samples=True).check(rows=True)
