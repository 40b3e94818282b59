"""The ledger: whatever is lost, repeated, killed or restored, no sample is in the sums twice, and none is lost."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.federation.client import Stamped, state_before
from fcil.methods.ledger import NEVER, Batch, Receipts, SampleLedger, propose, settle, take_in, withdraw


def indices(*samples: int) -> Tensor:
    return torch.tensor(samples, dtype=torch.int64)


def sent(ledger: SampleLedger, round: int) -> SampleLedger:
    """Return the ledger once all that waits is sent."""
    return propose(ledger, torch.ones(len(ledger.waiting), dtype=torch.bool), round)


# --- by hand ------------------------------------------------------------------------------------------------------


def test_a_batch_stays_pending_until_there_is_a_receipt_for_it() -> None:
    ledger = sent(take_in(SampleLedger(), indices(4, 2)), 0)
    assert ledger.pending is not None
    assert ledger.pending.samples.tolist() == [2, 4]
    again = sent(take_in(settle(ledger, 0, NEVER), indices(7)), 3)  # no receipt: the same samples, and no others
    assert again.pending == Batch(ledger.pending.samples, (0, 3))
    assert again.waiting.tolist() == [7]
    done = settle(again, 1, 3)
    assert done.pending is None
    assert sent(done, 4).pending == Batch(indices(7), (4,))


def test_samples_that_come_again_are_not_taken_in_again() -> None:
    ledger = settle(sent(take_in(SampleLedger(), indices(1, 2)), 0), 1, 0)
    gone = take_in(ledger, indices())
    back = take_in(gone, indices(1, 2, 3, 3))
    assert back.waiting.tolist() == [3]
    assert sent(settle(back, 1, 0), 5).batches[1].samples.tolist() == [3]


def test_nothing_that_changes_leaves_the_same_ledger() -> None:
    ledger = settle(sent(take_in(SampleLedger(), indices(1)), 0), 1, 0)
    assert settle(ledger, 1, 0) is ledger
    assert take_in(ledger, indices(1)) is ledger
    assert sent(ledger, 1) is ledger


def test_samples_of_classes_without_an_output_wait() -> None:
    ledger = propose(take_in(SampleLedger(), indices(1, 2, 3)), torch.tensor([True, False, True]), 0)
    assert ledger.batches[0].samples.tolist() == [1, 3]
    assert ledger.waiting.tolist() == [2]


def test_a_server_that_was_set_back_is_sent_the_same_batches_again() -> None:
    ledger = settle(sent(take_in(SampleLedger(), indices(1)), 0), 1, 0)
    ledger = settle(sent(take_in(ledger, indices(2)), 4), 2, 4)
    back = settle(ledger, 1, 0)
    assert back.unsettled.tolist() == [2]
    assert sent(back, 9).pending == Batch(indices(2), (4, 9))


def test_a_client_that_was_set_back_stops() -> None:
    ledger = settle(sent(take_in(SampleLedger(), indices(1)), 0), 1, 0)
    pending = sent(take_in(ledger, indices(2)), 4)
    for known, last in ((2, 4), (1, 3)):  # one batch more than it knows; as many, but another one
        with pytest.raises(FederationError, match=r"counted . batches .* in round ., and the client's state knows 1"):
            settle(ledger, known, last)
    assert settle(pending, 2, 4).counted == 2
    with pytest.raises(FederationError, match="restore the newest state of this client"):
        settle(SampleLedger(), 1, 0)


def test_what_is_withdrawn_is_never_sent_or_taken_out_after_it_was() -> None:
    ledger = settle(sent(take_in(SampleLedger(), indices(1, 2)), 0), 1, 0)
    ledger = take_in(ledger, indices(3, 4))
    left = withdraw(ledger, indices(2, 3, 9))
    assert left.waiting.tolist() == [4]
    assert left.pending == Batch(indices(2), withdrawn=True)
    assert withdraw(left, indices(2, 3)).batches == left.batches
    assert take_in(left, indices(2, 3)).waiting.tolist() == [4]


def test_a_withdrawal_waits_until_what_it_takes_out_is_in() -> None:
    ledger = withdraw(sent(take_in(SampleLedger(), indices(1, 2)), 0), indices(1))
    assert ledger.pending is not None
    assert ledger.pending.samples.tolist() == [1, 2]
    assert settle(ledger, 1, 0).pending == Batch(indices(1), withdrawn=True)


def test_receipts_count_batches_per_client() -> None:
    receipts = Receipts().after(0, [5, 2]).after(3, [5, 9])
    assert receipts.clients.tolist() == [2, 5, 9]
    assert [receipts.of(client) for client in (2, 5, 9, 0)] == [(1, 0), (2, 3), (1, 3), (0, NEVER)]


# --- a federation with faults -------------------------------------------------------------------------------------

CLIENTS, SAMPLES = 3, 6  # samples per client


@dataclass
class Disk:
    """All that a site keeps: the states after two rounds, and the samples that it froze for them."""

    latest: Stamped | None = None
    former: Stamped | None = None
    frozen: dict[int, Tensor] = field(default_factory=dict)

    def before(self, round: int) -> SampleLedger:
        kept = state_before(round, self.latest, self.former)
        return kept.state if kept else SampleLedger()  # type: ignore[return-value]

    def keep(self, round: int, ledger: SampleLedger) -> None:
        before = state_before(round, self.latest, self.former)
        self.latest, self.former = Stamped(round, ledger), before


@dataclass
class World:
    """A server and its sites; the sums are a count per sample, so that they are exact."""

    sums: Counter[tuple[int, int]] = field(default_factory=Counter)
    receipts: Receipts = field(default_factory=Receipts)
    round: int = 0
    disks: list[Disk] = field(default_factory=lambda: [Disk() for _ in range(CLIENTS)])
    backups: list[Disk] = field(default_factory=lambda: [Disk() for _ in range(CLIENTS)])
    checkpoints: list[tuple[Any, ...]] = field(default_factory=list)
    held: list[set[int]] = field(default_factory=lambda: [set() for _ in range(CLIENTS)])
    refused: set[int] = field(default_factory=set)
    restored: set[int] = field(default_factory=set)

    def ask(self, client: int, participates: bool) -> Batch | None:
        """Return the batch that a site sends, once it has kept its state."""
        disk = self.disks[client]
        try:
            ledger = settle(disk.before(self.round), *self.receipts.of(client))
        except FederationError:
            self.refused.add(client)
            return None
        self.refused.discard(client)
        held = disk.frozen.setdefault(self.round, indices(*sorted(self.held[client])))
        disk.frozen = {number: disk.frozen[number] for number in sorted(disk.frozen)[-2:]}
        ledger = take_in(ledger, held)
        if participates:
            ledger = sent(ledger, self.round)
        disk.keep(self.round, ledger)
        return ledger.pending if participates else None

    def play(self, asked: dict[int, bool], arriving: set[int], saved: bool = True) -> None:
        """Play a round in which the replies of some sites arrive; a server that is killed saves nothing."""
        batches = {client: self.ask(client, trains) for client, trains in sorted(asked.items())}
        came = {client: batch for client, batch in batches.items() if batch is not None and client in arriving}
        if not saved:
            return
        self.checkpoints.append((self.sums.copy(), self.receipts, self.round))
        for client, batch in came.items():
            sign = -1 if batch.withdrawn else 1
            self.sums.update({(client, sample): sign for sample in batch.samples.tolist()})
        self.receipts = self.receipts.after(self.round, list(came))
        self.round += 1

    def set_back(self, rounds: int) -> None:
        """Restore the server from an earlier checkpoint."""
        for _ in range(min(rounds, len(self.checkpoints))):
            self.sums, self.receipts, self.round = self.checkpoints.pop()
        self.sums = self.sums.copy()

    @property
    def twice(self) -> list[tuple[int, int]]:
        """Return the samples that are not in the sums either once or not at all."""
        return [sample for sample, times in self.sums.items() if times not in (0, 1)]


CLIENT = st.integers(0, CLIENTS - 1)
FAULTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("round"),
            st.dictionaries(CLIENT, st.booleans(), min_size=1),
            st.sets(CLIENT),
            st.booleans(),
        ),
        st.tuples(st.just("arrive"), CLIENT, st.sets(st.integers(0, SAMPLES - 1), min_size=1, max_size=3)),
        st.tuples(st.just("backup"), CLIENT),
        st.tuples(st.just("restore site"), CLIENT),
        st.tuples(st.just("set server back"), st.integers(1, 3)),
    ),
    min_size=4,
    max_size=30,
)


@given(FAULTS)
@examples(120)
def test_no_fault_makes_a_sample_count_twice_and_quiet_rounds_count_them_all(faults: list[Any]) -> None:
    world = World()
    for fault, *facts in faults:
        if fault == "round":
            world.play(*facts)
        elif fault == "arrive":
            world.held[facts[0]] = set(facts[1])  # what was there before goes away, or stays
        elif fault == "backup":
            world.backups[facts[0]] = copy.deepcopy(world.disks[facts[0]])
        elif fault == "restore site":
            world.disks[facts[0]] = copy.deepcopy(world.backups[facts[0]])
            world.restored.add(facts[0])
        else:
            world.set_back(facts[0])
        assert world.twice == []
    everybody = set(range(CLIENTS))
    for _ in range(len(faults) + 4):
        world.play(dict.fromkeys(everybody, True), everybody)
        assert world.twice == []
    assert world.refused <= world.restored, "a site that was never set back is refused for ever"
    for client in everybody - world.refused:
        ledger = world.disks[client].latest
        assert ledger is not None
        known = set(ledger.state.known.tolist())  # type: ignore[attr-defined]
        assert world.held[client] <= known
        assert known == {sample for (owner, sample), times in world.sums.items() if owner == client and times}


@given(FAULTS, st.lists(st.tuples(CLIENT, st.integers(0, SAMPLES - 1)), min_size=1, max_size=4))
@examples(40)
def test_what_is_withdrawn_is_out_of_the_sums_in_the_end(faults: list[Any], gone: list[tuple[int, int]]) -> None:
    world = World()
    for number, (fault, *facts) in enumerate(faults):
        if fault == "round":
            world.play(*facts)
        elif fault == "arrive":
            world.held[facts[0]] = set(facts[1])
        if number == len(faults) // 2:
            for client, sample in gone:
                disk = world.disks[client]
                if disk.latest is not None:
                    left = withdraw(disk.latest.state, indices(sample))  # type: ignore[arg-type]
                    world.disks[client].latest = Stamped(disk.latest.round, left)
        assert world.twice == []
    everybody = set(range(CLIENTS))
    for _ in range(len(gone) + 4):
        world.play(dict.fromkeys(everybody, True), everybody)
    for client in everybody:
        ledger: Any = world.disks[client].latest
        kept = {sample for (owner, sample), times in world.sums.items() if owner == client and times}
        assert kept == set(ledger.state.known.tolist()) - set(ledger.state.forgotten.tolist())
