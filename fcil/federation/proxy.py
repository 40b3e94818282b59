"""The proxy server as a party of its own: its state, its seeds and a machine without any samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcil.core.messages import Message, ModelState, RoundContext, Stream
    from fcil.methods.base import ProxyRole
    from fcil.models.trainer import Trainer


@dataclass(frozen=True)
class ProxyParty:
    """The proxy: its role, the machine it computes on, and its own seeds."""

    role: ProxyRole[Any]
    machine: Trainer
    seeds: Stream

    def start(self) -> Message:
        """Return the state before the first round."""
        state: Message = self.role.init()
        return state

    def round(
        self, state: Message, uploads: Sequence[Message], sent: ModelState, averaged: ModelState, context: RoundContext
    ) -> Message:
        """Return its state once it has taken in a round's uploads and models."""
        seed = self.seeds.seed(context.round)
        following: Message = self.role.round(state, uploads, sent, averaged, context, seed, self.machine)
        return following
