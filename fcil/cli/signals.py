"""Handlers of Ctrl-C and SIGTERM: a run under way ends with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def stoppable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that child runs end with a checkpoint and none is left behind.

    Ctrl-C is asked for too: a shell starts what is in its background with that signal ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(stop):
        yield


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Yield a list that is filled by the first Ctrl-C or SIGTERM; a second one stops at once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        typer.echo("finishing this round and its checkpoint; repeat to stop at once", err=True)

    with _handling(note):
        yield seen


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler of Ctrl-C and SIGTERM for the length of the block."""
    former = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)
