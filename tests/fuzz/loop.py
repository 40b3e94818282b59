"""Cases one after the other in child processes, so that a crash is a finding and not the end."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fuzz.case import READ, FindingError, Kind, judge

MEMORY = 1 << 30  # bytes that a child may take beyond what it began with
SILENCE = 120  # seconds after which a child that says nothing, for instance because it waits for a pipe, is stopped
BATCH = 500  # cases of a child, so that what one leaves behind does not add up


@dataclass(frozen=True)
class Result:
    """The outcome of a case: `read`, `refused` or a finding."""

    number: int
    outcome: str | None
    found: str = ""


def play(
    kind: Kind, seed: int, numbers: Sequence[int], memory: int = MEMORY, silence: float = SILENCE
) -> Iterator[Result]:
    """Play the cases with these numbers and yield what came of each."""
    left = list(numbers)
    kind.damage(seed, 0)  # so that samples are made once, and not by every child
    with place_for_cases() as place:
        while left:
            for result in _in_child(kind, seed, left[:BATCH], place, memory, silence):
                left.remove(result.number)
                yield result


def _in_child(
    kind: Kind, seed: int, numbers: Sequence[int], place: Path, memory: int, silence: float
) -> Iterator[Result]:
    """Yield the results of a child; the one that it dies of is the last."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of this process do not matter to a child
        child = os.fork()
    if child == 0:
        os.close(reader)
        _live(kind, seed, numbers, place, memory, writer)
    os.close(writer)
    done = 0
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        for line in _lines(pipe.fileno(), silence):
            done += 1
            yield Result(**json.loads(line))
    if done < len(numbers):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if done < len(numbers):
        code = os.waitstatus_to_exitcode(status)
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        why = f"; it was stopped after {silence:g} silent seconds" if code == -signal.SIGKILL else ""
        yield Result(numbers[done], None, f"the process ended with {end}{why}")


def _lines(pipe: int, silence: float) -> Iterator[bytes]:
    """Yield whole lines until the pipe ends or is silent for too long."""
    rest = b""
    while select.select([pipe], [], [], silence)[0] and (data := os.read(pipe, 1 << 16)):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _live(kind: Kind, seed: int, numbers: Sequence[int], place: Path, memory: int, writer: int) -> NoReturn:
    """Play the cases as a child, tell the parent of each, and end without coming back."""
    try:
        if sys.platform == "linux":  # elsewhere the system does not keep to it
            resource.setrlimit(resource.RLIMIT_AS, (_size() + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
        faulthandler.disable()  # a crash is told by its signal
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)  # what libraries print about damaged bytes
        for number in numbers:
            os.write(writer, json.dumps(_result(kind, seed, number, place).__dict__).encode() + b"\n")
    finally:
        os._exit(0)


def _result(kind: Kind, seed: int, number: int, place: Path) -> Result:
    with scratch(place) as folder:
        try:
            outcome = judge(kind, kind.damage(seed, number), folder)
            return (
                Result(number, outcome) if number or outcome == READ else Result(0, None, "a whole sample is refused")
            )
        except FindingError as finding:
            return Result(number, None, str(finding))


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Give a folder that is empty, and in which data and caches are looked for."""
    folder = place / "case"
    shutil.rmtree(folder, ignore_errors=True)  # of a child that was killed
    folder.mkdir()
    os.environ.update(XDG_CACHE_HOME=str(folder / "cache"), FCIL_DATA=str(folder / "data"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def place_for_cases() -> Iterator[Path]:
    """Give a folder that is removed afterwards, in memory where there is such a place: cases write many small files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-", dir=memory) as folder:
        yield Path(folder)


def _size() -> int:
    """Return the bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
