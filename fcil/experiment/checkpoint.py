"""The checkpoint a run is resumed from, the one before it, and the files of sites and proxy that they name."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fcil.core.errors import CheckpointError, DamagedError, FcilError
from fcil.core.files import exists, read_sealed, write_sealed
from fcil.core.messages import CodecError, Message, TooLargeError, decode, encode
from fcil.data.datasets.in_memory import NAME as GIVEN
from fcil.federation.server import ServerState
from fcil.federation.simulated_clients import ClientsTable
from fcil.methods import methods

FILE, PREVIOUS = "checkpoint.fcil", "checkpoint.previous.fcil"
PART = "clients-"  # and the number of finished rounds, and of the part
PROXY = "proxy-"  # and the number of finished rounds
PART_LIMIT = 512 << 20  # bytes of a part, far below what the codec takes; a single state may be larger
CLIENT, NAME = re.compile(r"0|[1-9][0-9]{0,17}"), re.compile(r"[\w-]+\.fcil")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class ClientStates(Message):
    """The states of some clients, as they were after a round."""

    clients: dict[str, Message]

    def __post_init__(self) -> None:
        for client in self.clients:
            if not CLIENT.fullmatch(client):
                raise ValueError(f"{client!r} is no client's number")


@dataclass(frozen=True)
class ProxyFile(Message):
    """The proxy's state as it was after a round; it lies apart because the server must not see it."""

    state: Message


@dataclass(frozen=True)
class Part(Message):
    """A file with states: its name, how many they are, and the digest of its content."""

    name: str
    states: int
    digest: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a file with states")


@dataclass(frozen=True)
class AnyCheckpoint(Message):
    """A checkpoint of a simulation or of a server: what can be shown of either."""

    config: str  # JSON
    records: str  # digest of the lines of records.jsonl, one per finished round

    def __post_init__(self) -> None:
        if not isinstance(json.loads(self.config), dict):
            raise ValueError("its configuration is no table")
        if self.rounds < 0:
            raise ValueError(f"it is of round {self.rounds}")

    @property
    def rounds(self) -> int:
        """Return the number of finished rounds."""
        raise NotImplementedError

    def advice(self, folder: Path) -> str:
        """Return the command that continues the run in a folder."""
        table = self.document.get("data")
        if isinstance(table, dict) and table.get("source") == GIVEN:
            return "the same call of fcil.run, with resume=True,"
        return f"`{resuming(folder)}`"

    def model(self) -> bytes | None:
        """Return the file of the model after its round, or None if that knows no class."""
        raise NotImplementedError

    @property
    def document(self) -> dict[str, Any]:
        """Return the configuration that the run was begun with."""
        found: dict[str, Any] = json.loads(self.config)
        return found


@dataclass(frozen=True)
class Checkpoint(AnyCheckpoint):
    """All that matters after a round: the server's state, the configuration, the machine, and where other states are.

    Those of sites lie in files of their own, `parts`, of which a later one overrules an earlier one: a round adds files
    with the states it changed. That of the proxy lies in another file. Files are written before the checkpoint that
    names them and removed after the last one that does, so that a kill at any moment leaves a whole checkpoint, and
    damage to the newest one leaves that before it.
    """

    data: str  # digest of the data set
    machine: dict[str, str]
    server: ServerState
    table: ClientsTable
    parts: tuple[Part, ...] = ()
    proxy: Part | None = None

    @property
    def rounds(self) -> int:
        return self.server.round

    def model(self) -> bytes | None:
        from fcil.experiment.config import parse_config  # noqa: PLC0415
        from fcil.experiment.present_model import present_model  # noqa: PLC0415 (it loads the data set)

        return present_model(parse_config(self.document), self.server)

    @property
    def files(self) -> tuple[Part, ...]:
        """Return all files that it names."""
        return (*self.parts, *((self.proxy,) if self.proxy else ()))


def resuming(folder: Path) -> str:
    """Return the command that continues a simulation, to be copied into a shell.

    >>> resuming(Path("runs/my run"))
    "fcil resume 'runs/my run'"
    """
    return shlex.join(["fcil", "resume", str(folder)])


def machine_facts(threads: int, device: str) -> dict[str, str]:
    """Return the software and hardware that a run's last bits depend on."""
    return {
        "threads": str(threads),
        "device": device,
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    states: Mapping[int, Message],
    changed: set[int],
    proxy: Message | None = None,
    limit: int = PART_LIMIT,
) -> Checkpoint:
    """Replace the folder's checkpoint, which names the files of the last one, and return it as it was written.

    The last one stays as the previous one. Once the parts would hold more than twice as many states as there are
    clients, parts with all of them take their place: so disk and time stay in proportion to what changed.
    """
    former, number = checkpoint.files, checkpoint.server.round
    try:
        if changed:
            whole = sum(part.states for part in checkpoint.parts) + len(changed) > 2 * len(states)
            written = sorted(states if whole else changed)
            new = tuple(_write_parts(folder, number, states, written, limit))
            checkpoint = replace(checkpoint, parts=new if whole else (*checkpoint.parts, *new))
        if proxy is not None:
            name = f"{PROXY}{number:06d}.fcil"
            digest = write_sealed(folder / name, encode(ProxyFile(proxy)))
            checkpoint = replace(checkpoint, proxy=Part(name, 1, digest))
        write_sealed(folder / FILE, encode(checkpoint), former=folder / PREVIOUS)
    except FcilError:
        remove_unnamed(folder)  # new parts would keep a full disk full
        raise
    _remove_parts(folder, (*former, *checkpoint.files))
    return checkpoint


def remove_unnamed(folder: Path) -> None:
    """Remove the parts that neither checkpoint of the folder names, if both can be read."""
    with suppress(FcilError):
        names = [name for name in (FILE, PREVIOUS) if exists(folder / name)]
        _remove_parts(folder, [part for name in names for part in load_checkpoint(folder, name).files])


def _remove_parts(folder: Path, named: Sequence[Part]) -> None:
    names = {part.name for part in named}
    for path in (*folder.glob(f"{PART}*.fcil"), *folder.glob(f"{PROXY}*.fcil")):
        if path.name not in names:
            with suppress(OSError):  # a file too many does no harm
                path.unlink()


def _write_parts(
    folder: Path, round: int, states: Mapping[int, Message], clients: Sequence[int], limit: int
) -> Iterator[Part]:
    """Write the states of some clients to as many files as the limit asks for, and yield them.

    A second checkpoint after the same round has files of its own.
    """
    taken = [int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{PART}{round:06d}-*.fcil")]
    for number, (count, content) in enumerate(_encoded_states(states, clients, limit), max(taken, default=-1) + 1):
        name = f"{PART}{round:06d}-{number}.fcil"
        yield Part(name, count, write_sealed(folder / name, content))


def _encoded_states(states: Mapping[int, Message], clients: Sequence[int], limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number of states and their message, in halves where one message would be over the limit."""
    message = ClientStates({str(client): states[client] for client in clients})
    try:
        content = encode(message, limit) if len(clients) > 1 else encode(message)
    except TooLargeError:
        if len(clients) == 1:
            raise
    else:
        yield len(clients), content
        return
    half = len(clients) // 2
    for some in (clients[:half], clients[half:]):
        yield from _encoded_states(states, some, limit)


def load_clients(folder: Path, checkpoint: Checkpoint) -> dict[int, Message]:
    """Return the clients' states that a checkpoint stands for."""
    states: dict[int, Message] = {}
    for part in checkpoint.parts:
        content = read_message(folder / part.name, ClientStates, part.digest)
        states.update({int(client): state for client, state in content.clients.items()})
    return states


def load_proxy(folder: Path, checkpoint: Checkpoint) -> Message | None:
    """Return the proxy's state that a checkpoint stands for, if there is a proxy."""
    part = checkpoint.proxy
    return read_message(folder / part.name, ProxyFile, part.digest).state if part else None


def load_checkpoint(folder: Path, name: str = FILE) -> Checkpoint:
    """Return the folder's checkpoint, or the previous one."""
    return read_message(folder / name, Checkpoint)


def load_any_checkpoint(folder: Path, name: str = FILE) -> AnyCheckpoint:
    """Return the folder's checkpoint of any kind, or else the previous one."""
    return read_message(folder / name, AnyCheckpoint)


def require_checkpoint(folder: Path) -> None:
    """Refuse a folder in which no run was begun."""
    if not has_checkpoint(folder):
        raise CheckpointError(
            f"{folder} holds no {FILE}; it is no run's directory, or no round was finished, or the "
            "checkpoint was deleted"
        )


def read_message(path: Path, expected: type[M], digest: str | None = None) -> M:
    """Return the message in a sealed file, which must have the digest that a checkpoint names, if one does."""
    methods()  # their files define the messages that a state is made of
    content, found = read_sealed(path)
    if digest is not None and found != digest:
        raise DamagedError(f"{path} is not the file that the checkpoint names: its digest is another")
    try:
        return decode(content, expected)
    except CodecError as error:  # not damaged: another version of fcil wrote it, or a package that is not here
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def has_checkpoint(folder: Path) -> bool:
    """Say whether a run was begun in the folder."""
    return exists(folder / FILE) or exists(folder / PREVIOUS)
