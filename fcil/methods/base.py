"""The three roles of a method, and the registry that finds every method file in this folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor

from fcil.core.aggregate import ReportLayout, validate_row_counts
from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import (
    Broadcast,
    Diagnostics,
    Message,
    ModelState,
    Order,
    Reply,
    Report,
    RoundContext,
    Teacher,
    Teachers,
)
from fcil.core.registry import Registry, home_of
from fcil.core.settings_table import SettingsTable, internal, shown
from fcil.methods.privacy import NOT_PRIVATE, Kind, PrivacyConfig
from fcil.models.config import Head, ModelConfig
from fcil.models.optimiser import NATIVE, Optimiser
from fcil.models.registry import networks

if TYPE_CHECKING:
    from fcil.core.aggregate import Aggregate, Need
    from fcil.data.columns import Columns
    from fcil.models.client_context import ClientContext
    from fcil.models.trainer import Trainer

State = TypeVar("State", bound=Message)
Config = TypeVar("Config", bound="MethodConfig")
TeacherRule = Callable[[Teachers, RoundContext, bool], Teacher | None]  # of the alarm; who teaches, if anybody does


@dataclass(frozen=True)
class Current:
    """The input of a client in a round, in addition to its state.

    The entropy stays out of the state because it changes with every model: a client that nothing else happens to keeps
    its state, which then need not be stored again.
    """

    samples: Tensor  # it holds now
    models: Mapping[str, ModelState]  # those that the broadcast names, by digest
    seed: int  # its own, of this round
    entropy: float | None = None  # measured last: mean over its newest arrival, in nats
    new_classes: bool | None = None  # the scenario's truth, told only to the `oracle` detector
    hidden: bool = False  # whether every participant reports, so that a report tells nothing by being there
    participants: int = 1  # clients whose sum alone the server learns
    noise_key: bytes = b""  # of noise that hides samples: fresh for every answer of a real site


class ClientRole(ABC, Generic[State]):
    """The client half; it holds configuration, never state."""

    memory: int = 0  # exemplars that a client may keep
    keeps_all: bool = False  # whether data stays in use for ever
    teacher: TeacherRule | None = None  # who teaches; old models are kept and sent only where there is a rule
    wants_truth: bool = False  # whether it is told the scenario's truth about new classes
    curates: bool = False  # whether it trains something in order to choose its exemplars

    @abstractmethod
    def init(self) -> State:
        """Return the state of a client that has seen nothing yet."""

    @abstractmethod
    def round(
        self, state: State, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[State, Reply, Diagnostics]:
        """Run one round, and return the client's new state, its answer, and the diagnostics of a simulation.

        A state that did not change is returned as the same object.
        """

    def spent(self, state: State) -> float:
        """Return the epsilon of the image that is in most reports, under differential privacy; 0 without it."""
        return 0.0

    @abstractmethod
    def in_use(self, state: State) -> Tensor:
        """Return the indices of all samples that a state refers to, its newest arrival included.

        A real site deletes the pixels of all others, and takes an arrival for lost that never shows up here.
        """

    def withdraw(self, state: State, samples: Tensor) -> State:
        """Return the state of a client that takes samples back, so that nothing the server has depends on them."""
        raise FederationError("what this method's model learned of a sample cannot be told apart")

    def without(self, state: State, samples: Tensor) -> State:
        """Return the state without samples of classes that operators have withdrawn."""
        return state

    def placed(self, state: State) -> Tensor:
        """Return the samples whose classes have an output, unless the server was restored from before they had."""
        return self.in_use(state)


class ServerRole(ABC, Generic[State]):
    """The central server's half."""

    needs: frozenset[Need] = frozenset()  # what reports carry in addition to models
    averages: bool = True  # whether reports carry a model; one that does although none is wanted is refused
    chooses: bool = False  # whether it names the teachers itself, by `choice`
    counted_rows: tuple[str, ...] = ()  # tensors whose rows are weighted by samples of their class
    privacy: PrivacyConfig = NOT_PRIVATE  # of the clients' training

    @abstractmethod
    def init(self) -> State:
        """Return the state before the first round."""

    def outputs(self, classes: int) -> tuple[int, ...]:
        """Return the numbers of outputs that a broadcast model may have, with so many classes in the catalogue."""
        return (classes if self.averages else 0,)

    def expected(self, sent: ModelState) -> ModelState:
        """Return the tensors of the model in a report, as they were sent."""
        return sent if self.averages else {}

    def settle(self, state: State, model: ModelState, context: RoundContext, seed: int, machine: Trainer) -> State:
        """Run after a block's last round, before the head grows: for instance train a generator on the model."""
        return state

    @property
    def settles(self) -> bool:
        """Say whether anything follows a block's last round; `fcil plan` does not count it."""
        return type(self).settle is not ServerRole.settle

    @abstractmethod
    def grow(
        self, state: State, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[State, ModelState]:
        """Return the model with room for `classes` outputs; `new_block` unless the growth joins the last one."""

    def extra(self, state: State, context: RoundContext) -> Extra:
        """Return a message for participants in addition to the models; a `Notice` goes to all clients."""
        return Extra()

    def choice(self, state: State, context: RoundContext) -> Choice | None:
        """Return the teachers where no proxy names them; None: the model before the last growth."""
        return None

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        """Return the objection to the additions of a report, if there is one."""
        return f"it sends {', '.join([*report.rows, *report.parts])} unasked" if report.rows or report.parts else None

    def refusal(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        """Return the reason why a report's row counts or its further contents are refused, or None."""
        if not self.counted_rows:
            return self.objection(report, sent, context)
        counts = validate_row_counts(report, self.counted_rows, context.classes)
        return counts or self.objection(replace(report, rows={}), sent, context)

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout | None:
        """Return the form that all reports of a round have, where the server learns their sum alone.

        None: the method's reports have no such form. A method whose reports have parts overrides this.
        """
        if self.needs - {"rows"} or ("rows" in self.needs and not self.counted_rows):
            return None
        return ReportLayout(self.expected(sent), self.counted_rows)

    @abstractmethod
    def round(
        self, state: State, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[State, ModelState]:
        """Return the next global model from the aggregate of the participants' reports."""

    def guarantee(self, state: State) -> tuple[float, float] | None:
        """Return the epsilon and the delta that clients keep for each image, once anything has been sent."""
        return (self.privacy.most, self.privacy.delta) if self.privacy.on else None

    def predictor(self, state: State, model: ModelState) -> ModelState:
        """Return the model whose highest output is the method's prediction: the global one unless a method corrects it.

        A correction of the outputs is folded into the head, so that one model is evaluated, saved and deployed.
        """
        return model


@dataclass(frozen=True)
class Extra:
    """An addition to a broadcast: a message, and by digest the tensors it speaks of, which travel like models."""

    message: Message | None = None
    pools: Mapping[str, ModelState] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The teachers that the proxy or the server's role offers, and these models by digest."""

    teachers: Teachers = field(default_factory=Teachers)
    models: Mapping[str, ModelState] = field(default_factory=dict)


class ProxyRole(ABC, Generic[State]):
    """The proxy server's half: it sees uploads without their senders, and global models."""

    @abstractmethod
    def init(self) -> State:
        """Return the state before the first round."""

    @abstractmethod
    def offering(self, state: State, known: Collection[str], context: RoundContext) -> State:
        """Return the state without models that the server lacks, as a server does that was restored from a backup."""

    @abstractmethod
    def choice(self, state: State, context: RoundContext) -> Choice:
        """Return the models that participants may learn from."""

    @abstractmethod
    def round(
        self,
        state: State,
        uploads: Sequence[Message],
        sent: ModelState,
        averaged: ModelState,
        context: RoundContext,
        seed: int,
        machine: Trainer,
    ) -> State:
        """Take in a round's uploads, the model that was broadcast and the one averaged from the answers."""

    @abstractmethod
    def measures(self, state: State) -> dict[str, float]:
        """Return the proxy's figures for the round record."""

    def rebuilt(self, state: State) -> tuple[Tensor, Tensor] | None:
        """Return the images that it has rebuilt and the output of each, for a simulation to look at."""
        return None


def by_edition(default: Any, **limits: Any) -> Any:
    """Declare a value that the method's edition decides: a habit of the released code, or a constant of the source."""
    return internal(default, **limits)


class MethodConfig(SettingsTable):
    """A method's hyper-parameters; `editions` names bundles of them: ours, the paper's, the released code's."""

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {"fcil": {}}
    native: ClassVar[Optimiser] = NATIVE  # the optimiser of the method's own source
    head: ClassVar[Head] = "linear"  # the head that its loss is made for
    # how its reports can have differential privacy: its loss of a sample must then depend on no other sample
    private: ClassVar[Kind | None] = None
    images_only: ClassVar[bool] = False  # whether it makes images, and so needs samples that are images

    @classmethod
    def with_edition(cls, edition: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return an edition's values changed by the given fields, and a sentence for each field that is no setting.

        Documents of earlier versions name values that the edition decides today. They are read if they agree with it.
        """
        known = {**{key: found.default for key, found in cls.model_fields.items()}, **cls.editions[edition]}
        decided = {key: known[key] for key in cls.model_fields.keys() - set(cls.settings())}
        wrong = [
            f"{key}: found {shown(fields[key])}, should be {shown(decided[key])}: "
            f"it is no setting, and method.edition {edition} decides it"
            for key in sorted(decided)
            if key in fields and fields[key] != decided[key]
        ]
        return {**cls.editions[edition], **{key: fields[key] for key in fields if key not in decided}}, wrong

    def network(self, model: ModelConfig) -> ModelConfig:
        """Return the network that the method trains, given the configured one."""
        default = {key: ModelConfig.model_fields[key].default for key in ("head", "head_scale")}
        if model.head not in (self.head, default["head"]):
            raise ValueError(f"model.head: found {model.head}, should be {self.head}")
        if self.head != "cosine" and model.head_scale != default["head_scale"]:
            scale = default["head_scale"]
            raise ValueError(f"model.head_scale: found {model.head_scale:g}, should be {scale:g}, its default")
        return model.model_copy(update={"head": self.head})

    def sends(self) -> dict[str, str]:
        """Return, in a few words each, what participants send in addition to a model and its number of samples.

        The keys are names on the wire: of a part of a report (`fisher.` for all that begin with it), of a tensor of the
        model whose rows have weights of their own, or of a message to the proxy. The contract suite compares them with
        the messages.
        """
        return {}


def staged(model: ModelConfig) -> ModelConfig:
    """Return the network of a method that looks at stages, or say which networks have them."""
    found = [name for name, network in networks().items() if network.stages]
    if model.name not in found:
        raise ValueError(
            f"model.name: found {model.name}, which has no stages to look at, should be one of: {', '.join(found)}"
        )
    return model


@dataclass(frozen=True)
class Setting:
    """The facts of a run that a method's roles are built from."""

    memory: int  # exemplars a client may keep
    image_shape: tuple[int, int, int]
    secret: int | None  # seed that clients and proxy share; None where the server's role is built
    shown: int = 0  # prototypes that a simulated client shows for the report; a real site shows none
    columns: Columns | None = None  # how samples that are no images are encoded
    privacy: PrivacyConfig = NOT_PRIVATE


@dataclass(frozen=True)
class Roles:
    """A method as built for one run."""

    client: ClientRole[Any]
    server: ServerRole[Any]
    proxy: ProxyRole[Any] | None = None

    @property
    def teaches(self) -> bool:
        """Say whether the model before the last growth is kept as a teacher: unless proxy or server choose another."""
        chosen = self.proxy is not None or self.server.chooses
        return self.client.teacher is not None and not chosen


@dataclass(frozen=True)
class Method(Generic[Config]):
    """A registered method: its name, one line on it, its hyper-parameters, and how its roles are built."""

    name: str
    summary: str
    config: type[Config]
    build: Callable[[Config, Setting], Roles]
    variant_of: str | None = None  # the method whose table of settings holds for this one too
    is_bound: bool = False  # True for reference bounds that keep all data

    @property
    def module(self) -> str:
        """Return the module that registers the method."""
        return home_of(self.build)

    @property
    def settings(self) -> type[Config]:
        """Return its own settings: `[method]` where it is chosen."""
        return self.config


def _check(method: Method[Any]) -> None:
    if not isinstance(method.config, type) or not issubclass(method.config, MethodConfig):
        raise ConfigError(f"the config of {method.name} is {method.config!r}, should be a kind of MethodConfig")


METHODS: Registry[Method[Any]] = Registry("method", "fcil.methods", "fcil.methods", _check)


def register_method(method: Method[Any]) -> None:
    """Make a method known, under a name that no other one has; a method file calls this once, at its end."""
    METHODS.register(method)


def methods() -> dict[str, Method[Any]]:
    """Return all methods by name: every file of this folder, and those registered from elsewhere."""
    return dict(METHODS)


def get_method(name: str) -> Method[Any]:
    """Return the method of that name, or raise KeyError."""
    return methods()[name]


def method_config(method: Method[Any], edition: str, fields: Mapping[str, Any]) -> MethodConfig:
    """Return the method's hyper-parameters: its defaults, changed by the edition, changed by the given fields."""
    config: MethodConfig = method.config(**{**method.config.editions[edition], **fields})
    return config
