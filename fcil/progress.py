"""A run on the screen: a bar in a terminal, plain lines elsewhere, nothing when quiet; and its final figures."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fcil.experiment import Run
from fcil.federation.record import RoundRecord
from fcil.results.watch import Watch
from fcil.sentences import warn


class Decoding:
    """Shows how many images of a data set are decoded: a bar in a terminal, a line for each tenth elsewhere."""

    def __init__(self, console: Console, name: str, quiet: bool) -> None:
        self.console = console
        self.name = name
        self.quiet = quiet
        self.tenth = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Bar(*columns, console=console)

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.tasks:
            self.bar.stop()

    def show(self, done: int, total: int) -> None:
        """Bring the screen up to so many of the images."""
        if self.quiet:
            return
        if self.console.is_terminal:
            if not self.bar.tasks:
                self.bar.add_task(f"decoding {self.name}", total=total)
                self.bar.start()
            self.bar.update(self.bar.task_ids[0], completed=done)
        elif 10 * done // total > self.tenth:
            self.tenth = 10 * done // total
            self.console.print(f"decoding {self.name}: {done} of {total} images", soft_wrap=True)


class Progress:
    """Shows task, round, participants, accuracy so far and time left after every round."""

    def __init__(self, console: Console, run: Run, quiet: bool) -> None:
        self.console = console
        self.quiet = quiet
        self.tasks, self.total = len(run.scenario.tasks), run.scenario.rounds
        self.done = self.before = run.state.round
        self.seconds = 0.0
        self.accuracy = run.summary()["last"]
        self.watch = Watch()
        self.bar: Bar | None = None
        self.name = run.config.method_name
        if console.is_terminal and not quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[note]}"),
            )
            self.bar = Bar(*columns, console=console)
            self.line = self.bar.add_task(self.name, total=self.total, completed=self.done, note="first round")

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, record: RoundRecord) -> None:
        """Bring the screen up to a finished round."""
        self.done = record.round + 1
        self.seconds += record.seconds
        if record.total:
            self.accuracy = 100 * sum(record.correct) / sum(record.total)
        for failure in record.failures:
            warn("client {client} failed in round {round} at stage {stage}: {reason}".format(**failure))
        for sentence in self.watch.see(record):
            warn(sentence)
        if self.quiet:
            return
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.1f} %"
        left = self.seconds / (self.done - self.before) * (self.total - self.done)
        note = (
            f"task {record.task + 1}/{self.tasks}  round {self.done}/{self.total}  "
            f"{len(record.participants)} of {record.clients} clients  accuracy {accuracy}  {_clock(left)} left"
        )
        if self.bar:
            self.bar.update(self.line, completed=self.done, note=note)
        else:
            self.console.print(f"{self.name}  {note}", soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
