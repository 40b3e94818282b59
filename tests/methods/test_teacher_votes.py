"""Votes in the place of GLFC's proxy: what a client counts, which model the server keeps, and what leaves a client."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.clipping import MEMBER, NAME
from support.objectives import Workshop, catalogue, gathered, state_of, weighted
from support.parties import Changing, federation, patterns, run_rounds
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import (
    ModelState,
    Reply,
    Report,
    RoundContext,
    Teacher,
    Teachers,
    Weighted,
    encode,
    model_digest,
)
from fcil.experiment.config import load_config
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.simulation import SimulationState
from fcil.federation.traffic import RoundTraffic
from fcil.methods.base import Choice, Extra
from fcil.methods.local_objective import News
from fcil.methods.server import newest_older_model
from fcil.methods.teacher_votes import VOTE, Ballot, VotesState, VotingServer
from fcil.methods.teachers import KeptModel
from fcil.models import grow, head_width
from fcil.testing import Trial
from fcil.testing.recorded import Exchange, Listener, snapshot

VOTES = {"selection": "votes"}
SCENARIO = {"rounds_per_task": 3}
NEXT = RoundContext(5, catalogue(4), (2, 4), 2)  # a round in which there is something to vote on
FIRST = RoundContext(3, catalogue(4), (2, 4), 0)
SERVER = VotingServer()


def shop() -> Workshop:
    """Return a client's place with two old and two new classes."""
    return Workshop("glfc", 2, 4, **VOTES)


def answering(model: ModelState, output: int) -> ModelState:
    """Return the model with a head that always answers with one output."""
    bias = torch.full_like(model["head.bias"], -50.0)
    bias[output] = 50.0
    return {**model, "head.weight": torch.zeros_like(model["head.weight"]), "head.bias": bias}


def vote_of(place: Workshop, latest: Tensor, earlier: Tensor, best: ModelState) -> Any:
    """Return the local objective of a client that is asked for its vote."""
    digest = model_digest(best)
    samples = torch.cat([latest, earlier])
    return place.objective(samples, Ballot(digest), pools={digest: best}, news=News(latest=latest))


# --- the client ---------------------------------------------------------------------------------------------------


def test_a_client_counts_right_answers_on_the_newest_classes_of_its_newest_arrival_alone() -> None:
    place = shop()
    place.model = answering(place.model, 3)
    latest = torch.cat([place.of_classes(2, each=6), place.of_classes(3, each=3), place.of_classes(0, each=4)])
    earlier = place.of_classes(3, each=9)[3:]  # of a newest class too, but not of the newest arrival
    vote = vote_of(place, latest, earlier, answering(place.model, 2)).parts()[VOTE]
    assert vote.weight.item() == 9
    assert (vote.value * vote.weight).tolist() == pytest.approx([3, 6])  # the model sent, and the best so far
    assert (vote.value.dtype, vote.weight.dtype) == (torch.float64, torch.float64)


def test_the_vote_is_on_the_model_as_received_and_leaves_it_as_it_was() -> None:
    place = shop()
    latest = place.of_classes(2, 3)
    objective = vote_of(place, latest, latest[:0], place.model)
    assert model_digest(state_of(objective)) == model_digest(place.model), "batch norm's statistics too"
    with torch.no_grad():
        logits = place.local.machine.net(place.model)(place.local.images(latest))
        objective.problem.net.head.bias += torch.tensor([1000.0, 0.0, 0.0, 0.0])  # a fit that ended badly
    right = int((logits.argmax(1) == objective.problem.targets).sum())
    vote = objective.parts()[VOTE]
    assert right > 0
    assert (vote.value * vote.weight).tolist() == pytest.approx([right, right])


def test_a_best_model_from_before_the_block_widened_is_wrong_on_what_it_does_not_know() -> None:
    place = shop()
    narrow = answering(grow(place.teacher, 3, 1), 2)
    vote = vote_of(place, place.of_classes(2, 3, each=5), torch.tensor([], dtype=torch.int64), narrow).parts()[VOTE]
    assert vote.value[1].item() == 0.5


def test_a_client_that_is_not_asked_or_has_no_newest_data_does_not_vote() -> None:
    place = shop()
    latest = place.of_classes(0, 1, each=5)
    assert vote_of(place, latest, place.of_classes(2, each=5), place.model).parts() == {}
    assert place.objective(place.of_classes(2, 3), news=News(latest=place.of_classes(2, 3))).parts() == {}


def test_no_prototype_is_uploaded() -> None:
    place = shop()
    samples = place.of_classes(2, 3, each=5)
    news = News(latest=samples, classes=(2, 3))
    assert place.objective(samples, news=news).uploads() == ()
    assert Workshop("glfc", 2, 4, perturb_steps=1).objective(samples, news=news).uploads() != ()
    assert (place.roles.proxy, place.roles.teaches) == (None, False)


# --- the server ---------------------------------------------------------------------------------------------------


def models(count: int, classes: int = 4) -> list[ModelState]:
    """Return models that differ."""
    first = shop().model if classes == 4 else shop().teacher
    return [{name: value + 0.01 * number for name, value in first.items()} for number in range(count)]


def counts(sent: int, best: int, of: int) -> Weighted:
    """Return a vote with these counts."""
    return weighted(torch.tensor([sent / of, best / of], dtype=torch.float64), float(of))


def after(state: VotesState, sent: ModelState, averaged: ModelState, *votes: Weighted) -> VotesState:
    """Return the server's state after a round with these votes."""
    reports = [Report(averaged, 100, parts={VOTE: vote}) for vote in votes] or [Report(averaged, 100)]
    assert [SERVER.objection(report, sent, NEXT) for report in reports] == [None] * len(reports)
    state, model = SERVER.round(state, sent, gathered(sent, reports), NEXT)
    assert model_digest(model) == model_digest(averaged), "votes change nothing about the average"
    return state


def current(state: VotesState) -> str:
    """Return the digest of the best model of the block."""
    assert state.current is not None
    return state.current.digest


def test_the_best_of_a_block_is_the_one_with_most_right_answers_of_all_participants() -> None:
    best, sent, averaged = models(3)
    state = VotesState(current=KeptModel.of(best), voted=True)
    by_few, by_many = counts(5, 0, of=5), counts(10, 16, of=40)  # 15 and 16 of 45; most clients were for the other one
    assert current(after(state, sent, averaged, by_few, by_many)) == model_digest(best)
    assert current(after(state, sent, averaged, by_few, counts(12, 16, of=40))) == model_digest(sent)


def test_ties_go_to_the_later_model_whatever_the_last_bits_of_the_shares() -> None:
    best, sent, averaged = models(3)
    state = VotesState(current=KeptModel.of(best), voted=True)
    seven = counts(2, 3, of=7)
    tied = [(counts(right, right - 1, of), seven) for of in range(2, 60) for right in range(1, of)]
    uneven = [votes for votes in tied if float(torch.diff(sum(vote.value * vote.weight for vote in votes))) > 0]
    assert uneven, "rounding never mattered"
    for votes in uneven[:5]:
        assert current(after(state, sent, averaged, *votes)) == model_digest(sent)


def test_while_nobody_votes_the_latest_model_of_the_block_is_kept_and_from_then_on_the_best() -> None:
    first, second, third, fourth = models(4)
    state = after(SERVER.init(), first, second)
    assert (current(state), state.voted) == (model_digest(second), False)
    state = after(state, second, third)
    assert current(state) == model_digest(third)
    state = after(state, third, fourth, counts(1, 1, of=4))
    assert (current(state), state.voted) == (model_digest(third), True)
    assert after(state, fourth, first) == state, "nobody voted on the fourth"


def test_a_new_block_hands_over_the_best_of_the_last_one_and_starts_afresh() -> None:
    best, model = models(2)
    state = VotesState(KeptModel.of(best), None, voted=True)
    rolled, wider = SERVER.grow(state, model, 6, True, 1)
    assert (rolled.current, rolled.voted) == (None, False)
    assert rolled.last == state.current
    assert head_width(wider) == 6
    assert SERVER.grow(rolled, model, 6, True, 1)[0].last == state.current, "a block without a round has no best model"
    assert SERVER.grow(state, model, 6, False, 1)[0] is state, "the growth joins the block"


def test_before_any_class_has_an_output_nothing_is_kept() -> None:
    model = grow(shop().model, 4, 1)
    state, _ = SERVER.round(SERVER.init(), model, gathered(model, []), RoundContext(0, (), (), 0))
    assert state == SERVER.init()


def test_participants_are_sent_the_best_so_far_to_vote_on_and_the_best_models_as_teachers() -> None:
    (best,), (older,) = models(1), models(1, classes=2)
    kept, last = KeptModel.of(best), KeptModel.of(older)
    state = VotesState(kept, last)
    assert SERVER.extra(VotesState(last=last), FIRST) == Extra()
    assert SERVER.extra(state, NEXT) == Extra(Ballot(kept.digest), {kept.digest: best})
    assert SERVER.choice(state, RoundContext(1, catalogue(4), (4,), 1)) == Choice(), "nothing is old in the first block"
    choice = SERVER.choice(state, NEXT)
    assert choice == Choice(
        Teachers(Teacher(kept.digest, 4), Teacher(last.digest, 2)), {kept.digest: best, last.digest: older}
    )
    assert newest_older_model(choice.teachers, NEXT, alarm=False) == Teacher(last.digest, 2)


BAD_VOTES: list[tuple[Any, Any, str]] = [
    ([0.5], 10.0, "its vote has the shape (1,) with weights (), should be (2,) with weights ()"),
    ([0.5, 0.5, 0.5], 10.0, "has the shape (3,)"),
    ([0.5, 0.5], [10.0, 10.0], "with weights (2,)"),
    ([0.5, 1.01], 10.0, "its vote contains NaN, infinity or values above 1"),
    ([0.5, math.nan], 10.0, "contains NaN, infinity or values above "),
    ([math.inf, 0.5], 10.0, "contains NaN, infinity or values above "),
    ([-0.1, 0.5], 10.0, "its vote has shares below zero"),
    ([0.5, 0.5], -10.0, "its vote has weights that are not believed"),
    ([0.5, 0.5], 0.0, "weights that are not believed"),
    ([0.5, 0.5], math.nan, "weights that are not believed"),
    ([0.5, 0.5], 41.0, "weights that are not believed"),  # the report claims 40 samples
    (torch.tensor([1, 0]), 10.0, "should be floats"),
]


@pytest.mark.parametrize(("value", "weight", "reason"), BAD_VOTES)
def test_votes_that_cannot_be_are_refused(value: Any, weight: Any, reason: str) -> None:
    found = SERVER.objection(shop().report(vote=weighted(value, weight)), shop().model, NEXT)
    assert found is not None
    assert reason in found


def test_what_was_not_asked_for_is_refused() -> None:
    place, good = shop(), counts(3, 4, of=9)
    assert SERVER.objection(place.report(vote=good), place.model, NEXT) is None
    assert SERVER.objection(place.report(vote=good), place.model, FIRST) == "it sends vote unasked"
    assert SERVER.objection(place.report(vote=good, more=good), place.model, NEXT) == "it sends more unasked"
    rows = place.report(vote=good, rows={"head.weight": torch.ones(4)})
    assert SERVER.objection(rows, place.model, NEXT) == "it sends head.weight unasked"


def test_an_aggregator_that_cannot_sum_votes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATORS._members, NAME, MEMBER)
    with pytest.raises(ConfigError, match=r"cannot sum the parts that method\.name glfc sends"):
        federation("glfc", hyper=VOTES, aggregator=NAME)


@pytest.mark.parametrize(
    "settings", [("method.proxy=false",), ("method.name=glfc-wo-prs",)], ids=["proxy off", "ablation"]
)
def test_votes_without_a_selection_are_refused_with_both_settings(settings: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("digits", [*settings, "method.selection=votes"])
    assert str(caught.value) == (
        "method.selection: found 'votes', should be 'proxy' where method.proxy is false: then nothing is selected"
    )


# --- a federation -------------------------------------------------------------------------------------------------


def voting(**options: Any) -> Trial:
    """Return a federation of two tasks, three rounds each, whose teachers are chosen by votes."""
    return federation("glfc", hyper=VOTES, scenario=SCENARIO, **options)


@cache
def heard() -> tuple[list[Exchange], list[SimulationState], bytes]:
    """Return what passed between the parties, the state after each round, and all of it after the last."""
    listeners: list[Listener] = []

    def listen(engine: Any) -> Listener:
        listeners.append(Listener(engine))
        return listeners[-1]

    made = voting(wrap=listen)
    states, records = run_rounds(made)
    assert [record.failures for record in records] == [[]] * len(records)
    return listeners[0].heard, states, snapshot(made, states[-1])


def votes_in(exchange: Exchange) -> list[Weighted]:
    reports = [answer.report for answer in exchange.answers if isinstance(answer, Reply) and answer.report]
    return [report.parts[VOTE] for report in reports if VOTE in report.parts]


def test_votes_are_cast_from_a_blocks_second_round_on_and_no_upload_leaves_a_client() -> None:
    exchanges = heard()[0]
    assert [bool(votes_in(exchange)) for exchange in exchanges] == [False, True, True] * 2
    for exchange in exchanges:
        assert all(isinstance(answer, Reply) and answer.uploads == () for answer in exchange.answers)
        for vote in votes_in(exchange):
            right = vote.value * vote.weight
            assert torch.allclose(right, right.round())


def test_every_round_leaves_the_better_one_of_two_models_and_the_next_block_learns_from_the_best() -> None:
    exchanges, states, _ = heard()
    best = None
    for number, (exchange, state) in enumerate(zip(exchanges, states, strict=True)):
        kept = state.server.role_state
        assert isinstance(kept, VotesState)
        if number % 3 == 0:
            last, best = best, model_digest(state.model)  # nobody could vote, so it is the latest
            assert exchange.broadcast.pools == ()
        else:
            assert exchange.broadcast.pools == (best,)
            of_sent, of_best = sum(vote.value * vote.weight for vote in votes_in(exchange)).round().tolist()
            best = exchange.broadcast.model if of_sent >= of_best else best
        assert current(kept) == best
        teachers = exchange.broadcast.teachers
        assert (teachers.last.digest if teachers.last else None) == last
    assert last is not None
    assert all(state.server.previous is None for state in states), "no other teacher is kept"


def test_the_servers_state_holds_no_sample() -> None:
    state = heard()[1][-1]
    assert state.proxy is None
    content = encode(state.server)
    model = state.model["head.weight"].numpy().tobytes()
    assert model in content, "what does lie there is found"
    for image in patterns().train.images:
        assert image.numpy().tobytes() not in content
        assert (image.float() / 255).numpy().tobytes() not in content
    assert set(vars(state.server.role_state)) == {"current", "last", "voted"}


def test_a_worker_process_casts_the_same_votes() -> None:
    there = voting(engine="processes")
    with closing(there.simulation.engine):
        state, _ = there.run()
    assert snapshot(there, state) == heard()[2]


def test_a_hostile_vote_costs_its_sender_the_round_and_nobody_else() -> None:
    def stuff(traffic: RoundTraffic, reply: Reply) -> Reply:
        if traffic.broadcast.context.round != 1 or reply.report is None or reply.client != victim:
            return reply
        return replace(reply, report=replace(reply.report, parts={VOTE: weighted([1.0, 0.0], 1e12)}))

    exchange = heard()[0][1]
    victim = next(order.client for order in exchange.orders if order.participate)
    _, records = run_rounds(voting(wrap=lambda engine: Changing(engine, stuff)))
    assert [len(record.failures) for record in records] == [0, 1, 0, 0, 0, 0]
    (failure,) = records[1].failures
    assert failure["reason"] == (
        f"the update of client {victim} is refused: its vote has weights that are not believed"
    )
    assert records[1].reports == 2
