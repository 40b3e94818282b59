"""One client's half of every exchange: its job, its failure, and its memory of the last two rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.parties import BRIEF_GLFC, federation
from torch import Tensor

from fcil.core.errors import FederationError, stage
from fcil.core.messages import Broadcast, Diagnostics, Failure, Message, Order, Reply, RoundContext, encode
from fcil.federation.aggregation import Mean
from fcil.federation.class_catalogue import Catalogue
from fcil.federation.client import Done, Job, RoundData, Stamped, run_job, state_before
from fcil.federation.server import FederationConfig
from fcil.federation.traffic import RoundTraffic
from fcil.methods.base import ClientRole, Current
from fcil.models.client_context import ClientContext
from fcil.testing import Trial
from fcil.testing.recorded import Exchange, Listener

BROADCAST = Broadcast(RoundContext(6, ("0",), (1,), 2), "model")
NOTHING = torch.empty(0, dtype=torch.int64)
BEFORE, AFTER = Catalogue(("1",)), Catalogue(("1", "2"))


class FragileClient(ClientRole[Catalogue]):
    """Fails at a stage, or before any, or not at all."""

    def __init__(self, fails_at: str | None) -> None:
        self.fails_at = fails_at

    def init(self) -> Catalogue:
        return Catalogue()

    def round(
        self, state: Catalogue, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[Catalogue, Reply, Diagnostics]:
        if self.fails_at == "start":
            raise KeyError("nothing there")
        for name in ("arrive", "fit", "uploads"):
            with stage(name):
                if name == self.fails_at:
                    raise ValueError("broken disk")
        return AFTER, Reply(order.client), Diagnostics(entropy=0.5)

    def in_use(self, state: Catalogue) -> Tensor:
        return NOTHING


def carried_out(fails_at: str | None) -> Done:
    job = Job(Order(17, True), 0, BEFORE, NOTHING, None, None)
    return run_job(FragileClient(fails_at), Mean(FederationConfig()), job, BROADCAST, {}, federation().local)


def test_a_client_that_works_gives_its_new_state_and_reply() -> None:
    assert carried_out(None) == Done(AFTER, Reply(17), None, Diagnostics(entropy=0.5))


def test_an_error_becomes_a_failure_with_client_round_and_stage() -> None:
    for name in ("arrive", "fit", "uploads"):
        failed = carried_out(name)
        assert failed == Done(None, None, Failure(17, 6, name, "ValueError: broken disk"))
        assert str(failed.answer) == f"client 17 failed in round 7 at stage {name}: ValueError: broken disk"


def test_an_error_outside_of_any_stage_is_one_of_the_start() -> None:
    failure = carried_out("start").answer
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.reason) == ("start", "KeyError: 'nothing there'")


def test_a_failure_leaves_the_state_and_the_entropy_as_they_were() -> None:
    sites = federation().clients
    site, job = sites.client(4), Job(Order(4, True), 0, BEFORE, NOTHING, 0.25, None)
    assert site.finish(2, job, Done(AFTER, Reply(4), None, Diagnostics(entropy=0.75))) == Reply(4)
    kept = sites.kept[4]
    assert (kept.round, kept.state, kept.entropy) == (2, AFTER, 0.75)
    failure = Failure(4, 3, "fit", "power cut")
    assert site.finish(3, job, Done(None, None, failure)) is failure
    assert sites.kept[4] is kept


def test_the_entropy_measured_last_is_kept_while_none_is_measured() -> None:
    sites = federation().clients
    job = Job(Order(2, False), 0, BEFORE, NOTHING, 0.25, None)
    sites.client(2).finish(0, job, Done(None, Reply(2), None, Diagnostics()))
    assert (sites.kept[2].state, sites.kept[2].entropy) == (BEFORE, 0.25)


def test_every_client_has_a_seed_of_its_own_in_every_round() -> None:
    sites, holding = federation().clients, RoundData(NOTHING)
    jobs = []
    for client in (0, 1, 2**62):
        sites.held[client] = ("model",)
        for number in (0, 1):
            sent = replace(BROADCAST, context=replace(BROADCAST.context, round=number))
            job = sites.client(client).prepare(sent, Order(client, True), holding)
            jobs.append(job)
    assert len({job.seed for job in jobs}) == len(jobs) == 6


# --- a round that is asked for again ------------------------------------------------------------------------------


def heard(made: Trial) -> list[Exchange]:
    """Play a whole run and return what passed between the server and the sites."""
    listener = Listener(made.simulation.engine)
    replace(made, simulation=replace(made.simulation, engine=listener)).run()
    return listener.heard


def answer(exchange: Exchange, client: int) -> Reply | Failure:
    """Return a client's answer in a round that was run."""
    return next(answer for answer in exchange.answers if answer.client == client)


def again(made: Trial, exchange: Exchange, client: int) -> Reply | Failure:
    """Let a client run the round of an exchange once more."""
    traffic = RoundTraffic(exchange.broadcast, exchange.models)
    orders = [order for order in exchange.orders if order.client == client]
    return next(made.simulation.engine.run(traffic, orders))


@pytest.mark.parametrize(("method", "hyper"), [("icarl", {}), ("glfc", BRIEF_GLFC)])
def test_the_latest_round_asked_for_again_is_answered_with_the_same_bytes(method: str, hyper: dict[str, Any]) -> None:
    """The server may have gone back to its checkpoint while the site had already trained in the round."""
    made = federation(method, scenario={"participants": 5, "rounds_per_task": 1, "tasks": (2, 2)}, hyper=hyper)
    first, second = heard(made)
    reply, state, table = answer(second, 0), encode(made.clients.kept[0]), encode(made.clients.table())
    assert isinstance(reply, Reply)
    assert reply.report is not None
    for _ in range(2):
        assert encode(again(made, second, 0)) == encode(reply)
        assert encode(made.clients.kept[0]) == state
    with pytest.raises(FederationError, match="asks for round 1, but this site has gone on to round 2 and has kept"):
        again(made, first, 0)
    assert (encode(made.clients.kept[0]), encode(made.clients.table())) == (state, table), "a refusal changes nothing"


def test_the_first_round_can_be_asked_for_again_too() -> None:
    made = federation("icarl", scenario={"tasks": 1, "rounds_per_task": 1})
    (exchange,) = heard(made)
    kept = encode(made.clients.kept[0])
    assert encode(again(made, exchange, 0)) == encode(answer(exchange, 0))
    assert encode(made.clients.kept[0]) == kept


def test_a_site_that_was_restored_refuses_rounds_before_its_state() -> None:
    made = federation("icarl", scenario={"tasks": 1})
    exchanges = heard(made)
    made.clients.restore(made.clients.states(), made.clients.table())
    for exchange in exchanges:
        with pytest.raises(FederationError, match="a server that was restored from a backup starts with --restored"):
            again(made, exchange, 0)


def stamped(round: int) -> Stamped:
    state: Message = Catalogue(began=round)
    return Stamped(round, state)


def test_of_two_kept_states_the_newest_from_before_a_round_counts() -> None:
    five, three = stamped(5), stamped(3)
    assert state_before(9, five, three) is five
    assert state_before(5, five, three) is three
    assert state_before(4, five, three) is three
    assert state_before(2, None, None) is None
    assert state_before(5, five, None) is None
    with pytest.raises(FederationError, match=r"asks for round 4.*gone on to round 6"):
        state_before(3, five, three)


@pytest.mark.parametrize(("measured", "kept"), [(0.5, 0.5), (None, 0.25), (float("nan"), 0.25), (float("inf"), 0.25)])
def test_an_entropy_that_is_none_or_not_finite_leaves_the_last_one(measured: float | None, kept: float) -> None:
    site = federation().clients.client(17)
    job = Job(Order(17, True), 0, BEFORE, NOTHING, 0.25, None)
    site.finish(6, job, Done(None, Reply(17), None, Diagnostics(entropy=measured)))
    assert site.store.before(7) == Stamped(6, BEFORE, kept)
