"""Files that survive a kill: whole or absent; and the checkpoint a run is resumed from."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fcil.errors import CheckpointError
from fcil.federation.rounds import FederationState
from fcil.methods import methods
from fcil.wire import CodecError, Message, decode, encode

FILE = "checkpoint.fcil"


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
class Checkpoint(Message):
    """All that matters after a round: the federation, every client's state, the configuration and the machine."""

    config: str  # JSON
    data: str  # digest of the data set
    machine: dict[str, str]
    federation: FederationState
    clients: dict[str, Message]


def machine_facts(threads: int, device: str) -> dict[str, str]:
    """Return what a run's last bits depend on beside its configuration."""
    return {
        "threads": str(threads),
        "device": device,
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the folder's checkpoint."""
    write_atomically(folder / FILE, encode(checkpoint))


def load_checkpoint(folder: Path) -> Checkpoint:
    """Return the folder's checkpoint."""
    path = folder / FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {FILE}; it is not the directory of a run that finished a round")
    methods()  # their files define the messages that a state is made of
    try:
        return decode(path.read_bytes(), Checkpoint)
    except CodecError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def has_checkpoint(folder: Path) -> bool:
    """Say whether a run was begun in the folder."""
    return (folder / FILE).is_file()


def dump_json(document: Any) -> bytes:
    """Return readable JSON bytes, the same for the same document."""
    return (json.dumps(document, indent=2, sort_keys=False, allow_nan=False) + "\n").encode()
