"""Progress bars for child runs, read from their `records.jsonl`.

It reads only the `records.jsonl` of each run, so any command that starts runs can show them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Rows

from fcil.experiment.journal import Tail
from fcil.reporting.terminal.progress import Course, Tally, bar_width

NOTE = len("task 10/10  round 100/100  accuracy 100.0 % (round 100)  10:00:00 left")
ALL = "all runs"
POLL = 0.2  # seconds between looks


@dataclass
class Followed:
    """A run under way, and its row."""

    row: TaskID
    tail: Tail
    tally: Tally


class Bars:
    """A bar for each run under way and, once their number is known, one for all; nothing if this is no terminal."""

    def __init__(self, console: Console) -> None:
        self._shown = console.is_terminal
        self._bar = BarColumn()
        texts = [TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}", markup=False)]
        self._rows = Rows(texts[0], self._bar, texts[1], console=console)
        self._runs: dict[str, Followed] = {}
        self._names = [ALL]
        self._all: TaskID | None = None

    def __enter__(self) -> Bars:
        if self._shown:
            self._rows.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._rows.stop()

    def plan(self, runs: int) -> None:
        """Show a bar for all runs, given the number of runs to come."""
        if runs:
            self._all = self._rows.add_task(ALL, total=runs, note=f"0 of {runs}")

    def begin(self, course: Course, folder: Path) -> None:
        """Show a bar for a run that was just started."""
        self._names.append(course.name)
        self._bar.bar_width = bar_width(self._rows.console, max(map(len, self._names)) + NOTE)
        row = self._rows.add_task(course.name, total=course.total, note="first round")
        self._runs[course.name] = Followed(row, Tail(folder), Tally(course))

    def look(self) -> None:
        """Bring all bars up to the rounds that are on the disk."""
        for run in self._runs.values() if self._shown else ():
            records = run.tail.new()
            for record in records:
                run.tally.see(record)
            if records:
                self._rows.update(run.row, completed=run.tally.done, note=run.tally.words(records[-1]))

    def end(self, name: str) -> None:
        """Show the final state of a run, and remove its bar."""
        self.look()
        self._rows.refresh()
        self._rows.remove_task(self._runs.pop(name).row)
        if self._all is not None:
            self._rows.advance(self._all)
            task = next(task for task in self._rows.tasks if task.id == self._all)
            self._rows.update(self._all, note=f"{task.completed:.0f} of {task.total:.0f}")
        self._rows.refresh()  # or a line that is printed next would be followed by the bars as they were
