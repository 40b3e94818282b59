"""The proxy server as a party of its own: its state, its seeds and a machine without any samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fcil.core.messages import Message, ModelState, RoundContext, Stream
    from fcil.methods.base import Choice, ProxyRole
    from fcil.models.trainer import Trainer


@dataclass(frozen=True)
class ProxyParty:
    """Receives uploads that carry no sender, and offers teachers; what it knows reaches the server in no other way."""

    role: ProxyRole[Any]
    machine: Trainer
    seeds: Stream

    def start(self) -> Message:
        """Return the state before the first round."""
        state: Message = self.role.init()
        return state

    def choice(self, state: Message, context: RoundContext) -> Choice:
        """Return the teachers that it offers to participants."""
        return self.role.choice(state, context)

    def round(
        self, state: Message, uploads: Sequence[Message], sent: ModelState, averaged: ModelState, context: RoundContext
    ) -> Message:
        """Return its state once it has taken in a round's uploads and models."""
        seed = self.seeds.seed(context.round)
        following: Message = self.role.round(state, uploads, sent, averaged, context, seed, self.machine)
        return following

    def measures(self, state: Message) -> dict[str, float]:
        """Return what the round record keeps about it."""
        return self.role.measures(state)

    def rebuilt(self, state: Message) -> tuple[Tensor, Tensor] | None:
        """Return the images that it has rebuilt and their outputs, which a simulation may look at."""
        return self.role.rebuilt(state)
