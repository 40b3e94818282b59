"""What processes and folders have, read again and again: memory, open files, files on disk. Linux only."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

WARM = 40  # rounds of a process after which its memory should stay as it is


@dataclass(frozen=True)
class Look:
    """What a process has after a round: megabytes of its own, open files and threads."""

    round: int
    memory: float
    files: int
    threads: int


@dataclass
class Ledger:
    """All looks at processes, by party and process id, and at folders, by name and round."""

    processes: dict[tuple[str, int], list[Look]] = field(default_factory=lambda: defaultdict(list))
    folders: dict[str, dict[int, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))

    def look(self, number: int, processes: dict[str, int], folders: dict[str, Path]) -> None:
        """Note down what is there after a round."""
        for name, process in processes.items():
            for pid in family(process):
                found = look_at(pid, number)
                if found is not None:
                    self.processes[name if pid == process else f"{name}'s child", pid].append(found)
        for name, folder in folders.items():
            self.folders[name][number] = extent(folder)

    def growth(self) -> dict[str, tuple[float, int, int]]:
        """Return for each process that lived long how much more it has at the end: MB per 100 rounds, files, threads.

        The beginning is the median of the looks after the first rounds, the end that of as many looks.
        """
        grown = {}
        for (name, pid), looks in self.processes.items():
            warm = [one for one in looks if one.round >= looks[0].round + WARM]
            if len(warm) < 8 or warm[-1].round - warm[0].round < 2 * WARM:
                continue
            first, last = warm[: len(warm) // 4], warm[-(len(warm) // 4) :]
            rounds = _middle([float(one.round) for one in last]) - _middle([float(one.round) for one in first])
            more = _middle([one.memory for one in last]) - _middle([one.memory for one in first])
            files = round(_middle([float(one.files) for one in last]) - _middle([float(one.files) for one in first]))
            threads = round(
                _middle([float(one.threads) for one in last]) - _middle([float(one.threads) for one in first])
            )
            grown[f"{name} {pid}"] = (100 * more / rounds, files, threads)
        return grown


def family(process: int) -> list[int]:
    """Return a process and those that it has started."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == process:
                children.append(int(status.parent.name))
        except OSError:
            continue
    return [process, *children]


def look_at(process: int, number: int) -> Look | None:
    """Return what a process has, or None if it has ended."""
    place = Path(f"/proc/{process}")
    try:
        status = (place / "status").read_text()
        files = sum(1 for _ in (place / "fd").iterdir())
    except OSError:
        return None
    memory = re.search(r"^RssAnon:\s+(\d+)", status, re.MULTILINE)
    threads = re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)
    return Look(number, int(memory[1]) / 1024, files, int(threads[1])) if memory and threads else None


def extent(folder: Path) -> tuple[int, int]:
    """Return the files in a folder and their bytes."""
    files = size = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                files, size = files + 1, size + path.stat().st_size
        except OSError:
            continue
    return files, size


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
