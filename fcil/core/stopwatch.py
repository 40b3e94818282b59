"""Seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """The seconds of each phase; a phase inside another one is counted apart from it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time until the end of the block; `timed` inside it counts here too."""
        self._lap()
        self._running.append(name)
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            self._lap()
            self._running.pop()

    def each(self, name: str, values: Iterable[T]) -> Iterator[T]:
        """Yield the values, and count the time that each of them takes to come."""
        source = iter(values)
        while True:
            try:
                with self.phase(name):
                    value = next(source)
            except StopIteration:
                return
            yield value

    def divide(self, name: str, parts: Mapping[str, float]) -> None:
        """Divide the seconds of a phase in proportion to parts that were measured elsewhere, such as in workers."""
        whole = sum(parts.values())
        if whole <= 0 or name not in self.seconds:
            return
        seconds = self.seconds.pop(name)
        for part, value in parts.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds * value / whole

    def drain(self) -> dict[str, float]:
        """Return the seconds of all phases, and begin again."""
        found = {name: round(seconds, 4) for name, seconds in self.seconds.items()}
        self.seconds = {}
        return found

    def _lap(self) -> None:
        """Credit the innermost running phase with the time since the last lap."""
        now = time.perf_counter()
        if self._running:
            name = self._running[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


_CURRENT: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Count the block as a phase of the stopwatch that is running, if any."""
    watch = _CURRENT.get()
    if watch is None:
        yield
        return
    with watch.phase(name):
        yield
