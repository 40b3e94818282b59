"""The seam for attacks: what a hostile client changes, the table `[attack]`, and the client's half that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fcil.core.aggregate import Aggregator, Gathering, Turn
from fcil.core.errors import ConfigError, stage
from fcil.core.member_table import MemberTable
from fcil.core.messages import (
    Broadcast,
    Diagnostics,
    Message,
    ModelState,
    Order,
    Reply,
    Report,
    RoundContext,
    derive_seed,
    generator,
)
from fcil.core.registry import Member, Registry
from fcil.core.settings_table import SettingsTable
from fcil.data.samples import Samples
from fcil.federation.reply_checks import VARIANCE
from fcil.methods.base import ClientRole, Current

if TYPE_CHECKING:
    from fcil.models.client_context import ClientContext

NO_ATTACK = "none"
TARGET = 0  # the output that a backdoor's trigger should raise


class Attack:
    """The acts of a hostile client; each leaves everything as it is unless overridden."""

    images_only: ClassVar[bool] = False  # whether it changes images, and so needs samples that are images

    def __init__(self, own: SettingsTable, seed: int) -> None:
        """Take the attack's own table and a seed that all hostile clients share."""
        self.own, self.seed = own, seed

    def samples(self, samples: Samples, context: RoundContext) -> Samples:
        """Return the samples as a hostile client trains on them; an index names the same image as before."""
        return samples

    def report(self, report: Report, sent: ModelState, seed: int) -> Report | None:
        """Return the report that leaves a hostile client, if any does; `sent` is the model that it began with."""
        return report

    def triggered(self, images: Tensor) -> Tensor | None:
        """Return images, uint8, with the trigger of a backdoor; None: the attack has none."""
        return None


ATTACKS: Registry[Member[Callable[[Any, int], Attack]]] = Registry("attack", "fcil.federation.attacks", "fcil.attacks")


def register_attack(member: Member[Callable[[Any, int], Attack]]) -> None:
    """Make an attack known; `build` is given its table `[attack.NAME]` and a seed."""
    ATTACKS.register(member)


class AttackConfig(MemberTable):
    """The hostile clients of a simulation; a real federation refuses the table."""

    members: ClassVar[Registry[Any]] = ATTACKS
    chooser: ClassVar[str] = "name"
    within: ClassVar[str] = "attack"

    name: str = Field(
        NO_ATTACK,
        description="none, sign-flip, scale, noise, label-flip, backdoor, false-counts or silent",
    )
    clients: float = Field(0.2, gt=0, description="hostile clients: how many, or which share if below 1")

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in (NO_ATTACK, *ATTACKS):
            raise ValueError(ATTACKS.one_of(name, NO_ATTACK))
        return name

    @field_validator("clients")
    @classmethod
    def _is_whole(cls, clients: float) -> float:
        if clients >= 1 and not clients.is_integer():
            raise ValueError("a whole number, or a share below 1")
        return clients

    @property
    def on(self) -> bool:
        """Say whether there is an attack."""
        return self.name != NO_ATTACK

    def drawn(self, clients: int, seed: int) -> tuple[int, ...]:
        """Return the hostile ones of so many clients, ascending."""
        wanted = int(self.clients) if self.clients >= 1 else max(round(self.clients * clients), 1)
        if wanted > clients:
            raise ConfigError(
                f"attack.clients: found {wanted}, should be at most the {clients} clients of the scenario"
            )
        return tuple(sorted(torch.randperm(clients, generator=generator(seed))[:wanted].tolist()))


ATTACKS.reserve({*AttackConfig.model_fields, NO_ATTACK})


@dataclass(frozen=True)
class Hostility:
    """An attack, and the clients that it makes hostile."""

    config: AttackConfig
    clients: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, config: AttackConfig, clients: int, root: int) -> Hostility | None:
        """Return the hostile clients of a run with so many clients, or None."""
        if not config.on:
            return None
        seed = derive_seed(root, "attack")
        return cls(config, config.drawn(clients, derive_seed(seed, "clients")), seed)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Hostility:
        """Return the hostility that was written as JSON."""
        return cls(AttackConfig(**plain["config"]), tuple(plain["clients"]), plain["seed"])

    def written(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"config": self.config.model_dump(mode="json"), "clients": list(self.clients), "seed": self.seed}

    def attack(self) -> Attack:
        """Return the attack."""
        return ATTACKS[self.config.name].build(self.config.own, self.seed)


class HostileRole(ClientRole[Any]):
    """A method's client half, in which hostile clients train on other samples and change their reports."""

    def __init__(self, inner: ClientRole[Any], hostility: Hostility) -> None:
        self.inner, self.hostile, self.attack = inner, frozenset(hostility.clients), hostility.attack()
        self.memory, self.keeps_all, self.teacher = inner.memory, inner.keeps_all, inner.teacher
        self.wants_truth, self.curates = inner.wants_truth, inner.curates
        self._poisoned: tuple[tuple[str, ...], ClientContext] | None = None  # for the last catalogue

    def init(self) -> Message:
        found: Message = self.inner.init()
        return found

    def round(
        self, state: Message, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[Message, Reply, Diagnostics]:
        if order.client not in self.hostile:
            return self.inner.round(state, broadcast, order, current, local)
        with stage("attack"):
            poisoned = self._at(local, broadcast.context)
        state, reply, diagnostics = self.inner.round(state, broadcast, order, current, poisoned)
        if reply.report is not None:
            with stage("attack"):
                sent, seed = current.models[broadcast.model], derive_seed(current.seed, "attack")
                reply = replace(reply, report=self.attack.report(reply.report, sent, seed))
        return state, reply, diagnostics

    def in_use(self, state: Message) -> Tensor:
        return self.inner.in_use(state)

    def _at(self, local: ClientContext, context: RoundContext) -> ClientContext:
        """Return the place with poisoned samples, made once per catalogue for all hostile clients."""
        if self._poisoned is None or self._poisoned[0] != context.catalogue:
            samples = self.attack.samples(local.samples, context)
            place = local if samples is local.samples else type(local).at(samples, local.machine)
            self._poisoned = (context.catalogue, place)
        return self._poisoned[1]


class UnstagedAggregator(Aggregator):
    """An aggregator whose half at hostile clients is left out: they neither clip nor add noise.

    Where the server cannot look at single reports, they follow the protocol, or nothing could be summed.
    """

    def __init__(self, inner: Aggregator, hostility: Hostility) -> None:
        super().__init__(inner.settings)
        self.inner, self.hostile = inner, frozenset(hostility.clients)
        self.inspects, self.hides = inner.inspects, inner.hides  # type: ignore[misc]

    def stage(self, report: Report, sent: ModelState, turn: Turn) -> Report:
        hostile = turn.client in self.hostile and self.inspects
        return report if hostile else self.inner.stage(report, sent, turn)

    def open(self, sent: ModelState, context: RoundContext, participants: Sequence[int]) -> Gathering:
        return self.inner.open(sent, context, participants)

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return self.inner.gather(sent, round, participants)


def moved(report: Report, sent: ModelState, factor: float) -> Report:
    """Return the report with its update, the model minus the one sent, times a factor; counters stay."""
    return altered(report, lambda name, value: sent[name] + factor * (value - sent[name]))


def altered(report: Report, change: Callable[[str, Tensor], Tensor]) -> Report:
    """Return the report with changed tensors of floats; a variance stays positive, or the report would be refused."""

    def after(name: str, value: Tensor) -> Tensor:
        if not value.dtype.is_floating_point:
            return value
        return change(name, value).clamp(min=0.0) if name.endswith(VARIANCE) else change(name, value)

    return replace(report, model={name: after(name, report.model[name]) for name in sorted(report.model)})
