"""The three roles of a method, and the registry that finds every method file in this folder."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from fcil.aggregation.base import Aggregate, Need
from fcil.local import Local
from fcil.machine import Machine
from fcil.models import ModelConfig
from fcil.optimiser import NATIVE, Optimiser
from fcil.section import Section
from fcil.wire import (
    Broadcast,
    Diagnostics,
    Message,
    ModelState,
    Moment,
    Order,
    Reply,
    Report,
    Teacher,
    Teachers,
)

State = TypeVar("State", bound=Message)
Config = TypeVar("Config", bound="MethodConfig")
TeacherRule = Callable[[Teachers, Moment, bool], Teacher | None]  # of the alarm; who teaches, if anybody does


@dataclass(frozen=True)
class Current:
    """What a client has in a round in addition to its state.

    The entropy stays out of the state because it changes with every model: a client that nothing else happens to keeps
    its state, which then need not be stored again.
    """

    samples: Tensor  # it holds now
    models: Mapping[str, ModelState]  # those that the broadcast names, by digest
    seed: int  # its own, of this round
    entropy: float | None = None  # measured last: mean over its newest arrival, in nats
    new_classes: bool | None = None  # the scenario's truth, told only to the `oracle` detector


class ClientRole(ABC, Generic[State]):
    """The client half; it holds configuration, never state."""

    memory: int = 0  # exemplars that a client may keep
    keeps_all: bool = False  # whether data stays in use for ever
    teacher: TeacherRule | None = None  # who teaches; old models are kept and sent only where there is a rule
    wants_truth: bool = False  # whether it is told the scenario's truth about new classes

    @abstractmethod
    def init(self) -> State:
        """Return the state of a client that has seen nothing yet."""

    @abstractmethod
    def round(
        self, state: State, broadcast: Broadcast, order: Order, current: Current, local: Local
    ) -> tuple[State, Reply, Diagnostics]:
        """Play one round, and return the client's new state, its answer, and what a simulation measures.

        A state that did not change is returned as the same object.
        """


class ServerRole(ABC, Generic[State]):
    """The central server's half."""

    needs: ClassVar[frozenset[Need]] = frozenset()  # what reports carry in addition to models

    @abstractmethod
    def init(self) -> State:
        """Return the state before the first round."""

    def settle(self, state: State, model: ModelState, moment: Moment, seed: int, machine: Machine) -> State:
        """Do what follows a block's last round, before the head grows: for instance train a generator on the model."""
        return state

    @abstractmethod
    def grow(
        self, state: State, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[State, ModelState]:
        """Return the model with room for `classes` outputs; `new_block` unless the growth joins the last one."""

    def extra(self, state: State, moment: Moment) -> Extra:
        """Return what participants get in addition to the models."""
        return Extra()

    def objection(self, report: Report, sent: ModelState, moment: Moment) -> str | None:
        """Say what is wrong with what a report carries in addition to its model, if anything is."""
        return f"it sends {', '.join([*report.rows, *report.parts])} unasked" if report.rows or report.parts else None

    @abstractmethod
    def round(self, state: State, model: ModelState, aggregate: Aggregate, moment: Moment) -> tuple[State, ModelState]:
        """Return the next global model from what the participants' reports amount to."""

    def predictor(self, state: State, model: ModelState) -> ModelState:
        """Return the model whose highest output is the method's prediction: the global one unless a method corrects it.

        A correction of the outputs is folded into the head, so that what is evaluated, saved and deployed is one model.
        """
        return model


@dataclass(frozen=True)
class Extra:
    """What joins a broadcast: a message, and by digest the tensors it speaks of, which travel like models."""

    message: Message | None = None
    pools: Mapping[str, ModelState] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The teachers that the proxy offers, and these models by digest."""

    teachers: Teachers = field(default_factory=Teachers)
    models: Mapping[str, ModelState] = field(default_factory=dict)


class ProxyRole(ABC, Generic[State]):
    """The proxy server's half: it sees uploads without their senders, and global models."""

    @abstractmethod
    def init(self) -> State:
        """Return the state before the first round."""

    @abstractmethod
    def choice(self, state: State, moment: Moment) -> Choice:
        """Return the models that participants may learn from."""

    @abstractmethod
    def round(
        self,
        state: State,
        uploads: Sequence[Message],
        sent: ModelState,
        averaged: ModelState,
        moment: Moment,
        seed: int,
        machine: Machine,
    ) -> State:
        """Take in a round's uploads, the model that was broadcast and the one averaged from the answers."""

    @abstractmethod
    def measures(self, state: State) -> dict[str, float]:
        """Return what the round record keeps about the proxy."""


class MethodConfig(Section):
    """A method's hyper-parameters; `editions` names bundles of them: ours, the paper's, the released code's."""

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {"fcil": {}}
    native: ClassVar[Optimiser] = NATIVE  # the optimiser of the method's own source

    def network(self, model: ModelConfig) -> ModelConfig:
        """Return the network that the method trains, given the one that was asked for."""
        if model.head != "linear":
            raise ValueError(f"found {model.head}, should be linear for this method")
        return model


@dataclass(frozen=True)
class Setting:
    """The facts of a run that a method's roles are built from."""

    memory: int  # exemplars a client may keep
    image_shape: tuple[int, int, int]
    secret: int | None  # seed that clients and proxy share; None where the server's role is built


@dataclass(frozen=True)
class Roles:
    """A method as built for one run."""

    client: ClientRole[Any]
    server: ServerRole[Any]
    proxy: ProxyRole[Any] | None = None

    @property
    def teaches(self) -> bool:
        """Say whether the server keeps the model before the last growth as a teacher: unless a proxy chooses one."""
        return self.client.teacher is not None and self.proxy is None


@dataclass(frozen=True)
class Method(Generic[Config]):
    """A registered method: its name, one line on it, its hyper-parameters, and how its roles are built."""

    name: str
    summary: str
    config: type[Config]
    build: Callable[[Config, Setting], Roles]
    variant_of: str | None = None  # the method whose table of settings holds for this one too


_registry: dict[str, Method[Any]] = {}
ENTRY_POINTS = "fcil.methods"  # group in which other packages name modules that register methods
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # it becomes a part of settings and of directories


class PluginWarning(UserWarning):
    """A method of another package cannot be used; everything else can."""


def register(method: Method[Any]) -> None:
    """Make a method known; a method file calls this once, at its end."""
    if not NAME.fullmatch(method.name):
        raise ValueError(f"{method.name!r} is no name of a method; use letters, digits, - and _")
    if not issubclass(method.config, MethodConfig):
        raise TypeError(f"the config of {method.name} is {method.config.__name__}, should be a MethodConfig")
    if method.name in _registry:
        raise ValueError(f"two methods are called {method.name}")
    _registry[method.name] = method


@cache
def _import_all() -> None:
    package = importlib.import_module("fcil.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fcil.methods.{module.name}")
    found: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = str(distribution.name)
        if name not in found:  # a second one of that name lies behind the first on the path
            found.add(name)
            _load_plugins(distribution, name)


def _load_plugins(distribution: importlib.metadata.Distribution, package: str) -> None:
    """Import what a package names in our entry points; whatever is wrong with it is a warning and no more."""
    try:
        entries = list(distribution.entry_points.select(group=ENTRY_POINTS))
    except Exception as error:
        _warn(f"the entry points of the package {package} cannot be read", error)
        return
    for entry in entries:
        before = dict(_registry)
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # a module may do anything when it is imported
            _registry.clear()
            _registry.update(before)
            named = f"{package}, entry point {entry.name} = {entry.value}"
            _warn(f"the methods of the package {named}, are left out", error)


def _warn(what: str, error: BaseException) -> None:
    warnings.warn(f"{what} ({type(error).__name__}: {error}); everything else works", PluginWarning, stacklevel=2)


def methods() -> dict[str, Method[Any]]:
    """Return all methods by name: every file of this folder, and what was registered from elsewhere."""
    _import_all()
    return dict(sorted(_registry.items()))


def get_method(name: str) -> Method[Any]:
    """Return the method of that name, or raise KeyError."""
    return methods()[name]


def method_config(method: Method[Any], edition: str, fields: Mapping[str, Any]) -> MethodConfig:
    """Return the method's hyper-parameters: its defaults, changed by the edition, changed by the given fields."""
    config: MethodConfig = method.config(**{**method.config.editions[edition], **fields})
    return config
