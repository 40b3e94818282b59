"""The server's part of every round, the same in a simulation and between real sites.

It knows the catalogue, the global model and its role's state, and the aggregate of a round's reports.
It knows no scenario, no samples, no client's state and no secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.aggregate import MOST_SAMPLES, Aggregate
from fcil.core.errors import ConfigError, FederationError
from fcil.core.member_table import MemberTable
from fcil.core.messages import (
    Broadcast,
    Failure,
    Message,
    ModelState,
    Order,
    RoundContext,
    Stream,
    Teacher,
    Teachers,
    model_digest,
)
from fcil.data.scenario.population import draw_participants
from fcil.federation.aggregation import AGGREGATORS, Aggregator
from fcil.federation.class_catalogue import MOST_CLASSES, Admission, Catalogue, Ledger, in_order, is_class_id
from fcil.federation.client_privacy import ClientPrivacy
from fcil.federation.last_good import LastGood, most_dropped
from fcil.federation.replies import RoundReplies
from fcil.federation.reply_checks import is_finite_model
from fcil.methods.base import Choice, ServerRole
from fcil.models.classifier import head_width, initial_state

if TYPE_CHECKING:
    from fcil.core.registry import Registry
    from fcil.models.trainer import Trainer

MERGED = 3  # rounds over which a task's classes trickle in with replies


class FederationConfig(MemberTable):
    """The server's settings for a round."""

    members: ClassVar[Registry[Any]] = AGGREGATORS
    chooser: ClassVar[str] = "aggregator"
    within: ClassVar[str] = "federation"

    aggregator: str = Field("mean", description="how participants' reports become one, see `fcil list aggregators`")
    averaging: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the participants' models: equal, or by their number of samples"
    )
    min_participants: int = Field(1, ge=1, description="the run stops when fewer participants answer")
    max_samples: int = Field(
        1_000_000, ge=1, le=MOST_SAMPLES, description="samples that a client may claim; a report with more is refused"
    )
    max_update: float = Field(
        10.0,
        gt=0,
        description="a client's update may be so many times as long as the parameters that were sent, and that of "
        "running statistics a hundred times as long as this; a longer one is refused",
    )
    max_new_classes: int | None = Field(
        None,
        ge=1,
        description="new classes that one client may bring to a block, and by which the head grows in a round at most; "
        "a client has to train on its classes before it can bring some to another block; absent: 100 between real "
        "sites, no such limit in a simulation",
    )
    max_drop: float | None = Field(
        None,
        gt=0,
        le=100,
        description="a round after which accuracy has dropped by more points, with the same classes, is not applied; "
        "absent: 50 between real sites, never in a simulation",
    )
    announce: Literal["start", "reply"] = Field(
        "start", description="start: the head grows before the round that brings new classes; reply: one round later"
    )
    monitor: Literal["all", "participants"] = Field(
        "all", description="which clients check their data for new classes in a round: all, or only those that train"
    )
    merge_rounds: int | None = Field(
        None,
        ge=0,
        description="classes that arrive within so many rounds after a block began belong to that block; absent: 3 if "
        "they are announced with replies, 0 if at the start",
    )

    @field_validator("aggregator")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in AGGREGATORS:
            raise ValueError(AGGREGATORS.one_of(name))
        return name

    @field_validator("averaging")
    @classmethod
    def _is_read(cls, value: str, info: ValidationInfo) -> str:
        """Refuse weights that the aggregator does not look at, unless they are the default."""
        name, default = info.data.get("aggregator", "mean"), cls.model_fields["averaging"].default
        if value != default and "averaging" not in AGGREGATORS[name].build.reads:
            raise ValueError(f"{default}, its default: federation.aggregator {name} has no such setting")
        return value

    @property
    def window(self) -> int:
        """Return the rounds in which growths join the newest block; the default was chosen by `benchmarks.trickle`."""
        if self.merge_rounds is not None:
            return self.merge_rounds
        return MERGED if self.announce == "reply" else 0


AGGREGATORS.reserve(FederationConfig.model_fields)


def make_aggregator(
    config: FederationConfig, server: ServerRole[Any], method: str, uploads: bool = False
) -> Aggregator:
    """Return the configured aggregator, which must support the method's reports; `uploads` to a proxy stay open."""
    kind = AGGREGATORS[config.aggregator].build
    if not server.needs <= kind.serves:
        lacking = " and ".join(sorted(server.needs - kind.serves))
        raise ConfigError(
            f"federation.aggregator: {config.aggregator} cannot sum the {lacking} that method.name {method} sends "
            "with these settings; choose another aggregator, another method or other settings of [method]"
        )
    aggregator = kind(config, config.own)
    if aggregator.hides:
        if uploads or not has_layout(server):
            what = "sends to a proxy" if uploads else "sends in reports without a fixed form"
            raise ConfigError(
                f"federation.aggregator: {config.aggregator} cannot hide what method.name {method} {what} with these "
                "settings; choose another aggregator, or a method that `fcil list methods` names as masked"
            )
        aggregator.hide(server.layout, "rows" in server.needs)
    return aggregator


def has_layout(server: ServerRole[Any]) -> bool:
    """Return whether all reports of a method have one form."""
    overridden = type(server).layout is not ServerRole.layout
    return overridden or not server.needs or (server.needs == {"rows"} and bool(server.counted_rows))


@dataclass(frozen=True)
class ServerSeeds:
    """The streams of randomness that are the server's own."""

    model: Stream
    head: Stream
    participants: Stream
    settling: Stream
    noise: Stream

    @classmethod
    def of(cls, root: int) -> ServerSeeds:
        """Return the server's streams of a root, without the root."""
        return cls(*(Stream(root, purpose) for purpose in ("model", "head", "participants", "settling", "noise")))


@dataclass(frozen=True)
class ServerState(Message):
    """All that the server carries into the next round."""

    round: int
    model: ModelState
    catalogue: Catalogue
    role_state: Message  # of the method's server role
    previous: ModelState | None = None  # from just before the last growth, where it may teach
    waiting: tuple[str, ...] = ()  # ids announced with replies, or beyond the limit of a round, for the next round
    ledger: Ledger = field(default_factory=Ledger)  # kept where federation.max_new_classes limits clients
    good: LastGood | None = None
    skipped: int = 0  # rounds since the last one that was applied

    @property
    def context(self) -> RoundContext:
        """Return the public facts of the round to come."""
        return self.catalogue.context(self.round)


@dataclass(frozen=True)
class Opened:
    """A round that has begun: its broadcast, and the models that clients may ask for."""

    state: ServerState
    broadcast: Broadcast
    models: Mapping[str, ModelState]


@dataclass
class Closed:
    """The outcome of a round: for the next round, for the proxy, and for the record."""

    state: ServerState
    reports: int
    uploads: list[Message] = field(default_factory=list)  # without their senders, in an order that tells nothing
    failures: list[Failure] = field(default_factory=list)
    excluded: Mapping[int, str] = field(default_factory=dict)  # clients that the aggregator left out, with reasons
    not_applied: str = ""  # why the model stays an earlier one
    clipped: int = 0  # numbers of masked reports that were out of range


def _before_growth(state: ServerState) -> Choice:
    """Return the model before the last growth as the only teacher, where it is kept."""
    if state.previous is None:
        return Choice()
    digest = model_digest(state.previous)
    return Choice(Teachers(last=Teacher(digest, head_width(state.previous))), {digest: state.previous})


def _confirmed(state: ServerState) -> LastGood:
    """Return the last good model after a round in which participants could train on the model of this state.

    One that was measured stays until the head grows.
    """
    good = state.good
    if good is not None and good.accuracy and good.catalogue == state.catalogue:
        return good
    return LastGood(state.model, state.role_state, state.catalogue)


def _resting(following: ServerState, good: ServerState | None) -> ServerState:
    """Return the state after a round that is not applied, with the last good model if one is given."""
    if good is None:
        return following
    known = LastGood(good.model, good.role_state, good.catalogue)
    return replace(following, model=good.model, role_state=good.role_state, previous=good.previous, good=known)


def _not_applied(state: ServerState, replies: RoundReplies, reason: str, excluded: Mapping[int, str]) -> Closed:
    state = replace(state, skipped=state.skipped + 1)
    return Closed(state, 0, replies.uploads, replies.failures, excluded, reason)


def _mean(accuracy: Mapping[str, float]) -> float:
    return sum(accuracy.values()) / max(len(accuracy), 1)


@dataclass(frozen=True)
class Server:
    """The server of a federation; it holds configuration and its own seeds, and takes and returns state."""

    role: ServerRole[Any]
    aggregator: Aggregator
    config: FederationConfig
    machine: Trainer  # without samples
    participants: int  # clients that train in a round
    teaches: bool  # whether the model before the last growth is kept as a teacher
    seeds: ServerSeeds
    hidden: ClientPrivacy | None = None  # where whole clients are hidden, in a simulation

    def start(self) -> ServerState:
        """Return the state before the first round."""
        model = initial_state(self.machine.model, len(self.machine.mean), self.seeds.model.seed())
        return ServerState(0, model, Catalogue(), self.role.init())

    def choose(self, round: int, present: Sequence[int]) -> list[int]:
        """Return the clients that train, ascending."""
        seed = self.seeds.participants.seed(round)
        if self.hidden is not None:
            return self.hidden.drawn(present, round, seed)
        return draw_participants(present, self.participants, seed)

    def admission(self, state: ServerState, round: int) -> Admission:
        """Return the admission of announcements for a growth in this round."""
        new_block = state.catalogue.begins_block(round, self.config.window)
        known = (*state.catalogue.classes, *state.waiting)
        return Admission(state.ledger, known, self.config.max_new_classes, new_block)

    def grow(self, state: ServerState, announced: Iterable[str]) -> ServerState:
        """Return the state once the announced classes have their outputs; those beyond the limit of a round wait.

        Sites refuse a head that grows by more at once, so without the limit one site could stop all others.
        """
        wanted = in_order({*filter(is_class_id, (*state.waiting, *announced))}.difference(state.catalogue.classes))
        most = self.config.max_new_classes or len(wanted)
        return self._grown(replace(state, waiting=tuple(wanted[most:])) if wanted[most:] else state, wanted[:most])

    def _grown(self, state: ServerState, wanted: Iterable[str]) -> ServerState:
        catalogue = state.catalogue.with_classes(wanted, state.round, self.config.window)
        if catalogue is state.catalogue:
            return state
        classes, role_state, previous = len(catalogue.classes), state.role_state, state.previous
        new_block = len(catalogue.blocks) > len(state.catalogue.blocks)
        ledger = state.ledger.grown(new_block, catalogue.context(state.round).old_classes)
        if new_block and head_width(state.model) > 0:
            seed = self.seeds.settling.seed(classes)
            role_state = self.role.settle(role_state, state.model, state.context, seed, self.machine)
            previous = state.model if self.teaches else None
        role_state, model = self.role.grow(role_state, state.model, classes, new_block, self.seeds.head.seed(classes))
        return replace(state, catalogue=catalogue, role_state=role_state, model=model, previous=previous, ledger=ledger)

    def open(self, state: ServerState, choice: Choice | None) -> Opened:
        """Begin a round with the head as it is now; `choice` is the proxy's, where there is one."""
        if choice is None:
            choice = self.role.choice(state.role_state, state.context)
        if choice is None:
            choice = _before_growth(state)
        extra = self.role.extra(state.role_state, state.context)
        digest = model_digest(state.model)
        broadcast = Broadcast(state.context, digest, choice.teachers, extra.message, tuple(extra.pools))
        return Opened(state, broadcast, {digest: state.model, **choice.models, **extra.pools})

    def orders(self, asked: Iterable[int], participants: Iterable[int]) -> list[Order]:
        """Return an order for each of the clients that are asked, ascending."""
        training = set(participants)
        return [Order(client, client in training) for client in sorted(asked)]

    def expect(self, opened: Opened, orders: Sequence[Order]) -> RoundReplies:
        """Return the collector of a round's replies."""
        state = opened.state
        sent, admission = self.machine.model.trained(state.model), self.admission(state, state.round + 1)
        return RoundReplies(self.role, self.aggregator, self.config, admission, sent, state.context, orders)

    def aggregate(self, opened: Opened, replies: RoundReplies) -> Closed:
        """End a round with the replies that came: the next global model and the state that goes with it.

        A round that would spoil the model is not applied.
        """
        before, number = opened.state, opened.state.round
        replies.end()
        late = set(before.waiting).difference(before.catalogue.classes)
        waiting = tuple(in_order({*late, *replies.admission.ids})[:MOST_CLASSES])
        following = replace(before, round=number + 1, waiting=waiting, ledger=replies.admission.ledger)
        if replies.stuck > replies.answered and (good := self._last_good(before)) is not None:
            reason = f"{replies.stuck} of {len(replies.turns)} participants did not come to a sound model"
            return _not_applied(_resting(following, good), replies, reason, {})
        if replies.unopened:
            if replies.turns and not replies.reporters:  # a site that has reported does so once in a round
                self._require_enough(replies, {}, number)
            return _not_applied(following, replies, replies.unopened, {})
        aggregate = replies.gathering.result()
        self._require_enough(replies, aggregate.excluded, number)
        summed = tuple(client for client in replies.reporters if client not in aggregate.excluded)
        if self.hidden is not None:
            seed = None if self.aggregator.hides else self.seeds.noise.seed(number)
            aggregate = self.hidden.applied(self.machine.model.trained(before.model), aggregate, seed)
        model = {**before.model, **aggregate.model}  # what is frozen is in no report
        aggregate = replace(aggregate, model=model, clients=summed)
        role_state, model = self._advanced(before, aggregate)
        if not is_finite_model(model):
            resting = _resting(following, self._last_good(before) if before.skipped else None)
            return _not_applied(resting, replies, "the aggregate is not finite", aggregate.excluded)
        trained = {client: counts for client, counts in replies.trained.items() if client not in aggregate.excluded}
        ledger = following.ledger.trained(trained)
        following = replace(
            following, model=model, role_state=role_state, ledger=ledger, good=_confirmed(before), skipped=0
        )
        count, excluded = aggregate.reports, aggregate.excluded
        return Closed(following, count, replies.uploads, replies.failures, excluded, clipped=aggregate.clipped)

    def _advanced(self, before: ServerState, aggregate: Aggregate) -> tuple[Message, ModelState]:
        """Return the method's state and the model after a round; a method sees no aggregate that is not finite."""
        if not is_finite_model(aggregate.model):
            return before.role_state, aggregate.model
        return self.role.round(before.role_state, before.model, aggregate, before.context)

    def _last_good(self, state: ServerState) -> ServerState | None:
        """Return the state with the last good model, grown to the present catalogue; None where it is in use already.

        One without outputs is nothing to go back to.
        """
        good = state.good
        if good is None or head_width(good.model) == 0:
            return None
        former = replace(state, model=good.model, role_state=good.role_state, catalogue=good.catalogue, waiting=())
        grown = self._grown(former, state.catalogue.classes[len(good.catalogue.classes) :])
        if grown.catalogue != state.catalogue or model_digest(grown.model) == model_digest(state.model):
            return None
        return grown

    def review(self, state: ServerState, accuracy: Mapping[str, float]) -> tuple[ServerState, str]:
        """Take in the accuracy, by place, of the model after a round: the state to go on with, and why another one.

        Without `federation.max_drop` nothing happens. A drop is judged against the last good model that was measured
        with the same classes, and where it is too large that model is used again.
        """
        limit, good = self.config.max_drop, state.good
        if limit is None or not accuracy:
            return state, ""
        if good is None or good.catalogue != state.catalogue or not most_dropped(good.accuracy, accuracy, limit):
            found = LastGood(state.model, state.role_state, state.catalogue, dict(accuracy))
            return replace(state, good=found), ""
        reason = f"accuracy has dropped from {_mean(good.accuracy):.1f} to {_mean(accuracy):.1f} %"
        back = replace(state, model=good.model, role_state=good.role_state, skipped=state.skipped + 1)
        return back, reason

    def predictor(self, state: ServerState) -> ModelState:
        """Return the model that predicts."""
        return self.role.predictor(state.role_state, state.model)

    def _require_enough(self, replies: RoundReplies, excluded: Mapping[int, str], number: int) -> None:
        """Refuse a round with too few participants; the report of an excluded one does not count."""
        counted = replies.answered - len(excluded)
        if counted < self.config.min_participants:
            left_out = [f"client {client} is excluded: {reason}" for client, reason in sorted(excluded.items())]
            reasons = "; ".join([*map(str, replies.failures), *left_out]) or f"{len(replies.turns)} were asked"
            raise FederationError(
                f"round {number + 1}: {counted} participants answered, "
                f"federation.min_participants asks for {self.config.min_participants} ({reasons})"
            )
