"""Events of a party: lines for people, or with time and level, and always in a log file that is rotated."""

from __future__ import annotations

import json
import logging
import logging.handlers
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fcil.core.errors import one_line

FILE = "fcil.log"
SIZE, KEPT = 5 << 20, 5  # bytes of a log file, and former ones that are kept
WARNING = "warning: "  # how a line for people begins
Shape = Literal["plain", "text", "json"]


class _Line(logging.Formatter):
    """One line per event: ISO time, level and text, or a JSON object with further facts."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts: Mapping[str, Any] = getattr(record, "facts", {})
        if self.as_json:
            return json.dumps({"time": time, "level": record.levelname, "event": record.getMessage(), **facts})
        return f"{time} {record.levelname} {record.getMessage()}"


class _Quiet(logging.handlers.RotatingFileHandler):
    """A log file whose failures, as on a full disk, stop nothing."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        pass


class EventLog:
    """Writes each event to the log file in a folder and, in the asked shape, to the screen."""

    def __init__(self, folder: Path, shape: Shape, echo: Callable[[str, int], None]) -> None:
        """Take what shows a line of a level on the screen."""
        self.shape = shape
        self.echo = echo
        self._screen = _Line(shape == "json")
        self._file = _Quiet(folder / FILE, maxBytes=SIZE, backupCount=KEPT, encoding="utf-8", delay=True)
        self._file.setFormatter(_Line(shape == "json"))

    def say(self, line: str) -> None:
        """Log a line for people; one that begins with `warning: ` has that level."""
        self.event(line.removeprefix(WARNING), logging.WARNING if line.startswith(WARNING) else logging.INFO)

    def warn(self, text: str) -> None:
        """Log a warning."""
        self.event(text, logging.WARNING)

    def event(self, text: str, level: int = logging.INFO, shown: bool = True, **facts: Any) -> None:
        """Log an event with facts, which only JSON has; one that is not `shown` has plain lines of its own."""
        record = logging.LogRecord("fcil", level, "", 0, one_line(text), None, None)
        record.facts = facts
        self._file.handle(record)
        if self.shape != "plain":
            self.echo(self._screen.format(record), level)
        elif shown:
            self.echo(f"{WARNING if level >= logging.WARNING else ''}{one_line(text)}", level)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
