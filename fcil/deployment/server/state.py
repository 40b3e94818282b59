"""The state of a served federation between two rounds, and its checkpoint."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fcil.core.messages import Message
from fcil.deployment.transport.messages import Epoch, SignedChoice
from fcil.experiment.checkpoint import AnyCheckpoint
from fcil.experiment.config import parse_config
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
    epoch: Epoch | None = None  # since the last restore

    @property
    def rounds(self) -> int:
        return self.state.round

    def model(self) -> bytes | None:
        from fcil.deployment.server.run import ServedRun  # noqa: PLC0415 (it imports this module)

        run = ServedRun(parse_config(self.document), Path())
        return run.model_file(self.state)[1] if self.state.server.catalogue.classes else None

    def advice(self, folder: Path) -> str:
        return f"`{serving(folder)}`"


def serving(folder: Path) -> str:
    """Return the command that continues a server's run, to be copied into a shell."""
    return f"fcil federation serve CONFIG --out {shlex.quote(str(folder))} --resume"
