"""Robust aggregators against values worked out by hand, and claims that nobody has to believe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fcil.core.messages import ModelState, Report, Weighted, generator
from fcil.federation.aggregation import AGGREGATORS, Aggregate
from fcil.federation.server import FederationConfig

SENT: ModelState = {"w": torch.zeros(2), "head": torch.full((3, 2), 9.0), "steps": torch.tensor(4)}
ROBUST = ("clip", "median", "trimmed-mean", "krum", "cosine-krum", "geometric-median")


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def model(w: float, head: float = 9.0, steps: int = 5) -> ModelState:
    return {"w": torch.full((2,), w), "head": torch.full((3, 2), head), "steps": torch.tensor(steps)}


def aggregate(name: str, reports: list[Report], own: dict[str, Any] | None = None, **common: Any) -> Aggregate:
    config = FederationConfig(aggregator=name, **common, **({name: own} if own else {}))
    gathering = AGGREGATORS[name].build(config, config.own).gather(SENT, 0, range(len(reports)))
    for client, report in enumerate(reports):
        gathering.add(client, report)
    return gathering.result()


def value(found: Aggregate, name: str = "w") -> float:
    values = torch.unique(found.model[name])
    assert len(values) == 1
    return float(values)


UPDATES = (1.0, 2.0, 3.0, 4.0, 100.0)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("median", 3.0),
        ("trimmed-mean", 3.0),
        ("krum", 2.5),  # without the last one
        ("cosine-krum", 2.5),
        ("geometric-median", 3.0),  # of points on a line, the median
        ("clip", 3.0),  # all in one direction, each of the median length
    ],
)
def test_one_report_far_away_counts_as_the_hand_value_says(name: str, wanted: float) -> None:
    found = aggregate(name, [Report(model(w), 1) for w in UPDATES])
    assert value(found) == pytest.approx(wanted, abs=1e-3)
    assert (found.reports, [*found.excluded]) == ((4, [4]) if name.endswith("krum") else (5, []))


def test_krum_says_why_it_leaves_a_report_out_and_how_many() -> None:
    reports = [Report(model(w), 1) for w in UPDATES]
    (reason,) = aggregate("krum", reports).excluded.values()
    assert reason.startswith("its model is among the farthest from the others (Krum score 3.7")
    assert not aggregate("krum", reports[1:]).excluded, "a fifth of four, rounded down, is none"
    reports[3] = Report(model(4.1), 1)
    assert sorted(aggregate("krum", reports, {"hostile": 0.4, "margin": 0.0}).excluded) == [3, 4]
    assert [*aggregate("krum", reports, {"hostile": 0.4}).excluded] == [4], "the fourth one does not stand out"
    assert not aggregate("krum", reports, {"margin": 1e6}).excluded


def test_a_fixed_bound_leaves_short_updates_as_they_are() -> None:
    found = aggregate("clip", [Report(model(w), 1) for w in (1.0, 3.0, -100.0)], {"norm": 2 * 2**0.5})
    assert value(found) == pytest.approx((1 + 2 - 2) / 3)


def test_brought_to_the_median_norm_a_report_counts_by_its_direction() -> None:
    found = aggregate("clip", [Report(model(w), 1) for w in (1.0, 3.0, -100.0)])
    assert value(found) == pytest.approx((3 + 3 - 3) / 3)
    assert value(aggregate("clip", [Report(model(0.0), 1)] * 2)) == 0.0, "no update has no direction"


@pytest.mark.parametrize("name", ROBUST)
def test_counters_have_the_median(name: str) -> None:
    found = aggregate(name, [Report(model(1.0, steps=steps), 1) for steps in (5, 6, 2**60, 5, 6)])
    assert found.model["steps"].dtype == torch.int64
    assert int(found.model["steps"]) in (5, 6)


@pytest.mark.parametrize("name", ROBUST)
def test_a_claim_counts_as_the_median_claim_at_most(name: str) -> None:
    """A row is its holders' alone, and one claim of 2^40 samples does not outweigh two of 10."""
    claims = [double(10, 0, 0), double(10, 0, 0), double(2.0**40, 1, 0)]
    reports = [
        Report(model(1.0, head), 1, rows={"head": rows})
        for head, rows in zip((9.0, 9.0 + 1e-4, 6.0), claims, strict=True)
    ]
    found = aggregate(name, reports)
    assert found.rows["head"].tolist() == [30.0, 1.0, 0.0]
    rows = found.model["head"][:, 0].tolist()
    shared = {"clip": 9 - 3 * (2 / 56) ** 0.5 / 3}  # of the third one's update, each row is 3 of sqrt(56)
    assert rows[0] == pytest.approx(shared.get(name, 9.0), abs=1e-3)
    assert rows[1] < 9
    assert rows[2] == 9


@pytest.mark.parametrize("name", ROBUST)
def test_a_row_with_too_few_holders_stays_as_it_was_sent(name: str) -> None:
    rows = [double(5, 5, 0), double(5, 0, 0), double(5, 0, 0)]
    reports = [Report(model(1.0, 3.0), 1, rows={"head": held}) for held in rows]
    assert aggregate(name, reports).model["head"][1, 0] < 9
    found = aggregate(name, reports, {"least_holders": 2})
    assert found.model["head"][:, 0].tolist() == [pytest.approx(3.0), 9.0, 9.0]
    assert found.rows["head"].tolist() == [15.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["krum", "cosine-krum", "geometric-median"])
def test_weights_by_samples_are_capped(name: str) -> None:
    reports = [Report(model(w), samples) for w, samples in ((1.0, 10), (2.0, 10), (3.0, 20), (4.0, 2**40))]
    assert value(aggregate(name, reports, averaging="samples")) <= 3.0
    assert value(aggregate(name, reports)) == pytest.approx(2.5, abs=0.5)


@pytest.mark.parametrize("name", ROBUST)
def test_parts_have_the_median_norm_and_weight_at_most(name: str) -> None:
    sizes, weights = (3.0, 4.0, 5.0, 1000.0), (1.0, 2.0, 2.0, 2.0**40)
    parts = [
        {
            "whole": Weighted(double(size, 0), double(weight)[0]),
            "rows": Weighted(double(size, 1)[:, None], double(weight, 0)),
        }
        for size, weight in zip(sizes, weights, strict=True)
    ]
    found = aggregate(name, [Report(model(w), 1, parts=part) for w, part in zip(UPDATES[1:], parts, strict=True)]).parts
    for key in ("whole", "rows"):  # of 3, 4, 5 and 1000 the lower median is 4, and of the weights 2
        assert float(found[key].total.flatten()[0]) == pytest.approx(1 * 3 + 2 * 4 + 2 * 4 + 2 * 4)
        assert float(found[key].weight.flatten()[0]) == 7
    assert found["rows"].mean().tolist()[1] == [0.0]


def test_krum_takes_a_row_with_the_median_norm_of_its_holders_at_most() -> None:
    """A report whose model is like the others' may have any rows: those of the third client are a thousand long."""
    held = [double(5, 5, 0), double(5, 0, 0), double(5, 0, 0)]
    steps = (1.0, 2.0, 1000.0)
    reports = [Report(model(1.0, 9.0 + step), 1, rows={"head": rows}) for step, rows in zip(steps, held, strict=True)]
    found = aggregate("krum", reports)
    assert not found.excluded
    assert found.model["head"][:, 0].tolist() == pytest.approx([9 + (1 + 2 + 2) / 3, 10.0, 9.0])


def test_parts_of_reports_that_krum_leaves_out_do_not_count() -> None:
    parts = [{"part": Weighted(double(w), double(1.0)[0])} for w in UPDATES]
    found = aggregate("krum", [Report(model(w), 1, parts=part) for w, part in zip(UPDATES, parts, strict=True)])
    assert float(found.parts["part"].weight) == 4


def combined(name: str, sent: ModelState, reports: list[Report], **own: float) -> Aggregate:
    config = FederationConfig(aggregator=name, **({name: own} if own else {}))
    gathering = AGGREGATORS[name].build(config, config.own).gather(sent, 0, range(len(reports)))
    for client, report in enumerate(reports):
        gathering.add(client, report)
    return gathering.result()


def directed(*points: tuple[float, float]) -> list[Report]:
    return [Report({**model(0.0), "w": torch.tensor(point)}, 1) for point in points]


HONEST = ((1.0, 0.1), (1.0, 0.0), (2.9, 0.0), (1.0, -0.1))


def test_cosine_krum_goes_by_directions_and_by_lengths_far_beyond_the_median() -> None:
    """The third one is 2.9 times as long as the median; others than the last are within 12 degrees, so alike."""
    for strange in ((0.7, 0.7), (-1.0, 0.0), (0.0, 0.01), (3.1, 0.0)):
        found = aggregate("cosine-krum", directed(*HONEST, strange))
        assert [*found.excluded] == [4], strange
        assert found.model["w"].tolist() == pytest.approx([5.9 / 4, 0.0])
    assert not aggregate("cosine-krum", directed(*HONEST, (0.1, 0.0))).excluded
    assert not aggregate("cosine-krum", directed(*HONEST[1:], (0.7, 0.7))).excluded, "a fifth of four is none"
    assert not aggregate("cosine-krum", directed(*[(0.0, 0.0)] * 5)).excluded
    (reason,) = aggregate("cosine-krum", directed(*HONEST, (-4.0, 0.0))).excluded.values()
    # to two at a cosine of -0.995, where others have two alike: 2 * 1.995 / (2 * 0.05)
    assert reason.endswith("39.9 times the median score of directions, 3.98 times the median length")
    wide = directed((1.0, 0.0), (0.6, 0.8), (0.6, -0.8), (0.8, 0.6), (-0.6, 0.8))
    assert [*aggregate("cosine-krum", wide).excluded] == [4]
    assert not aggregate("cosine-krum", wide, {"margin": 9.0}).excluded


def test_an_update_that_stays_counts_as_three_times_the_median_length_at_most() -> None:
    reports = directed((1.0, 0.0), (1.0, 0.0), (-50.0, 0.0))
    assert aggregate("cosine-krum", reports).model["w"].tolist() == pytest.approx([(1 + 1 - 3) / 3, 0.0])


def test_running_statistics_hide_a_turned_update_from_krum_and_not_from_cosine_krum() -> None:
    """Four clients with other images have other statistics; the last one has those of the first, and a flipped sign."""
    sent = {"w": torch.zeros(2), "bn.running_var": torch.full((2,), 100.0)}

    def report(w: float, variance: float) -> Report:
        return Report({"w": torch.tensor([w, 0.01 * variance]), "bn.running_var": torch.full((2,), variance)}, 1)

    reports = [report(1.0, 110.0), report(1.1, 120.0), report(0.9, 60.0), report(1.0, 30.0), report(-1.0, 110.0)]
    assert [*combined("krum", sent, reports).excluded] == [3]
    found = combined("cosine-krum", sent, reports)
    assert [*found.excluded] == [4]
    steps = (10, 20, -20, -20)  # 10, 20, -40 and -70: of at most 20, the lower median
    assert found.model["bn.running_var"].tolist() == pytest.approx([100 + sum(steps) / 4] * 2)


def test_cosine_krum_compares_directions_of_rows_where_reports_are_rows_alone() -> None:
    """The last client's rows are no longer than the others', and point away in the class that it shares with them."""
    sent = {"head": torch.zeros(3, 2), "bias": torch.zeros(3)}

    def report(first: float, second: float, *counts: float) -> Report:
        rows = {"head": double(*counts), "bias": double(*counts)}
        return Report({"head": torch.tensor([[first, second]] * 3), "bias": torch.tensor([first] * 3)}, 4, rows)

    honest = [report(1, 0.1, 4, 0, 0), report(2, 0, 2, 2, 0), report(9, 1, 0, 2, 2), report(1, -0.1, 1, 3, 0)]
    for last, left_out in ((report(-1, 0, 1, 1, 1), [4]), (report(50, 1, 1, 1, 1), [])):
        assert [*combined("cosine-krum", sent, [*honest, last]).excluded] == left_out


def test_krum_compares_rows_where_reports_are_rows_alone() -> None:
    """On a frozen backbone a per-class head is all that is sent; without this nobody would ever be left out."""

    def report(of: float, *counts: float) -> Report:
        return Report({"head": torch.full((3, 2), 9.0 + of)}, 4, {"head": double(*counts)})

    honest = [
        report(0.1 * number, *counts) for number, counts in enumerate([(4, 0, 0), (2, 2, 0), (0, 2, 2), (1, 3, 0)])
    ]
    config = FederationConfig(aggregator="krum")
    for counts in ((4, 0, 0), (1, 1, 1)):
        gathering = AGGREGATORS["krum"].build(config, config.own).gather({"head": SENT["head"]}, 0, range(5))
        for client, one in enumerate([*honest, report(-3.0, *counts)]):
            gathering.add(client, one)
        assert [*gathering.result().excluded] == [4]


def test_krum_looks_at_no_row_that_its_clients_may_differ_in() -> None:
    """Clients that hold other classes have other rows; the model without them decides."""
    held = [double(1, 0, 0)] * 4 + [double(0, 0, 1)]
    heads = (9.0, 9.0, 9.0, 9.0, -500.0)
    ws = (1.0, 1.1, 1.2, 50.0, 1.3)
    reports = [Report(model(w, head), 1, rows={"head": rows}) for w, head, rows in zip(ws, heads, held, strict=True)]
    assert [*aggregate("krum", reports).excluded] == [3]


def test_memory_of_clip_does_not_grow_with_the_reports() -> None:
    """What it keeps of another report is a number and a counter."""
    config = FederationConfig(aggregator="clip")
    gathering = AGGREGATORS["clip"].build(config, config.own).gather(SENT, 0, range(50))

    def kept() -> int:
        held: Any = vars(gathering)
        return sum(tensor.numel() for tensor in held["totals"].values()) + sum(
            tensor.numel() for tensors in held["held"].values() for tensor in tensors
        )

    sizes = []
    for client in range(50):
        gathering.add(client, Report({**model(1.0), "w": torch.randn(2, generator=generator(client))}, 1))
        sizes.append(kept())
    assert sizes == [8 + count for count in range(1, 51)]
