"""One test over many rows of constants: a loop, reported as a single case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def for_each(rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test for each row, a tuple of its arguments or its only argument; a failure names the row.

    For rows that fail for the same reason. It takes no fixtures; rows that fail on their own are parametrised.
    """
    found = [row if isinstance(row, tuple) else (row,) for row in rows]

    def loop(test: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            assert found, "there is no row"
            for row in found:
                try:
                    test(*row)
                except BaseException as error:
                    error.add_note(f"with {row!r}")
                    raise

        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        return run

    return loop
