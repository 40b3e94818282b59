"""Ctrl-C and SIGTERM as a run and a comparison take them: what is under way ends with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that the runs under way end with a checkpoint and are not left alone.

    Ctrl-C is asked for too: a shell starts what is in its background with that signal ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(stop):
        yield


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Give a list that is no longer empty once Ctrl-C or SIGTERM came; a second one stops at once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        typer.echo("finishing this round and its checkpoint; once more to stop at once", err=True)

    with _handling(note):
        yield seen


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give Ctrl-C and SIGTERM a handler for a while."""
    former = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)
