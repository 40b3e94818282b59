"""The mean against values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Literal

import pytest
import torch
from torch import Tensor

from fcil.core.messages import ModelState, Report, Weighted, generator, model_digest
from fcil.federation.aggregation import Aggregate, Mean
from fcil.federation.server import FederationConfig

SENT: ModelState = {"weight": torch.tensor([[9.0, 9.0], [9.0, 9.0], [9.0, 9.0]]), "steps": torch.tensor(4)}


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def model(value: float, steps: int = 5) -> ModelState:
    return {"weight": torch.full((3, 2), value), "steps": torch.tensor(steps)}


def mean(reports: Sequence[Report], averaging: Literal["uniform", "samples"] = "uniform") -> Aggregate:
    gathering = Mean(FederationConfig(averaging=averaging)).gather(SENT, 0, range(len(reports)))
    for report in reports:
        gathering.add(0, report)
    return gathering.result()


def test_models_weigh_alike_or_by_their_samples() -> None:
    reports = [Report(model(1.0, 4), 1), Report(model(5.0, 8), 3)]
    uniform, by_samples = mean(reports), mean(reports, "samples")
    assert torch.equal(uniform.model["weight"], torch.full((3, 2), 3.0))
    assert torch.equal(by_samples.model["weight"], torch.full((3, 2), 4.0))
    assert (int(uniform.model["steps"]), int(by_samples.model["steps"])) == (6, 7)
    assert (uniform.reports, dict(uniform.rows), dict(uniform.parts)) == (2, {}, {})


@pytest.mark.parametrize(("averaging", "shared"), [("uniform", 3.0), ("samples", 4.0)])
def test_a_row_is_the_mean_of_its_owners_and_stays_as_it_was_sent_without_any(
    averaging: Literal["uniform", "samples"], shared: float
) -> None:
    reports = [
        Report(model(1.0), 1, rows={"weight": double(1.0, 1.0, 0.0)}),
        Report(model(5.0), 3, rows={"weight": double(1.0, 0.0, 0.0)}),
    ]
    found = mean(reports, averaging)
    assert found.model["weight"].tolist() == [[shared] * 2, [1.0] * 2, [9.0] * 2]
    assert found.rows["weight"].tolist() == ([2.0, 1.0, 0.0] if averaging == "uniform" else [4.0, 1.0, 0.0])
    assert int(found.model["steps"]) == 5


def test_parts_are_summed_by_their_own_weights_and_not_by_samples() -> None:
    scalar = [Weighted(torch.tensor([2.0, 4.0]), double(1.0)[0]), Weighted(torch.tensor([6.0, 0.0]), double(3.0)[0])]
    by_row = [
        Weighted(torch.tensor([[1.0], [2.0], [3.0]]), double(1.0, 0.0, 0.0)),
        Weighted(torch.tensor([[5.0], [6.0], [7.0]]), double(1.0, 2.0, 0.0)),
    ]
    reports = [
        Report(model(1.0), 100, parts={"scalar": one, "by row": other})
        for one, other in zip(scalar, by_row, strict=True)
    ]
    parts = mean([*reports, Report(model(1.0), 1)], "samples").parts
    assert parts["scalar"].total.tolist() == [20.0, 4.0]
    assert float(parts["scalar"].weight) == 4.0
    assert parts["scalar"].mean().tolist() == [5.0, 1.0]
    assert parts["by row"].total.tolist() == [[6.0], [12.0], [0.0]]
    assert parts["by row"].weight.tolist() == [2.0, 2.0, 0.0]
    assert parts["by row"].mean().tolist() == [[3.0], [6.0], [0.0]]
    assert parts["scalar"].total.dtype == torch.float64


def test_without_a_report_the_model_that_was_sent_stays() -> None:
    found = mean([])
    assert (found.model, found.reports) == (SENT, 0)


def test_a_report_is_only_lent() -> None:
    """The memory of a report may be used again once it was added, and nothing is written to it."""
    part = Weighted(torch.ones(2), double(1.0, 1.0))
    once = Weighted(torch.ones(2), double(1.0, 1.0))
    report = Report(model(2.0), 1, rows={"weight": double(1.0, 1.0, 1.0)}, parts={"part": part})
    gathering = Mean(FederationConfig()).gather(SENT, 0, [0, 1])
    gathering.add(0, report)
    gathering.add(1, replace(report, parts={"part": part, "once": once}))
    assert (part.value.tolist(), part.weight.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    for tensor in (*report.model.values(), *report.rows.values(), part.value, part.weight, once.value, once.weight):
        tensor.zero_()
    found = gathering.result()
    assert torch.equal(found.model["weight"], torch.full((3, 2), 2.0))
    for name in ("part", "once"):
        assert found.parts[name].mean().tolist() == [1.0, 1.0]
    assert found.parts["once"].weight.tolist() == [1.0, 1.0]


def test_equal_models_have_themselves_as_their_mean() -> None:
    one = {"weight": torch.rand(3, 2, generator=generator(1)), "steps": torch.tensor(7)}
    assert model_digest(mean([Report(one, samples) for samples in (1, 3, 7)], "samples").model) == model_digest(one)


def test_sums_run_in_double_precision() -> None:
    large, small = model(2.0**25), model(1.0)
    found = mean([Report(large, 1), Report(small, 1), Report(small, 1), Report(small, 1)])
    assert torch.equal(found.model["weight"], torch.full((3, 2), (2.0**25 + 3) / 4))


def test_reports_whose_sums_are_exact_may_be_added_in_any_order() -> None:
    reports = [
        Report(model(float(value)), value, parts={"p": Weighted(torch.ones(1), double(value)[0])})
        for value in (1, 2, 4)
    ]
    found = {model_digest(mean(order, "samples").model) for order in permutations(reports)}
    assert len(found) == 1
