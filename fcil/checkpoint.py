"""Files that survive a kill: whole or absent; and the checkpoint a run is resumed from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from fcil.errors import CheckpointError
from fcil.federation.rounds import FederationState
from fcil.methods import methods
from fcil.wire import CodecError, Message, Shape, decode, encode

FILE = "checkpoint.fcil"
PART = "clients-"  # and the number of rounds played
M = TypeVar("M", bound=Message)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a machine after a power cut, finds the old one or the new one, never a part."""
    partial = path.with_name(f".{path.name}.part")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True)
class ClientStates(Message):
    """The states of some clients, as they were after a round."""

    clients: dict[str, Message]


@dataclass(frozen=True)
class Checkpoint(Message):
    """All that matters after a round: the federation, the configuration, the machine, and where clients' states are.

    States lie in files of their own, `parts`, of which a later one overrules an earlier one: a round adds a file with
    the states it changed. A part is written before the checkpoint that names it and removed after the one that no
    longer does, so that a kill at any moment leaves a whole checkpoint.
    """

    config: str  # JSON
    data: str  # digest of the data set
    machine: dict[str, str]
    federation: FederationState
    entropy: Annotated[Tensor, Shape(("clients",), torch.float64)]  # each client measured last; NaN: none
    parts: tuple[str, ...] = ()
    part_sizes: tuple[int, ...] = ()  # states in each part


def machine_facts(threads: int, device: str) -> dict[str, str]:
    """Return what a run's last bits depend on beside its configuration."""
    return {
        "threads": str(threads),
        "device": device,
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def save_checkpoint(
    folder: Path, checkpoint: Checkpoint, states: Mapping[int, Message], changed: set[int]
) -> Checkpoint:
    """Replace the folder's checkpoint, whose parts are those of the last one, and return it as it was written.

    Once the parts would hold more than twice as many states as there are clients, one part with all of them takes
    their place: so disk and time stay in proportion to what changed.
    """
    if changed:
        name = f"{PART}{checkpoint.federation.round:06d}.fcil"
        whole = sum(checkpoint.part_sizes) + len(changed) > 2 * len(states)
        written = sorted(states if whole else changed)
        write_atomically(folder / name, encode(ClientStates({str(client): states[client] for client in written})))
        parts, sizes = ((), ()) if whole else (checkpoint.parts, checkpoint.part_sizes)
        checkpoint = replace(checkpoint, parts=(*parts, name), part_sizes=(*sizes, len(written)))
    write_atomically(folder / FILE, encode(checkpoint))
    for path in folder.glob(f"{PART}*.fcil"):
        if path.name not in checkpoint.parts:
            path.unlink()
    return checkpoint


def load_clients(folder: Path, checkpoint: Checkpoint) -> dict[int, Message]:
    """Return the clients' states that a checkpoint stands for."""
    states: dict[int, Message] = {}
    for name in checkpoint.parts:
        part = _read(folder / name, ClientStates)
        states.update({int(client): state for client, state in part.clients.items()})
    return states


def load_checkpoint(folder: Path) -> Checkpoint:
    """Return the folder's checkpoint."""
    path = folder / FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {FILE}; it is not the directory of a run that finished a round")
    return _read(path, Checkpoint)


def _read(path: Path, expected: type[M]) -> M:
    methods()  # their files define the messages that a state is made of
    try:
        return decode(path.read_bytes(), expected)
    except (CodecError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def has_checkpoint(folder: Path) -> bool:
    """Say whether a run was begun in the folder."""
    return (folder / FILE).is_file()


def dump_json(document: Any) -> bytes:
    """Return readable JSON bytes, the same for the same document."""
    return (json.dumps(document, indent=2, sort_keys=False, allow_nan=False) + "\n").encode()
