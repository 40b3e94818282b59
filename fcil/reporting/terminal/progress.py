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
from fcil.data.scenario.tasks import task_starts
from fcil.experiment.warnings import Watch
from fcil.federation.round_record import BUSY, OBJECTIONS, measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fcil.experiment.config import Config
    from fcil.experiment.run import Run
    from fcil.federation.round_record import FailureRecord, Measured, RoundRecord

NOTE = len("task 1/5  round 10/20  10 of 10 clients  accuracy 90.0 % (round 10)  10:00 left")


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
    total: int | None  # rounds; None where there is no end
    done: int
    accuracy: Measured | None
    place: Callable[[RoundRecord], str]
    whom: str  # who takes part, in the plural

    @classmethod
    def of(cls, run: Run) -> Course:
        """Return the course of a simulation."""
        last = last_measured(run.journal.records)
        place = _task_of(len(run.scenario.tasks))
        return cls(run.config.method_name, run.scenario.rounds, run.state.round, last, place, "clients")

    @classmethod
    def planned(cls, config: Config, name: str) -> Course:
        """Return the course of a simulation that another process runs, from its first round on."""
        tasks = config.scenario.task_count
        rounds = task_starts(config.scenario.rounds_per_task, tasks)[-1]
        return cls(name, rounds, 0, None, _task_of(tasks), "clients")


def last_measured(records: Sequence[RoundRecord]) -> Measured | None:
    """Return the newest accuracy in the records of a run."""
    return next((found for record in reversed(records) if (found := measured(record)) is not None), None)


def _task_of(tasks: int) -> Callable[[RoundRecord], str]:
    return lambda record: f"task {record.task + 1}/{tasks}"


class Tally:
    """The progress of a run, from the rounds that it was told of."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.done = course.done
        self.accuracy = course.accuracy
        self.timed = 0  # rounds that the seconds are the sum of
        self.seconds = 0.0

    def see(self, record: RoundRecord) -> None:
        """Take in a finished round; one that was seen before begins the count of time again."""
        if record.round <= self.done:
            self.timed, self.seconds = 0, 0.0
        self.done = record.round
        self.timed += 1
        self.seconds += record.seconds
        self.accuracy = measured(record) or self.accuracy

    def words(self, record: RoundRecord, *between: str) -> str:
        """Return a line on the run after its newest round: task, round, what the caller adds, accuracy, time left.

        After a round without an evaluation the accuracy is an earlier round's, which is named.
        """
        found = self.accuracy
        accuracy = "-" if found is None else found.words
        accuracy += f" (round {found.round})" if found is not None and found.round != record.round else ""
        total = self.course.total
        left = () if total is None else (f"{_clock(self.seconds / self.timed * (total - self.done))} left",)
        number = f"round {self.done}" if total is None else f"round {self.done}/{total}"
        fate = ("not applied",) if record.not_applied else ()
        spent = (f"epsilon {record.privacy['epsilon']:.3g}",) if record.privacy else ()
        parts = (self.course.place(record), number, *fate, *between, *spent)
        return "  ".join((*parts, f"accuracy {accuracy}", *left))


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
        told = _answered(record) if self.course.whom == "sites" else ""
        for failure in record.failures:
            if not told or self.bar:
                warn("client {client} failed in round {round} at stage {stage}: {reason}".format(**failure))
        for sentence in self.watch.see(record):
            warn(sentence)
        if self.quiet:
            return
        counted = told or f"{len(record.participants)} of {record.clients} {self.course.whom}"
        note = self.tally.words(record, counted)
        if self.bar:
            self.bar.update(self.line, completed=self.tally.done, note=note)
        else:
            self.console.print(f"{self.course.name}  {note}", soft_wrap=True)


def _answered(record: RoundRecord) -> str:
    """Return how many sites have answered in a round, and why the others have not; empty if all have."""
    absent = {failure["client"] for failure in record.failures if failure["stage"] not in OBJECTIONS}
    if not absent:
        return ""
    reasons = "; ".join(_failed(failure) for failure in record.failures)
    return f"{record.clients - len(absent)} of {record.clients} sites answered, {reasons}"


def _failed(failure: FailureRecord) -> str:
    """Return a failure with its site first.

    >>> _failed({"client": 1, "round": 2, "stage": "answer", "reason": "site north: it did not answer within 60 s"})
    'north failed: it did not answer within 60 s'
    >>> _failed({"client": 1, "round": 2, "stage": "busy", "reason": "site north: reading 7 of 9 new files"})
    'north is busy: reading 7 of 9 new files'
    """
    name, _, words = failure["reason"].removeprefix("site ").partition(": ")
    return f"{name} {'is busy' if failure['stage'] == BUSY else 'failed'}: {words}"


def bar_width(console: Console, text: int) -> int:
    """Return how wide a bar can be beside so many characters of text, which must not be wrapped for its sake."""
    return max(4, min(24, console.width - text - 2))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
