"""A server's run without sites: rounds that are in its journal and its checkpoint, and in which nothing happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fcil.core.stopwatch import Stopwatch
from fcil.deployment.server.run import ServedRun
from fcil.deployment.server.state import ServedState
from fcil.experiment.config import load_config
from fcil.federation.round_record import RoundRecord
from support.records import record


class Idle:
    """Stands for the server of a run; its rounds are over at once."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self.membership = SimpleNamespace(names={})  # of nobody: there is nothing to interrupt

    def rounds(self, state: ServedState, measured: set[int]) -> Iterator[tuple[ServedState, RoundRecord]]:
        while True:
            played = record(state.round, clients=2, correct=[3], total=[4], seconds=1.5)
            state = replace(state, server=replace(state.server, round=state.round + 1))
            yield state, played

    def release(self, state: ServedState, record: RoundRecord, records: str) -> None:
        pass


def idle() -> Any:
    return Idle()


def served(folder: Path, rounds: int) -> ServedRun:
    """Return a server's run that has so many rounds to run."""
    settings = [f"deployment.rounds={rounds}", "method.name=finetune", "model.width=2"]
    return ServedRun.start(load_config("digits", settings), folder)
