"""Masked sums in a simulation: the same result as the mean, and a server that sees no report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Failure, Order, Reply, Report
from fcil.federation.aggregation.masked import MaskedSum
from fcil.federation.simulation import SimulationState
from fcil.federation.traffic import RoundTraffic
from fcil.testing.recorded import SHORT, snapshot
from fcil.testing.trial import Trial, trial

MASKED: dict[str, Any] = {"aggregator": "masked"}
CROWD = {**SHORT, "participants": 3}
FIRST = {**CROWD, "tasks": 1, "rounds_per_task": 1}


def first_round(method: str, **settings: Any) -> tuple[SimulationState, SimulationState]:
    """Return the states after a round with and without masks."""
    plain, masked = (trial(method, scenario=FIRST, federation=table, **settings) for table in ({}, MASKED))
    ((one, _),) = plain.simulation.rounds(plain.simulation.start())
    ((other, record),) = masked.simulation.rounds(masked.simulation.start())
    assert (record.failures, record.not_applied, record.clipped) == ([], "", 0)
    return one, other


@pytest.mark.parametrize("method", ["finetune", "mosaic", "podnet", "bic"])
@pytest.mark.numeric
def test_a_round_ends_as_without_masks_to_the_quantum(method: str) -> None:
    """A number of a model in single precision has 24 bits, the sum in fixed point more."""
    plain, masked = first_round(method)
    for name, value in plain.model.items():
        torch.testing.assert_close(masked.model[name], value, rtol=2**-22, atol=2**-24)


@pytest.mark.numeric
def test_sums_of_analytic_keep_twenty_bits_of_one() -> None:
    plain, masked = (trial("analytic", scenario=CROWD, federation=table).run()[0] for table in ({}, MASKED))
    one, other = plain.server.role_state, masked.server.role_state
    assert torch.equal(one.counts, other.counts)  # type: ignore[attr-defined]
    for name in ("gram", "class_sums"):
        value = getattr(one, name)
        assert float((getattr(other, name) - value).abs().max()) <= other.error  # type: ignore[attr-defined]
    assert 0 < other.error < 2**-20  # type: ignore[attr-defined]


def test_everybody_reports_even_without_new_samples() -> None:
    """An empty batch is counted like any other: what a server sees of a site does not show that it has nothing."""
    made = trial("analytic", scenario={**CROWD, "rounds_per_task": 2}, federation=MASKED)
    state, records = made.run()
    assert all(record.reports == len(record.participants) for record in records)
    receipts = state.server.role_state.receipts  # type: ignore[attr-defined]
    assert int(receipts.batches.sum()) == sum(len(record.participants) for record in records)


class Listening:
    """An engine that keeps what leaves the clients, and lets some of them fail."""

    def __init__(self, inner: Any, lost: Sequence[int] = ()) -> None:
        self.inner, self.lost, self.heard = inner, lost, list[Report]()

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for answer in self.inner.run(traffic, orders):
            if isinstance(answer, Reply) and answer.report is not None:
                self.heard.append(Report({k: v.clone() for k, v in answer.report.model.items()}, answer.report.samples))
                if answer.client in self.lost:
                    yield Failure(answer.client, traffic.broadcast.context.round, "answer", "no answer in time")
                    continue
            yield answer

    def close(self) -> None:
        self.inner.close()


def listened(made: Trial, lost: Sequence[int] = ()) -> Listening:
    engine = Listening(made.simulation.engine, lost)
    object.__setattr__(made.simulation, "engine", engine)
    return engine


def test_a_report_on_its_way_is_noise() -> None:
    """Uniform 64-bit numbers: each bit is set in half of them, and two reports have no number in common."""
    made = trial("mosaic", scenario=FIRST, federation=MASKED)
    engine = listened(made)
    made.run()
    vectors = [report.model["sum"].numpy().view(np.uint64) for report in engine.heard]
    assert len(vectors) == 3
    for vector in vectors:
        share = np.unpackbits(vector.view(np.uint8)).mean()
        assert abs(share - 0.5) < 5 / (2 * np.sqrt(64 * len(vector)))
    assert all(not np.intersect1d(vectors[one], vectors[one - 1]).size for one in range(3))
    assert all(report.samples == 1 for report in engine.heard), "how many samples a site has is in the sum alone"


def test_drop_outs_after_the_keys_cost_the_round_nothing_and_too_many_are_not_applied() -> None:
    crowd = {**FIRST, "initial_clients": 6, "joiners": 0, "participants": 6}
    made = trial("finetune", scenario=crowd, federation=MASKED)
    listened(made, lost=(2,))
    ((state, record),) = made.simulation.rounds(made.simulation.start())
    assert (record.reports, record.not_applied) == (5, "")
    assert [failure["client"] for failure in record.failures] == [2]
    plain = trial("finetune", scenario=crowd)
    listened(plain, lost=(2,))
    ((wanted, _),) = plain.simulation.rounds(plain.simulation.start())
    for name, value in wanted.model.items():
        torch.testing.assert_close(state.model[name], value, rtol=2**-22, atol=2**-24)
    made = trial("finetune", scenario=crowd, federation=MASKED)
    listened(made, lost=(1, 2, 3))
    ((_, record),) = made.simulation.rounds(made.simulation.start())
    assert record.not_applied == "the masked sum does not open: 3 of 6 participants have reported; a masked sum needs 4"


def test_an_update_that_a_server_would_refuse_does_not_leave_its_client() -> None:
    made = trial("finetune", scenario=FIRST, federation={**MASKED, "max_update": 1e-6})
    with pytest.raises(FederationError, match=r"at stage aggregation: .* the update is not sent: it moves by"):
        made.run()


def test_a_round_with_too_few_clients_for_a_sum_asks_nobody_to_train() -> None:
    few = {**FIRST, "initial_clients": 2, "joiners": 0}
    (record,) = trial("finetune", scenario=few, federation=MASKED).run()[1]
    assert (record.participants, record.not_applied) == ([], "fewer than 3 participants, the least for a masked sum")


def test_masked_reports_are_added_as_they_come_and_none_is_held() -> None:
    """Sums of whole numbers are the same in any order, so the server's memory does not grow with its clients."""
    made = trial("finetune", scenario=FIRST, federation=MASKED).simulation
    opened = made.server.open(made.start().server, None)
    replies = made.server.expect(opened, made.server.orders(range(3), range(3)))
    vector = replies.expected["sum"].clone()
    for count, client in enumerate((2, 0, 1), start=1):
        replies.add(Reply(client, Report({"sum": vector + client}, 1)))
        assert isinstance(replies.gathering, MaskedSum)
        assert (replies.gathering.reports, replies.reporters[-1]) == (count, client)
    assert (replies.gathering.total == 3).all()


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("glfc", {}, "federation.aggregator: masked cannot hide what method.name glfc sends to a proxy"),
        ("finetune", {"scenario": {**SHORT, "participants": 2}}, "over 3 to 1024 part.*scenario.participants is 2"),
        ("mosaic", {"federation": {**MASKED, "averaging": "samples"}}, "federation.averaging: samples, with rows"),
    ],
)
def test_what_cannot_be_masked_is_refused_by_both_keys(method: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trial(method, **{"federation": MASKED, **settings})


def test_a_sum_that_was_not_opened_is_not_read() -> None:
    made = trial("finetune", scenario=FIRST, federation=MASKED)
    found = made.simulation.server.aggregator
    assert found.hides
    assert not found.inspects
    plain = snapshot(made, made.run()[0])
    again = trial("finetune", scenario=FIRST, federation=MASKED)
    assert snapshot(again, again.run()[0]) == plain, "keys are new in every run, and the result is the same"
    assert MaskedSum.__doc__
