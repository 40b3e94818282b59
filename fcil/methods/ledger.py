"""Counting each sample once, for ever: a client's ledger of batches, and the server's receipts for them.

A client puts samples that it has not sent before into a batch and sends it, always the same one, until a receipt says
that the server has counted it; only then may another batch follow. The server never answers a client alone: its
receipts are a notice to everybody, and say how many batches of each client are in the sums, and in which round the last
one came. They are part of the state that has the sums, so the two cannot disagree when messages are lost or repeated,
or a state is restored. Because batches keep their order and their samples, that number says which samples are in the
sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import Message, Notice, Shape
from fcil.methods.local_objective import NOTHING

NEVER = -1  # round of the last batch of a client that has sent none
PerClient = Annotated[Tensor, Shape(("clients",), torch.int64)]


@dataclass(frozen=True)
class Receipts(Notice):
    """The batches that are in the server's sums: of each client their number and the round of the last one."""

    clients: PerClient = NOTHING  # ascending
    batches: PerClient = NOTHING
    rounds: PerClient = NOTHING

    def of(self, client: int) -> tuple[int, int]:
        """Return the number of a client's batches, and the round of the last one."""
        found = (self.clients == client).nonzero().squeeze(1)
        return (int(self.batches[found[0]]), int(self.rounds[found[0]])) if len(found) else (0, NEVER)

    def after(self, round: int, clients: Sequence[int]) -> Receipts:
        """Return the receipts once a round has brought one batch of each of these clients."""
        came = torch.tensor(sorted(clients), dtype=torch.int64)
        known = torch.unique(torch.cat([self.clients, came]))
        batches, rounds = torch.zeros_like(known), torch.full_like(known, NEVER)
        before = torch.searchsorted(known, self.clients)
        batches[before], rounds[before] = self.batches, self.rounds
        now = torch.searchsorted(known, came)
        batches[now] += 1
        rounds[now] = round
        return Receipts(known, batches, rounds)


@dataclass(frozen=True)
class Batch(Message):
    """Samples that are sent together, and the rounds in which they were; `withdrawn` takes them out of the sums."""

    samples: Annotated[Tensor, Shape(("samples",), torch.int64)]
    rounds: tuple[int, ...] = ()
    withdrawn: bool = False


@dataclass(frozen=True)
class SampleLedger(Message):
    """All samples that a client ever held, each in one place."""

    latest: Annotated[Tensor, Shape(("latest",), torch.int64)] = (
        NOTHING  # the newest arrival; these are in one of the other places too
    )
    waiting: Annotated[Tensor, Shape(("waiting",), torch.int64)] = NOTHING  # in no batch yet
    batches: tuple[Batch, ...] = field(default_factory=tuple)  # in the order in which they are counted
    counted: int = 0  # batches in the server's sums, by its last receipt
    forgotten: Annotated[Tensor, Shape(("forgotten",), torch.int64)] = NOTHING  # never to be sent (again)

    @property
    def pending(self) -> Batch | None:
        """Return the batch to be sent until there is a receipt for it, if there is one."""
        return self.batches[self.counted] if self.counted < len(self.batches) else None

    @property
    def unsettled(self) -> Tensor:
        """Return the samples that may have to be sent."""
        return torch.cat([self.waiting, *(batch.samples for batch in self.batches[self.counted :])])

    @property
    def known(self) -> Tensor:
        """Return all samples that were ever taken in."""
        return torch.cat([self.waiting, self.forgotten, *(batch.samples for batch in self.batches)])


def take_in(ledger: SampleLedger, samples: Tensor) -> SampleLedger:
    """Return the ledger with the samples held now; those it knows already are not taken in again."""
    if torch.equal(samples, ledger.latest):
        return ledger
    new = samples[~torch.isin(samples, ledger.known)]
    return replace(ledger, latest=samples, waiting=torch.cat([ledger.waiting, torch.unique(new)]))


def settle(ledger: SampleLedger, batches: int, last: int) -> SampleLedger:
    """Return the ledger by the server's receipt: so many batches are in its sums, the last one since round `last`.

    A server that was set back has fewer of them than before, and is sent the others again. One that has a batch which
    the ledger does not know makes the ledger the one that was set back: which samples it lacks, nobody can tell.
    """
    known = batches <= len(ledger.batches) and (batches == 0 or last in ledger.batches[batches - 1].rounds)
    if not known:
        raise FederationError(
            f"the server has counted {batches} batches of samples of this client, the last one in round {last + 1}, "
            f"and the client's state knows {_listed(ledger)}: the state is older than the server's, and samples could "
            "be counted twice; restore the newest state of this client"
        )
    return ledger if batches == ledger.counted else replace(ledger, counted=batches)


def propose(ledger: SampleLedger, ready: Tensor, round: int, even_empty: bool = False) -> SampleLedger:
    """Return the ledger with its pending batch noted as sent in this round.

    Without a pending batch, the waiting samples that are `ready` become one, if there are any, or `even_empty`.
    """
    if ledger.pending is None:
        if not even_empty and not bool(ready.any()):
            return ledger
        fresh = Batch(ledger.waiting[ready])
        ledger = replace(ledger, waiting=ledger.waiting[~ready], batches=(*ledger.batches, fresh))
    pending = ledger.batches[ledger.counted]
    if round in pending.rounds:
        return ledger
    sent = replace(pending, rounds=(*pending.rounds, round))
    before, after = ledger.batches[: ledger.counted], ledger.batches[ledger.counted + 1 :]
    return replace(ledger, batches=(*before, sent, *after))


def withdraw(ledger: SampleLedger, samples: Tensor) -> SampleLedger:
    """Return the ledger once these samples are to be forgotten.

    Waiting ones are never sent. Samples that were sent get a batch of their own, which takes them out of the sums
    again. It is sent after all earlier batches, so the server has all of its samples.
    """
    lost = samples[torch.isin(samples, ledger.known) & ~torch.isin(samples, ledger.forgotten)]
    if not len(lost):
        return ledger
    waits = torch.isin(ledger.waiting, lost)
    sent = lost[~torch.isin(lost, ledger.waiting)]
    more = (Batch(sent, withdrawn=True),) if len(sent) else ()
    return replace(
        ledger,
        waiting=ledger.waiting[~waits],
        batches=(*ledger.batches, *more),
        forgotten=torch.cat([ledger.forgotten, lost]),
    )


def _listed(ledger: SampleLedger) -> str:
    if not ledger.batches:
        return "none"
    rounds = ledger.batches[-1].rounds
    return f"{len(ledger.batches)}, the last one of round {rounds[-1] + 1 if rounds else '?'}"
