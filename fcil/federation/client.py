"""A client's half of a round, on top of a store that only this client can read; a real site has the same."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import torch
from torch import Tensor

from fcil.core.errors import FederationError, stage, stage_of
from fcil.core.messages import (
    Announcement,
    Broadcast,
    Diagnostics,
    Failure,
    Message,
    ModelParcel,
    ModelState,
    Order,
    Reply,
    Report,
    Shape,
    Stream,
    derive_seed,
)
from fcil.core.stopwatch import Stopwatch
from fcil.federation.aggregation import Aggregator, Turn
from fcil.federation.class_catalogue import MOST_ANNOUNCED
from fcil.federation.masking.messages import Masks
from fcil.methods.base import ClientRole, Current

if TYPE_CHECKING:
    from fcil.data.samples import Samples
    from fcil.models.client_context import ClientContext

MODELS_HELD = 3  # models that a site keeps by digest, or more while a broadcast needs more at once


@dataclass(frozen=True)
class Stamped(Message):
    """A client's state as a round left it, with the entropy measured last."""

    round: int
    state: Message
    entropy: float | None = None


class ClientStore(Protocol):
    """A client's stored states, after the latest round and the one before it, and some models."""

    def before(self, round: int) -> Stamped | None:
        """Return the newest state that an earlier round left; None for a site that has seen nothing yet.

        Raises a FederationError if that state is no longer kept.
        """
        ...

    def keep(self, stamped: Stamped) -> None:
        """Keep a state and its predecessor; a stored state of the same or a later round is replaced."""
        ...

    def lacks(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Return the models that the client does not have."""
        ...

    def receive(self, parcel: ModelParcel) -> None:
        """Take in a model that it lacked."""
        ...

    def use(self, digests: Sequence[str]) -> None:
        """Note that these models are in use, newest first: they are kept, and others up to MODELS_HELD in all."""
        ...


def state_before(round: int, latest: Stamped | None, former: Stamped | None) -> Stamped | None:
    """Return the newer of two kept states that an earlier round left, or refuse a round that lies too far back."""
    for kept in (latest, former):
        if kept is None or kept.round < round:
            return kept
    assert latest is not None
    raise FederationError(
        f"the server asks for round {round + 1}, but this site has gone on to round {latest.round + 1} and has "
        "kept nothing from before; a server that was restored from a backup starts with --restored"
    )


@dataclass(frozen=True)
class RoundData:
    """A client's data in a round; only a simulation tells the truth about new classes."""

    samples: Tensor
    new_classes: bool | None = None


@dataclass(frozen=True)
class Job(Message):
    """One order as it is carried out: all that the role needs in addition to the broadcast and its models."""

    order: Order
    seed: int
    state: Message
    samples: Annotated[Tensor, Shape(("samples",), torch.int64)]
    entropy: float | None
    new_classes: bool | None
    nonce: int = 0  # of the answer at a real site; in a simulation the seed is all
    masks: Masks | None = None  # of the report, where reports are masked

    @property
    def report_seed(self) -> int:
        """Return the seed of the aggregator's half at the client."""
        return derive_seed(self.seed, "aggregation", *([self.nonce] if self.nonce else []))

    @property
    def noise_key(self) -> bytes:
        """Return the key of noise that hides samples; of an answer it is the same however often it is asked for."""
        return hashlib.sha256(f"noise {self.seed} {self.nonce}".encode()).digest()

    @property
    def participants(self) -> int:
        """Return the clients whose sum alone the server learns: a report has a mask of its own and one per partner."""
        return 1 if self.masks is None else len(self.masks.added) + len(self.masks.subtracted)


@dataclass(frozen=True)
class Done(Message):
    """A job carried out: a reply or a failure; no state means that it did not change."""

    state: Message | None
    reply: Reply | None
    failure: Failure | None
    diagnostics: Diagnostics | None = None
    seconds: dict[str, float] = field(default_factory=dict, compare=False)  # by phase; a real site does not send them

    @property
    def answer(self) -> Reply | Failure:
        """Return the reply, or else the failure."""
        answer = self.reply or self.failure
        assert answer is not None
        return answer


class Client:
    """One client: it turns an order into a job, and keeps the state that the job leaves.

    Training may run elsewhere: `prepare` gives the job, `run_job` carries it out, `finish` takes its result.
    """

    def __init__(self, client: int, role: ClientRole[Any], store: ClientStore, seeds: Stream) -> None:
        self.client = client
        self.role = role
        self.store = store
        self.seeds = seeds

    def announce(self, data: RoundData, samples: Samples, catalogue: Sequence[str]) -> Announcement:
        """Return the ids of the classes in its data that the catalogue lacks."""
        return Announcement(samples.unknown(data.samples, catalogue)[:MOST_ANNOUNCED])

    def missing(self, broadcast: Broadcast, order: Order) -> tuple[str, ...]:
        """Return the digests of the models that have to be sent first; a round that lies too far back is refused."""
        self.store.before(broadcast.context.round)
        return self.store.lacks(broadcast.digests(order.participate))

    def prepare(self, broadcast: Broadcast, order: Order, data: RoundData) -> Job:
        """Return the job that an order amounts to, once no model is missing."""
        number = broadcast.context.round
        kept = self.store.before(number)
        self.store.use(broadcast.digests(order.participate))
        state = kept.state if kept else self.role.init()
        entropy = kept.entropy if kept else None
        seed = self.seeds.seed(number, self.client)
        return Job(order, seed, state, data.samples, entropy, data.new_classes)

    def finish(self, round: int, job: Job, done: Done) -> Reply | Failure:
        """Keep the state that a round left and return the answer; after a failure nothing has changed."""
        if done.reply is not None:
            measured = done.diagnostics.entropy if done.diagnostics else None
            known = measured is not None and math.isfinite(measured)
            state = job.state if done.state is None else done.state
            self.store.keep(Stamped(round, state, measured if known else job.entropy))
        return done.answer


def run_job(
    role: ClientRole[Any],
    aggregator: Aggregator,
    job: Job,
    broadcast: Broadcast,
    models: Mapping[str, ModelState],
    local: ClientContext,
) -> Done:
    """Carry out a job, and measure the seconds of its phases; whatever no phase inside it claims is training."""
    watch = Stopwatch()
    with watch.phase("train"):
        done = _carry_out(role, aggregator, job, broadcast, models, local)
    return replace(done, seconds=watch.seconds)


def _carry_out(
    role: ClientRole[Any],
    aggregator: Aggregator,
    job: Job,
    broadcast: Broadcast,
    models: Mapping[str, ModelState],
    local: ClientContext,
) -> Done:
    """Carry out a job: the role's round, the aggregator's stage on its report, and class ids the catalogue lacks."""
    current = Current(
        job.samples,
        models,
        job.seed,
        job.entropy,
        job.new_classes,
        aggregator.hides,
        job.participants,
        job.noise_key,
    )
    try:
        state, reply, diagnostics = role.round(job.state, broadcast, job.order, current, local)
        with stage("aggregation"):
            if aggregator.hides and job.order.participate and reply.report is None:
                reply = replace(reply, report=Report({}, 0))
            if reply.report is not None:
                context = broadcast.context
                turn = Turn(context.round, job.order.client, job.report_seed, context, job.masks)
                sent = local.machine.model.trained(models[broadcast.model])
                reply = replace(reply, report=aggregator.stage(reply.report, sent, turn))
        with stage("announce"):
            announced = local.samples.unknown(job.samples, broadcast.context.catalogue)[:MOST_ANNOUNCED]
            reply = replace(reply, announced=announced) if announced else reply
    except Exception as error:  # whatever goes wrong at a client must not stop the federation
        reason = f"{type(error).__name__}: {error}"
        failure = Failure(job.order.client, broadcast.context.round, stage_of(error) or "start", reason)
        return Done(None, None, failure)
    return Done(state if state is not job.state else None, reply, None, diagnostics)
