"""Restoring a run from its directory: the newest checkpoint, or else the one before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from fcil.core.errors import CheckpointError, DamagedError, FileError, reason
from fcil.core.files import exists, remove_partial
from fcil.core.messages import Message, ModelState
from fcil.experiment.checkpoint import (
    FILE,
    PREVIOUS,
    AnyCheckpoint,
    Checkpoint,
    load_any_checkpoint,
    load_checkpoint,
    load_clients,
    load_proxy,
    remove_unnamed,
)
from fcil.experiment.journal import Journal
from fcil.experiment.timings import trim_timings
from fcil.federation.simulated_clients import NONE
from fcil.federation.simulation import SimulationState
from fcil.models.classifier import HEAD_ROWS

R = TypeVar("R")


@dataclass(frozen=True)
class Stored:
    """A checkpoint with the states and the records that belong to it."""

    checkpoint: Checkpoint
    clients: dict[int, Message]
    proxy: Message | None
    journal: Journal
    warnings: tuple[str, ...] = ()


def newest_whole(folder: Path, read: Callable[[str], R], rounds: Callable[[R], int]) -> tuple[R, list[str]]:
    """Apply `read` to the newest whole checkpoint; a warning says if that is the previous one."""
    problems: list[str] = []
    for name in (FILE, PREVIOUS):
        try:
            found = read(name)
        except DamagedError as error:
            problems.append(str(error))
            continue
        return found, [f"{problem}; continuing from {name}, after round {rounds(found)}" for problem in problems]
    raise CheckpointError(
        f"{folder} cannot be resumed: {problems[0]}, and for the previous checkpoint, {problems[1]}; "
        "restore the files from a copy, or run again in another directory"
    )


def load_stored(folder: Path) -> Stored:
    """Return the newest checkpoint that is whole, with a warning if that is the previous one."""
    stored, warnings = newest_whole(
        folder, lambda name: _load_stored(folder, name), lambda stored: len(stored.journal.records)
    )
    return replace(stored, warnings=tuple(warnings))


def _load_stored(folder: Path, name: str) -> Stored:
    checkpoint = load_checkpoint(folder, name)
    clients, proxy = load_clients(folder, checkpoint), load_proxy(folder, checkpoint)
    journal = read_journal(folder, checkpoint)
    table = checkpoint.table
    with_state = table.clients[table.rounds != NONE]  # who failed in its first round has none
    lacking = set(with_state.tolist()) - clients.keys()
    if lacking:
        raise CheckpointError(f"{folder / name} cannot be read: no file has the state of client {min(lacking)}")
    return Stored(checkpoint, clients, proxy, journal)


def check_fit(stored: Stored, fresh: SimulationState, ids: Sequence[str]) -> None:
    """Raise a CheckpointError unless a run that begins with `fresh` can continue the stored one."""
    state, journal = stored.checkpoint.server, stored.journal
    classes, blocks = state.catalogue.classes, state.catalogue.blocks
    problem = None
    if len(set(classes)) != len(classes) or not set(classes) <= set(ids):
        problem = "its catalogue has classes that the data has not, or one twice"
    elif list(blocks) != sorted({*blocks, *([len(classes)] if classes else [])}) or blocks[:1] == (0,):
        problem = f"its catalogue has {len(classes)} classes in blocks that end at {blocks}"
    elif _outline(state.model, len(classes)) != _outline(fresh.model, len(classes)):
        problem = "its model is of another network"
    elif (stored.proxy is None) != (fresh.proxy is None):
        problem = "it has a proxy's state where the method has no proxy, or none where it has one"
    if problem:
        raise CheckpointError(f"{journal.path.parent} cannot be resumed: its checkpoint is not sound: {problem}")


def _outline(model: ModelState, outputs: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return type and shape of a model's tensors, of which those of the head have so many rows or will have them."""
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in model.items()}
    for name in HEAD_ROWS:
        if name in model and len(model[name]) in (0, outputs):
            found[name] = (model[name].dtype, (outputs, *model[name].shape[1:]))
    return found


def read_journal(folder: Path, checkpoint: AnyCheckpoint) -> Journal:
    """Return the records of the rounds that a checkpoint stands for."""
    return Journal.read(folder, checkpoint.rounds, checkpoint.records)


def newest_checkpoint(folder: Path) -> AnyCheckpoint:
    """Return the checkpoint of a run that may be under way, and may be giving the file its name just now."""
    try:
        return load_any_checkpoint(folder)
    except DamagedError:
        return load_any_checkpoint(folder, FILE if exists(folder / FILE) else PREVIOUS)


def tidy(folder: Path, stored: Stored) -> None:
    """Remove everything but the checkpoint from the directory; the caller owns it."""
    tidy_results(folder, stored.journal, bool(stored.warnings))
    remove_unnamed(folder)


def tidy_results(folder: Path, journal: Journal, damaged: bool) -> None:
    """Leave no file that was being written and no figures of rounds that are not in the journal.

    If the newest checkpoint was damaged, the previous one takes its place, so that the next one does not push it out.
    """
    remove_partial(folder)
    journal.drop_rest()
    trim_timings(folder, len(journal.records))
    if damaged:
        try:
            os.replace(folder / PREVIOUS, folder / FILE)
        except OSError as error:
            raise FileError(f"{folder / FILE} cannot be written: {reason(error)}") from error
