"""Starting Flower's processes: without telemetry, update checks or installation, each with its own home folder."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fcil.core.errors import FederationError, reason

LOG = "flower.log"
LONG = 5 << 20  # bytes of a log
SILENCE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def quieten(folder: Path) -> None:
    """Set the environment of this process and of its children, before Flower is imported."""
    os.environ.update(settings(folder))


def settings(folder: Path) -> dict[str, str]:
    """Return environment variables for Flower: no telemetry, its own home, and no web proxy for this machine."""
    own = ",".join(filter(None, (os.environ.get("NO_PROXY", ""), *LOOPBACK)))
    return {**SILENCE, "FLWR_HOME": str(folder / "home"), "NO_PROXY": own, "no_proxy": own}


def keep_log(folder: Path) -> None:
    """Send Flower's log output of this process to the log file of its other processes, not to the screen."""
    logger, path = logging.getLogger("flwr"), folder / LOG
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.FileHandler(path, encoding="utf-8"))
    logger.propagate = False


def start(module: str, arguments: Sequence[str], folder: Path, further: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one of our modules that run a part of Flower; it ends with this process and writes to a log file.

    It has a session of its own, so Ctrl-C does not reach it; `end` ends it.
    """
    command = [sys.executable, "-m", module, str(os.getpid()), *arguments]
    environment = {**os.environ, **settings(folder), **further}
    try:
        with (folder / LOG).open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise FederationError(f"{folder / LOG} cannot be written, or {module} not started: {reason(error)}") from error


def end(process: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a process that `start` started, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def rotate_log(folder: Path) -> None:
    """Keep a long log of Flower's under another name; its processes append, so they go on at the beginning."""
    path = folder / LOG
    if path.exists() and path.stat().st_size > LONG:
        shutil.copyfile(path, path.with_suffix(".1.log"))
        os.truncate(path, 0)


def log_tail(folder: Path, size: int = 1 << 16) -> str:
    """Return the end of a log."""
    try:
        data = (folder / LOG).read_bytes()
    except OSError:
        return ""
    return data[-size:].decode("utf-8", "replace")
