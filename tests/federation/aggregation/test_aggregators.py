"""The interface of other aggregators: their declarations are checked, and both halves take part in runs and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import Field
from support.clipping import BOUND, MEMBER, NAME, Clipping
from support.parties import changed, federation, run_rounds

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import ModelState, Reply, Report, model_digest
from fcil.core.settings_table import SettingsTable
from fcil.experiment.config import load_config, parse_config, setting_rows
from fcil.federation.aggregation import AGGREGATORS, Aggregate, Aggregator, Gathering, Mean
from fcil.federation.traffic import RoundTraffic
from fcil.testing import Trial
from fcil.testing.recorded import snapshot

ONE_TASK = {"tasks": 1, "rounds_per_task": 2}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    AGGREGATORS._members[NAME] = MEMBER
    Clipping.seeds.clear()
    yield
    del AGGREGATORS._members[NAME]


@pytest.mark.parametrize(("method", "lacking"), [("ewc", "parts"), ("podnet", "rows")])
def test_an_aggregator_that_cannot_sum_what_a_method_sends_is_refused_with_both_keys(method: str, lacking: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation(method, aggregator=NAME)
    assert str(caught.value) == (
        f"federation.aggregator: {NAME} cannot sum the {lacking} that method.name {method} sends "
        "with these settings; choose another aggregator, another method or other settings of [method]"
    )


def test_sums_that_have_to_be_exact_are_refused_by_an_aggregator_that_bounds_parts() -> None:
    sentence = "federation.aggregator: krum cannot sum the exact parts that method.name analytic sends"
    with pytest.raises(ConfigError, match=sentence):
        federation("analytic", aggregator="krum")


def test_an_unknown_aggregator_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"federation.aggregator: found 'meen', should be one of: .*clipping, .*mean"):
        load_config("digits", ["federation.aggregator=meen"])


def test_a_setting_that_an_aggregator_ignores_is_refused() -> None:
    sentence = "federation.averaging: found 'samples', should be uniform, its default: federation.aggregator clipping"
    with pytest.raises(ConfigError, match=sentence):
        load_config("digits", [f"federation.aggregator={NAME}", "federation.averaging=samples"])
    load_config("digits", [f"federation.aggregator={NAME}", "federation.averaging=uniform"])


class Trimming(SettingsTable):
    """The table of an aggregator."""

    share: float = Field(0.1, ge=0, lt=0.5, description="of the reports at either end")


WRONG = {
    "federation.krum.share=0.7": "federation.krum.share: found 0.7, should be below 0.5",
    "federation.krum.shape=0.2": "federation.krum.shape: unknown key; did you mean share?",
    "federation.krum=0.2": "federation.krum: found 0.2, should be a table of the settings of krum",
    "federation.krun.share=0.2": "federation.krun: unknown key; did you mean krum?",
    "federation.mean.share=0.2": "federation.mean: found {share = 0.2}, should be absent, since federation.aggregator",
}


@pytest.mark.parametrize("setting", WRONG)
def test_an_aggregator_has_a_table_of_its_own(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATORS._members, "krum", replace(MEMBER, name="krum", settings=Trimming))
    chosen = load_config("digits", ["federation.aggregator=krum", "federation.krum.share=0.25"])
    assert chosen.federation.own == Trimming(share=0.25)
    assert chosen.document()["federation"]["krum"] == {"share": 0.25}
    assert parse_config(chosen.document()) == chosen != load_config("digits", ["federation.aggregator=krum"])
    assert ("federation.krum.share", "0.1", "krum: of the reports at either end") in setting_rows()
    with pytest.raises(ConfigError) as caught:
        load_config("digits", ["federation.aggregator=krum", setting])
    assert str(caught.value).startswith(WRONG[setting])
    with pytest.raises(
        ConfigError, match=r"federation.krum: found .*, should be absent, since federation.aggregator is"
    ):
        load_config("digits", ["federation.krum.share=0.2"])


def test_the_tables_of_others_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mean" not in load_config("digits").document()["federation"]
    with pytest.raises(ConfigError, match=r"'averaging' is no name of an aggregator; .* another name than a setting"):
        AGGREGATORS.register(replace(MEMBER, name="averaging"))


def steps(made: Trial) -> list[float]:
    """Play a run and return how far the model moved at most in each round after which it kept its shape."""
    states, records = run_rounds(made)
    assert [record.failures for record in records] == [[]] * len(records)
    before, after = states[0].model, states[1].model
    return [float((after[name] - before[name]).abs().max()) for name in before if before[name].is_floating_point()]


def test_what_leaves_a_client_went_through_the_aggregator_s_stage() -> None:
    assert max(steps(federation(scenario=ONE_TASK))) > 2 * BOUND
    assert max(steps(federation(scenario=ONE_TASK, aggregator=NAME))) <= BOUND * 1.001
    assert len(set(Clipping.seeds)) == len(Clipping.seeds) == 6, "each client stages with a seed of its own per round"


def test_a_server_that_may_not_look_at_reports_refuses_none_for_its_content() -> None:
    def poison(traffic: RoundTraffic, reply: Reply) -> Reply:
        if reply.report is None:
            return reply
        model = {**reply.report.model, "head.bias": torch.full_like(reply.report.model["head.bias"], float("nan"))}
        return replace(reply, report=replace(reply.report, model=model))

    scenario = {"tasks": 1, "rounds_per_task": 1}
    (seen,) = run_rounds(federation(scenario=scenario, wrap=changed(poison), min_participants=1, aggregator=NAME))[1]
    assert (seen.failures, seen.not_applied) == ([], "the aggregate is not finite")


def test_a_worker_process_imports_the_aggregator_and_plays_the_same_bits() -> None:
    here = federation(scenario=ONE_TASK, aggregator=NAME)
    plain = snapshot(here, here.run()[0])
    Clipping.seeds.clear()
    there = federation(scenario=ONE_TASK, aggregator=NAME, engine="processes")
    with closing(there.simulation.engine):
        state, records = there.run()
    assert [record.failures for record in records] == [[], []]
    assert snapshot(there, state) == plain
    assert Clipping.seeds == [], "the stage ran in the worker"
    assert model_digest(state.model) != model_digest(federation(scenario=ONE_TASK).run()[0].model)


class Wary(Aggregator):
    """Leaves out all clients but the first two."""

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return _Wary(Mean(self.settings).gather(sent, round, participants))


class _Wary(Gathering):
    def __init__(self, within: Gathering) -> None:
        self.within = within

    def add(self, client: int, report: Report) -> None:
        self.within.add(client, report)

    def result(self) -> Aggregate:
        return replace(self.within.result(), excluded={2: "too far away"})


def test_excluded_clients_are_recorded_and_do_not_count_as_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATORS._members, "wary", replace(MEMBER, name="wary", build=Wary))
    scenario = {"joiners": 0, "initial_clients": 3, "tasks": 1, "rounds_per_task": 1}
    chosen: dict[str, Any] = {"scenario": scenario, "aggregator": "wary"}
    (record,) = run_rounds(federation(**chosen, min_participants=2))[1]
    assert record.excluded == [{"client": 2, "reason": "too far away"}]
    with pytest.raises(FederationError) as caught:
        run_rounds(federation(**chosen, min_participants=3))
    assert str(caught.value) == (
        "round 1: 2 participants answered, federation.min_participants asks for 3 (client 2 is excluded: too far away)"
    )
