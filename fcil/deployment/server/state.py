"""The state of a served federation between two rounds, and its checkpoint."""

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
    """The server's state, and the proxy's choices for the next round."""

    server: ServerState
    choices: tuple[SignedChoice, ...] = ()
    candidates: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # the models named in the choices

    @property
    def round(self) -> int:
        """Return the number of the next round, from 0."""
        return self.server.round


@dataclass(frozen=True)
class ServedCheckpoint(AnyCheckpoint):
    """The checkpoint of a server; sites and the proxy keep their own state."""

    machine: dict[str, str]
    federation: str
    state: ServedState

    @property
    def rounds(self) -> int:
        return self.state.round

    def advice(self, folder: Path) -> str:
        return f"`{serving(folder)}`"


def serving(folder: Path) -> str:
    """Return the command that continues a server's run, to be copied into a shell."""
    return f"fcil federation serve CONFIG --out {shlex.quote(str(folder))} --resume"
