"""A run on the screen: a bar in a terminal, plain lines elsewhere, nothing when quiet; and its final figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fcil.core.console import warn
from fcil.core.messages import Failure
from fcil.data.scenario.tasks import task_starts
from fcil.experiment.warnings import Watch

if TYPE_CHECKING:
    from fcil.experiment.config import Config
    from fcil.experiment.run import Run
    from fcil.federation.round_record import RoundRecord

NOTE = len("task 1/5  round 10/20  10 of 10 clients  last accuracy 90.0 %  10:00 left")


class Decoding:
    """Shows how many images of a data set are decoded: a bar in a terminal, a line for each tenth elsewhere."""

    def __init__(self, console: Console, name: str, quiet: bool) -> None:
        self.console = console
        self.name = name
        self.quiet = quiet
        self.tenth = 0
        columns = (
            TextColumn("{task.description}", markup=False),
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


@dataclass(frozen=True)
class Course:
    """The course of a run or a served run: its rounds, and the place of a round in it."""

    name: str
    total: int  # rounds
    done: int
    accuracy: float | None
    place: Callable[[RoundRecord], str]
    whom: str  # who takes part, in the plural

    @classmethod
    def of(cls, run: Run) -> Course:
        """Return the course of a simulation."""
        last = run.summary()["last"]
        place = _task_of(len(run.scenario.tasks))
        return cls(run.config.method_name, run.scenario.rounds, run.state.round, last, place, "clients")

    @classmethod
    def planned(cls, config: Config, name: str) -> Course:
        """Return the course of a simulation that another process runs, from its first round on."""
        tasks = config.scenario.task_count
        rounds = task_starts(config.scenario.rounds_per_task, tasks)[-1]
        return cls(name, rounds, 0, None, _task_of(tasks), "clients")


def _task_of(tasks: int) -> Callable[[RoundRecord], str]:
    return lambda record: f"task {record.task + 1}/{tasks}"


class Tally:
    """How far a run has come, by the rounds that it was told of."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.done = course.done
        self.accuracy = course.accuracy
        self.played = 0  # rounds that the seconds are the sum of
        self.seconds = 0.0

    def see(self, record: RoundRecord) -> None:
        """Take in a finished round; one that was seen before begins the count of time again."""
        if record.round < self.done:
            self.played, self.seconds = 0, 0.0
        self.done = record.round + 1
        self.played += 1
        self.seconds += record.seconds
        if record.total:
            self.accuracy = 100 * sum(record.correct) / sum(record.total)

    def words(self, record: RoundRecord, *between: str) -> str:
        """Return a line on the run after its newest round: task, round, what the caller adds, accuracy, time left.

        After a round without an evaluation the accuracy is an earlier round's, and is called the last one.
        """
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.1f} %"
        which = "accuracy" if record.total or self.accuracy is None else "last accuracy"
        left = self.seconds / self.played * (self.course.total - self.done)
        parts = (self.course.place(record), f"round {self.done}/{self.course.total}", *between)
        return "  ".join((*parts, f"{which} {accuracy}", f"{_clock(left)} left"))


class Progress:
    """Shows task, round, participants, accuracy so far and time left after every round."""

    def __init__(self, console: Console, course: Course, quiet: bool) -> None:
        self.console = console
        self.quiet = quiet
        self.course = course
        self.tally = Tally(course)
        self.watch = Watch()
        self.bar: Bar | None = None
        if console.is_terminal and not quiet:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width(console, len(course.name) + NOTE)),
                TextColumn("{task.fields[note]}", markup=False),
            )
            self.bar = Bar(*columns, console=console)
            self.line = self.bar.add_task(course.name, total=course.total, completed=course.done, note="first round")

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
        self.tally.see(record)
        for failure in record.failures:
            warn(str(Failure(**failure)))
        for sentence in self.watch.see(record):
            warn(sentence)
        if self.quiet:
            return
        note = self.tally.words(record, f"{len(record.participants)} of {record.clients} {self.course.whom}")
        if self.bar:
            self.bar.update(self.line, completed=self.tally.done, note=note)
        else:
            self.console.print(f"{self.course.name}  {note}", soft_wrap=True)


def bar_width(console: Console, text: int) -> int:
    """Return how wide a bar can be beside so many characters of text, which must not be wrapped for its sake."""
    return max(4, min(24, console.width - text - 2))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
