"""The seam for other aggregators: what they serve is checked, and both their halves play a run, in workers too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from support.clipping import BOUND, NAME, Clipping
from support.parties import changed, federation, play

from fcil.core.errors import ConfigError
from fcil.core.messages import Reply, model_digest
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.traffic import Post
from fcil.testing import Trial
from fcil.testing.played import snapshot

ONE_TASK = {"tasks": 1, "rounds_per_task": 2}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    AGGREGATORS[NAME] = Clipping
    Clipping.seeds.clear()
    yield
    del AGGREGATORS[NAME]


@pytest.mark.parametrize(("method", "lacking"), [("ewc", "parts"), ("podnet", "rows")])
def test_an_aggregator_that_cannot_sum_what_a_method_sends_is_refused_with_both_keys(method: str, lacking: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation(method, aggregator=NAME)
    assert str(caught.value) == (
        f"federation.aggregator: {NAME} cannot sum the {lacking} that method.name {method} sends "
        "with these settings; choose another aggregator, another method or other settings of [method]"
    )


def test_an_unknown_aggregator_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"federation.aggregator: found 'median', should be one of: mean, clipping"):
        federation(aggregator="median")


def steps(made: Trial) -> list[float]:
    """Play a run and return how far the model moved at most in each round after which it kept its shape."""
    states, records = play(made)
    assert [record.failures for record in records] == [[]] * len(records)
    before, after = states[0].model, states[1].model
    return [float((after[name] - before[name]).abs().max()) for name in before if before[name].is_floating_point()]


def test_what_leaves_a_client_went_through_the_aggregator_s_stage() -> None:
    assert max(steps(federation(scenario=ONE_TASK))) > 2 * BOUND
    assert max(steps(federation(scenario=ONE_TASK, aggregator=NAME))) <= BOUND * 1.001
    assert len(set(Clipping.seeds)) == len(Clipping.seeds) == 6, "each client stages with a seed of its own per round"


def test_a_server_that_may_not_look_at_reports_refuses_none_for_its_content() -> None:
    def poison(post: Post, reply: Reply) -> Reply:
        if reply.report is None:
            return reply
        model = {**reply.report.model, "head.bias": torch.full_like(reply.report.model["head.bias"], float("nan"))}
        return replace(reply, report=replace(reply.report, model=model))

    scenario = {"tasks": 1, "rounds_per_task": 1}
    (seen,) = play(federation(scenario=scenario, wrap=changed(poison), min_participants=1, aggregator=NAME))[1]
    assert (seen.failures, seen.reports) == ([], 3)


def test_a_worker_process_imports_the_aggregator_and_plays_the_same_bits() -> None:
    here = federation(scenario=ONE_TASK, aggregator=NAME)
    plain = snapshot(here, here.play()[0])
    Clipping.seeds.clear()
    there = federation(scenario=ONE_TASK, aggregator=NAME, engine="processes")
    with closing(there.simulation.engine):
        state, records = there.play()
    assert [record.failures for record in records] == [[], []]
    assert snapshot(there, state) == plain
    assert Clipping.seeds == [], "the stage ran in the worker"
    assert model_digest(state.model) != model_digest(federation(scenario=ONE_TASK).play()[0].model)
