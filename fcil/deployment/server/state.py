"""What a server keeps between two rounds, and its checkpoint."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fcil.core.messages import Message
from fcil.deployment.transport.messages import SignedChoice
from fcil.experiment.checkpoint import AnyCheckpoint
from fcil.federation.server import ServerState


@dataclass(frozen=True)
class ServedState(Message):
    """All that the server carries into the next round: its own state, and what the proxy has chosen for that round."""

    server: ServerState
    choices: tuple[SignedChoice, ...] = ()
    candidates: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # models that the choices name

    @property
    def round(self) -> int:
        """Return the number of the round to come."""
        return self.server.round


@dataclass(frozen=True)
class ServedCheckpoint(AnyCheckpoint):
    """All that a server resumes from; what sites and proxy remember is theirs."""

    machine: dict[str, str]
    federation: str
    state: ServedState

    @property
    def rounds(self) -> int:
        return self.state.round

    def advice(self, folder: Path) -> str:
        return f"`fcil federation serve CONFIG --out {shlex.quote(str(folder))} --resume`"
