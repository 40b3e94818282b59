"""Runs pytest in forks of a process that has imported the large packages already: `python -m mutants.nursery`.

Most tests of a mutation take less time than the imports of PyTorch and pytest. The project itself is never imported
before the fork, since every run has another copy of it. One JSON line on standard input asks for a run, and one on
standard output has its exit code, or null if it took too long.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LARGE = (
    *("torch", "torch.nn.functional", "numpy", "scipy.stats", "pydantic", "safetensors.torch", "typer", "hypothesis"),
    *("PIL.Image", "cryptography.hazmat.primitives.asymmetric.ec", "rich.progress", "pytest", "_pytest.doctest"),
)
POLL = 0.01  # seconds between two looks at a run


def serve() -> None:
    """Answer requests until standard input ends."""
    for name in LARGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mutants", "fcil")]:
        del sys.modules[name]
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_run(**json.loads(line))) + "\n")
        sys.stdout.flush()


def _run(root: str, arguments: Sequence[str], output: str, longest: float) -> int | None:
    """Return the exit code of pytest on the project at `root`; all that it prints goes to a file."""
    child = os.fork()
    if child == 0:
        _become_pytest(root, arguments, output)
    until = time.monotonic() + longest
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _become_pytest(root: str, arguments: Sequence[str], output: str) -> None:
    code: Any = 3  # of pytest, for an internal error
    try:
        os.setsid()  # so that all processes of its tests can be ended with it
        os.chdir(root)
        os.environ["PYTHONPATH"] = root
        sys.path[:] = [root, *(entry for entry in sys.path if entry not in ("", root) and not _of_a_project(entry))]
        with Path(output).open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        import pytest

        code = pytest.main([*arguments])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _of_a_project(entry: str) -> bool:
    """Say whether modules of another copy of the project would be found in a place."""
    return (Path(entry) / "fcil").is_dir() or (Path(entry) / "mutants").is_dir()


if __name__ == "__main__":
    serve()
