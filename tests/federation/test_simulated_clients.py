"""The stores of all simulated clients: by number, of any size, and as a table."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from support.parties import federation, patterns, run_rounds
from support.rounds import aggregated
from torch import Tensor

from fcil.core.messages import Stream, decode, encode
from fcil.data.samples import Samples
from fcil.federation.engines import SerialEngine
from fcil.federation.simulated_clients import ClientsTable, SimulatedClients
from fcil.federation.traffic import RoundTraffic
from fcil.testing import Trial

HUGE = 2**62
IDS = [hashlib.sha256(b"north").hexdigest(), "7", "Süd", hashlib.sha256(b"west").hexdigest()]  # of mixed lengths


@dataclass
class Fixed:
    """The same data in every round."""

    held: dict[int, Tensor]

    def holding(self, round: int, client: int) -> Tensor:
        return self.held[client]

    def new_classes(self, round: int, client: int) -> bool:
        return False


def real_sites(made: Trial) -> SimulatedClients:
    """Return sites as outside of a simulation: with opaque class ids, and clients that have any number."""
    train = patterns().train
    held = {HUGE: (train.labels < 2).nonzero().squeeze(1), 3: (train.labels >= 2).nonzero().squeeze(1)}
    samples = Samples(train, IDS)
    return SimulatedClients(made.roles.client, Stream(3, "client"), Fixed(held), samples)


def test_large_client_numbers_and_opaque_class_ids_play_a_round() -> None:
    made = federation("icarl")
    sites, server = real_sites(made), made.simulation.server
    local = replace(made.local, samples=sites.samples)
    announced = {name for found in sites.announce(0, [3, HUGE], ()) for name in found.classes}
    state = server.grow(server.start(), announced)
    assert state.catalogue.classes == ("7", "Süd", *sorted([IDS[0], IDS[3]]))
    assert server.choose(0, [3, HUGE]) == [3, HUGE]
    opened = server.open(state, None)
    traffic, orders = RoundTraffic(opened.broadcast, opened.models), server.orders([HUGE, 3], [HUGE, 3])
    closed = aggregated(server, opened, orders, SerialEngine(sites, server.aggregator, local).run(traffic, orders))
    assert (closed.failures, closed.reports) == ([], 2)
    outputs = sites.samples.outputs(torch.arange(4), closed.state.context).tolist()
    assert [closed.state.catalogue.classes[output] for output in outputs] == IDS


def test_the_table_and_the_states_come_back_whatever_the_numbers_and_take_no_room_for_them() -> None:
    made = federation("icarl")
    sites = made.clients
    run_rounds(made)
    table = sites.table()
    renumbered = real_sites(made)
    for client, kept in sites.kept.items():
        renumbered.kept[HUGE + client], renumbered.held[HUGE + client] = kept, sites.held[client]
    large = renumbered.table()
    assert len(encode(large)) == len(encode(table))
    fresh = real_sites(made)
    fresh.restore(renumbered.states(), decode(encode(large), ClientsTable))
    assert (fresh.kept, fresh.held) == (renumbered.kept, renumbered.held)
    assert fresh.changed == set()


def test_no_client_yet_is_a_table_too() -> None:
    sites = federation().clients
    table = decode(encode(sites.table()), ClientsTable)
    sites.restore({}, table)
    assert (sites.states(), len(table.clients)) == ({}, 0)


def test_an_unseen_client_starts_with_the_initial_state_and_takes_no_room() -> None:
    sites = federation().clients
    assert sites.client(HUGE).store.before(0) is None
    assert sites.states() == {}


def test_changed_names_the_clients_whose_state_is_another() -> None:
    made = federation(scenario={"both_share": 0.5})
    changes, arrivals = [], []
    for _, record in made.simulation.rounds(made.simulation.start()):
        changes.append(sorted(made.clients.changed))
        arrivals.append(record.arrivals)
        made.clients.changed.clear()
    assert changes[0] == arrivals[0] == [0, 1, 2, 3]
    assert changes[1] == changes[3] == [], "nothing new arrives in a task's second round"
    assert set(changes[2]) >= set(arrivals[2])


def test_a_client_that_failed_in_its_first_round_still_holds_its_models_after_a_resume() -> None:
    made = federation("icarl")
    sites = real_sites(made)
    sites.held[HUGE] = ("model",)
    fresh = real_sites(made)
    fresh.restore(sites.states(), decode(encode(sites.table()), ClientsTable))
    assert (fresh.held, fresh.kept) == ({HUGE: ("model",)}, {})
    assert fresh.client(HUGE).store.before(0) is None
