"""The coordinator: the central server's part of every round, the same in a simulation and between real sites.

It knows the catalogue, the global model and its role's state, and of a round's reports what the aggregator lets it see.
It knows no scenario, no samples, no client's state and no secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

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
from fcil.federation.class_catalogue import MOST_CLASSES, Catalogue, in_order, is_class_id
from fcil.federation.replies import RoundReplies
from fcil.methods.base import Choice, ServerRole
from fcil.models.classifier import head_width, initial_state

if TYPE_CHECKING:
    from fcil.core.registry import Registry
    from fcil.models.trainer import Trainer

MERGED = 3  # rounds over which a task's classes trickle in with replies


class FederationConfig(MemberTable):
    """How the server runs a round."""

    members: ClassVar[Registry[Any]] = AGGREGATORS
    chooser: ClassVar[str] = "aggregator"
    within: ClassVar[str] = "federation"

    aggregator: str = Field("mean", description="how participants' reports become one, see `fcil list aggregators`")
    averaging: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the participants' models: equal, or by their number of samples"
    )
    min_participants: int = Field(1, ge=1, description="the run stops when fewer participants answer")
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


def make_aggregator(config: FederationConfig, server: ServerRole[Any], method: str) -> Aggregator:
    """Return the configured aggregator, which must be able to sum what the method sends."""
    kind = AGGREGATORS[config.aggregator].build
    if not server.needs <= kind.serves:
        lacking = " and ".join(sorted(server.needs - kind.serves))
        raise ConfigError(
            f"federation.aggregator: {config.aggregator} cannot sum the {lacking} that method.name {method} sends "
            "with these settings; choose another aggregator, another method or other settings of [method]"
        )
    return kind(config, config.own)


@dataclass(frozen=True)
class ServerSeeds:
    """The streams of randomness that are the server's own."""

    model: Stream
    head: Stream
    participants: Stream
    settling: Stream

    @classmethod
    def of(cls, root: int) -> ServerSeeds:
        """Return the server's streams of a root, without the root."""
        return cls(*(Stream(root, purpose) for purpose in ("model", "head", "participants", "settling")))


@dataclass(frozen=True)
class ServerState(Message):
    """All that the server carries into the next round."""

    round: int
    model: ModelState
    catalogue: Catalogue
    role_state: Message  # of the method's server role
    previous: ModelState | None = None  # from just before the last growth, where it may teach
    waiting: tuple[str, ...] = ()  # ids announced with replies, for the next round

    @property
    def context(self) -> RoundContext:
        """Return what everybody may know about the round to come."""
        return self.catalogue.context(self.round)


@dataclass(frozen=True)
class Opened:
    """A round that has begun: what is broadcast, and the models that sites may ask for."""

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


def _before_growth(state: ServerState) -> Choice:
    """Return the model before the last growth as the only teacher, where it is kept."""
    if state.previous is None:
        return Choice()
    digest = model_digest(state.previous)
    return Choice(Teachers(last=Teacher(digest, head_width(state.previous))), {digest: state.previous})


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

    def start(self) -> ServerState:
        """Return the state before the first round."""
        model = initial_state(self.machine.model, len(self.machine.mean), self.seeds.model.seed())
        return ServerState(0, model, Catalogue(), self.role.init())

    def choose(self, round: int, present: Sequence[int]) -> list[int]:
        """Return the clients that train, ascending."""
        return draw_participants(present, self.participants, self.seeds.participants.seed(round))

    def grow(self, state: ServerState, announced: Iterable[str]) -> ServerState:
        """Return the state once the announced classes have their outputs."""
        wanted = filter(is_class_id, (*state.waiting, *announced))
        catalogue = state.catalogue.with_classes(wanted, state.round, self.config.window)
        if catalogue is state.catalogue:
            return state
        classes, role_state, previous = len(catalogue.classes), state.role_state, state.previous
        new_block = len(catalogue.blocks) > len(state.catalogue.blocks)
        if new_block and head_width(state.model) > 0:
            seed = self.seeds.settling.seed(classes)
            role_state = self.role.settle(role_state, state.model, state.context, seed, self.machine)
            previous = state.model if self.teaches else None
        role_state, model = self.role.grow(role_state, state.model, classes, new_block, self.seeds.head.seed(classes))
        return replace(state, catalogue=catalogue, role_state=role_state, model=model, previous=previous)

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
        return RoundReplies(self.role, self.aggregator, opened.state.model, opened.state.context, orders)

    def aggregate(self, opened: Opened, replies: RoundReplies) -> Closed:
        """End a round with the replies that came: the next global model and the state that goes with it."""
        before, number = opened.state, opened.state.round
        replies.end()
        self._require_enough(replies, number)
        aggregate = replies.gathering.result()
        role_state, model = self.role.round(before.role_state, before.model, aggregate, before.context)
        ids = tuple(in_order(replies.announced)[:MOST_CLASSES])
        state = replace(before, round=number + 1, model=model, role_state=role_state, waiting=ids)
        return Closed(state, aggregate.reports, replies.uploads, replies.failures)

    def predictor(self, state: ServerState) -> ModelState:
        """Return the model that predicts."""
        return self.role.predictor(state.role_state, state.model)

    def _require_enough(self, replies: RoundReplies, number: int) -> None:
        if replies.answered < self.config.min_participants:
            reasons = "; ".join(str(failure) for failure in replies.failures) or f"{len(replies.turns)} were asked"
            raise FederationError(
                f"round {number + 1}: {replies.answered} participants answered, federation.min_participants asks for "
                f"{self.config.min_participants} ({reasons})"
            )
