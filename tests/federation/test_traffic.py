"""The mail of a round: models travel by digest to those who lack them, and everything is weighed as it is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.parties import federation, run_rounds
from torch import Tensor

from fcil.core.messages import (
    Announcement,
    Broadcast,
    Message,
    Missing,
    ModelParcel,
    ModelState,
    Notice,
    Order,
    Reply,
    Report,
    RoundContext,
    Teacher,
    Teachers,
    decode,
    encode,
    model_digest,
)
from fcil.federation.client import MODELS_HELD, RoundData, Stamped
from fcil.federation.simulated_clients import ClientsTable, SimulatedClients, SimulatedStore
from fcil.federation.traffic import RoundTraffic
from fcil.methods.base import Extra
from fcil.methods.server import AveragingServer, Stateless
from fcil.testing.recorded import Listener

CONTEXT = RoundContext(round=4, catalogue=("1", "2", "3"), blocks=(2, 3), rounds_since_growth=0)
MODELS = {
    name: {"weight": torch.rand(size)} for name, size in (("global", 50), ("best", 30), ("former", 20), ("pool", 70))
}
TEACHERS = Teachers(Teacher("best", 2), Teacher("former", 2))
BROADCAST = Broadcast(CONTEXT, "global", TEACHERS)
NOTHING = RoundData(torch.empty(0, dtype=torch.int64))
EVERYTHING = ("global", "best", "former")


def parcels(*names: str) -> int:
    return sum(len(encode(ModelParcel(name, MODELS[name]))) for name in names)


def asking(*names: str) -> int:
    return len(encode(Missing(names)))


BROADCAST_BYTES, SHORT_BYTES = len(encode(BROADCAST)), len(encode(Broadcast(CONTEXT, "global")))


def sites_holding(held: dict[int, tuple[str, ...]] | None = None) -> SimulatedClients:
    sites = federation().clients
    sites.held.update(held or {})
    return sites


def send(
    sites: SimulatedClients,
    participants: Sequence[int],
    bystanders: Sequence[int] = (),
    broadcast: Broadcast = BROADCAST,
) -> RoundTraffic:
    """Send a broadcast to these clients and return the traffic."""
    traffic = RoundTraffic(broadcast, MODELS)
    for client in (*participants, *bystanders):
        order = Order(client, client in participants)
        sites.deliver(traffic, order).prepare(traffic.broadcast_to(order), order, NOTHING)
    return traffic


def test_a_participant_asks_for_every_model_and_a_bystander_for_the_global_one() -> None:
    participant, bystander = send(sites_holding(), [0]), send(sites_holding(), [], [0])
    assert participant.down == BROADCAST_BYTES + parcels(*EVERYTHING)
    assert participant.up == asking(*EVERYTHING)
    assert bystander.down == SHORT_BYTES + parcels("global")
    assert bystander.up == asking("global")
    assert SHORT_BYTES < BROADCAST_BYTES


def test_who_looks_on_asks_for_no_teacher_even_when_told_of_some() -> None:
    assert sites_holding().client(0).missing(BROADCAST, Order(0, False)) == ("global",)


def test_a_round_is_the_sum_over_its_clients() -> None:
    traffic = send(sites_holding(), [2, 5], [1])
    assert traffic.down == 2 * (BROADCAST_BYTES + parcels(*EVERYTHING)) + SHORT_BYTES + parcels("global")
    assert traffic.up == 2 * asking(*EVERYTHING) + asking("global")


def test_a_model_that_a_site_still_has_is_not_sent_again() -> None:
    sites = sites_holding()
    send(sites, [0], [1])
    again = send(sites, [0, 1])
    assert again.down == 2 * BROADCAST_BYTES + parcels("best", "former")
    assert again.up == asking("best", "former")
    third = send(sites, [0, 1])
    assert (third.down, third.up) == (2 * BROADCAST_BYTES, 0)


def test_sites_hold_what_they_use_newest_first_and_no_more_than_the_bound() -> None:
    sites = sites_holding({0: ("older",), 1: ("a", "b", "c"), 7: ("x",)})
    send(sites, [0], [1])
    assert sites.held == {0: EVERYTHING, 1: ("global", "a", "b"), 7: ("x",)}
    assert len(EVERYTHING) == MODELS_HELD


def test_a_model_that_fell_out_of_the_bound_is_sent_again() -> None:
    sites = sites_holding({0: ("a", "b", "c", "global")[:MODELS_HELD]})
    assert send(sites, [], [0]).down == SHORT_BYTES + parcels("global")


def test_more_models_than_the_bound_are_held_while_one_broadcast_needs_them_all() -> None:
    sites, wide = sites_holding(), replace(BROADCAST, pools=("pool",))
    assert send(sites, [0], broadcast=wide).down == len(encode(wide)) + parcels(*EVERYTHING, "pool")
    assert send(sites, [0], broadcast=wide).down == len(encode(wide))
    sites.kept[0] = Stamped(CONTEXT.round, Stateless())
    restored = sites_holding()
    restored.restore(sites.states(), decode(encode(sites.table()), ClientsTable))
    assert restored.held == {0: (*EVERYTHING, "pool")}


NAMES = ["a", "b", "c", "d"]
rounds = st.lists(
    st.tuples(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), st.sets(st.integers(0, 4))),
    max_size=6,
)


@examples(20)
@given(rounds, st.sets(st.integers(0, 4)))
def test_what_is_held_and_sent_is_what_a_list_per_client_would_say(
    played: list[tuple[list[str], set[int]]], participants: set[int]
) -> None:
    sites = federation().clients
    plain: dict[int, list[str]] = {client: [] for client in range(5)}
    parcel = len(encode(ModelParcel("a", {"weight": torch.zeros(10)})))
    for names, asked in played:
        models = {name: {"weight": torch.zeros(10)} for name in names}
        broadcast = Broadcast(CONTEXT, names[0], pools=tuple(names[1:]))
        traffic, message_bytes, sent = RoundTraffic(broadcast, models), 0, 0
        for client in sorted(asked):
            order = Order(client, client in participants)
            sites.deliver(traffic, order).prepare(traffic.broadcast_to(order), order, NOTHING)
            takes = names if order.participate else names[:1]
            sent += sum(name not in plain[client] for name in takes)
            message_bytes += len(encode(traffic.broadcast_to(order)))
            plain[client] = list(dict.fromkeys([*takes, *plain[client]]))[:MODELS_HELD]
        assert {client: list(sites.held.get(client, ())) for client in range(5)} == plain
        assert traffic.down == message_bytes + sent * parcel


def test_answers_cost_their_encoded_parts() -> None:
    report = Report({"weight": torch.rand(40)}, samples=7)
    upload = ModelParcel("prototype", {"gradient": torch.rand(9)})
    traffic = RoundTraffic(BROADCAST, MODELS)
    for reply in (Reply(0, report=report, uploads=(upload, upload)), Reply(1), Reply(2, announced=("8", "9"))):
        traffic.answered(reply)
    traffic.announced(Announcement(()))
    traffic.announced(Announcement(("7",)))
    announcements = len(encode(Announcement(("8", "9")))) + len(encode(Announcement(("7",))))
    assert traffic.up == len(encode(report)) + 2 * len(encode(upload)) + announcements
    assert traffic.phases == {
        "announce": (len(encode(Announcement(("7",)))), 0),
        "train": (len(encode(report)) + len(encode(Announcement(("8", "9")))), 0),
        "proxy": (2 * len(encode(upload)), 0),
    }


def test_phases_without_a_message_are_left_out_and_broadcasts_are_counted_where_clients_train() -> None:
    sites = federation().clients
    assert RoundTraffic(BROADCAST, MODELS).phases == {}
    traffic = RoundTraffic(BROADCAST, MODELS)
    sites.deliver(traffic, Order(0, True))
    assert traffic.phases == {"train": (traffic.up, traffic.down)}


@dataclass(frozen=True)
class Named(Message):
    """An extra that speaks of a pool."""

    pool: str


@dataclass(frozen=True)
class Told(Notice):
    """An extra for everybody."""

    values: Tensor


def test_of_the_extra_a_bystander_gets_a_notice_alone() -> None:
    for extra, gets in ((Named("pool"), None), (told := Told(torch.rand(99)), told)):
        wide = replace(BROADCAST, extra=extra, pools=("pool",))
        bystander, participant = send(sites_holding(), [], [0], wide), send(sites_holding(), [0], [], wide)
        assert bystander.broadcast_to(Order(0, False)) == Broadcast(CONTEXT, "global", extra=gets)
        assert bystander.down == len(encode(Broadcast(CONTEXT, "global", extra=gets))) + parcels("global")
        assert participant.broadcast_to(Order(0, True)) is wide


# --- in a whole run -----------------------------------------------------------------------------------------------


class PoolServer(AveragingServer[Stateless]):
    """Sends the same tensors in every round, such as what a generator was trained on."""

    pool: ModelState

    def __init__(self) -> None:
        super().__init__(Stateless())
        self.pool = {"images": torch.rand(3, 1, 8, 8)}

    def extra(self, state: Stateless, context: RoundContext) -> Extra:
        digest = model_digest(self.pool)
        return Extra(Named(digest), {digest: self.pool})


@pytest.mark.parametrize("participants", [5, 2])
def test_a_pool_and_a_teacher_travel_once_to_who_trains_and_never_to_a_bystander(
    monkeypatch: pytest.MonkeyPatch, participants: int
) -> None:
    made = federation("lwf", scenario={"tasks": (2, 2), "both_share": 1.0, "participants": participants})
    role, listener = PoolServer(), Listener(made.simulation.engine)
    server = replace(made.simulation.server, role=role)
    made.simulation = replace(made.simulation, server=server, engine=listener)
    sent: dict[str, list[tuple[int, int]]] = {}  # by digest: rounds and clients
    receive = SimulatedStore.receive

    def noting(store: SimulatedStore, parcel: ModelParcel) -> None:
        assert model_digest(parcel.model) == parcel.digest
        sent.setdefault(parcel.digest, []).append((len(listener.heard) - 1, store.client))
        receive(store, parcel)

    monkeypatch.setattr(SimulatedStore, "receive", noting)
    run_rounds(made)
    trained = [
        (number, order.client)
        for number, heard in enumerate(listener.heard)
        for order in heard.orders
        if order.participate
    ]
    (teacher,) = listener.heard[-1].broadcast.teachers.digests
    for digest, begins in ((model_digest(role.pool), 0), (teacher, 2)):
        who = {client for number, client in trained if number >= begins}
        assert set(sent[digest]) <= set(trained), "a bystander was sent it"
        assert {client for _, client in sent[digest]} >= who
        if participants == 5:  # the models of rounds in which a site looks on may push others out
            assert len(sent[digest]) == len(who)
