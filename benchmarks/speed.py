"""Whole runs and one published step, compared with the code before the work on speed, which git has.

Each side is a process of its own; the two take turns, on one thread and in processor time, so that other work on the
machine affects both. The ratio is the median over the pairs; `pairs` lists them all. Both sides get what `fcil run`
gives them: here tcmalloc where it is installed, there the system's allocator. `*.bfloat16` adds
`train.mixed_precision`. The reduced CIFAR-100 is patterns of the same number and shape, and the first two tasks of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from benchmarks.common import median
from benchmarks.measure import Measurement
from fcil.core.allocator import PRELOAD, library, with_allocator
from fcil.core.errors import ConfigError

BEFORE = "e81d447"
ROOT = Path(__file__).parent.parent
TURNS = Path(__file__).with_name("turns.py")
JOBS: Mapping[str, tuple[int, float | None]] = {  # pairs and bound; a figure without one is to look at
    "digits": (5, 1.5),
    "digits.bfloat16": (3, None),
    "lite": (5, 1.25),
    "lite.bfloat16": (5, 1.25),
    "step": (5, 2.0),
    "step.bfloat16": (5, 2.0),
}


def unpack(folder: Path) -> None:
    """Put the code from before into a folder."""
    packed = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        raise ConfigError(f"the benchmark speed needs a clone of the repository with the commit {BEFORE}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")


class Side:
    """One of the two codes, in a process that does a job again and again."""

    def __init__(self, root: Path, job: str, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(TURNS), job],
            cwd=root,
            env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def seconds(self) -> float:
        """Return the processor time of a turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        answers: IO[Any] | None = self.process.stdout
        assert answers is not None
        line = str(answers.readline())
        if not line:
            raise ConfigError(f"a process of the benchmark ended with code {self.process.wait()}")
        return line

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def compared(job: str, before: Path, pairs: int) -> list[tuple[float, float]]:
    """Return the processor time of this code and of the one before, pair by pair."""
    plain = {name: value for name, value in os.environ.items() if name != PRELOAD}
    sides = [Side(ROOT, job, with_allocator(plain)), Side(before, job.partition(".")[0], plain)]
    try:
        return [(sides[0].seconds(), sides[1].seconds()) for _ in range(pairs)]
    finally:
        for side in sides:
            side.close()


def measure() -> Iterator[Measurement]:
    """Yield each job's processor time beside the one before."""
    chosen = os.environ.get("FCIL_SPEED_JOBS", " ".join(JOBS)).split()
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        for job in chosen:
            pairs, bound = JOBS[job]
            found = compared(job, Path(folder), pairs)
            ratios = [before / now for now, before in found]
            own, reference = (median([pair[side] for pair in found]) for side in (0, 1))
            details = {"pairs": sorted(ratios), "tcmalloc": library() is not None, "before": BEFORE}
            yield Measurement(f"speed.{job}", own, reference, median(ratios), bound, unit="CPU s", details=details)
