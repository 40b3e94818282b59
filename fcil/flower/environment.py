"""What Flower's processes are started with: no telemetry, no update check, no installation, a home of its own."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fcil.engines.flower import SILENCE
from fcil.errors import ConfigError, FederationError, reason

LOG = "flower.log"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def quieten(folder: Path) -> None:
    """Set for this process, before it imports Flower, what its children are started with as well."""
    os.environ.update(settings(folder))


def settings(folder: Path) -> dict[str, str]:
    """Return the variables that keep Flower to the named server; this machine itself needs no web proxy."""
    own = ",".join(filter(None, (os.environ.get("NO_PROXY", ""), *LOOPBACK)))
    return {**SILENCE, "FLWR_HOME": str(folder / "home"), "NO_PROXY": own, "no_proxy": own}


def keep_log(folder: Path) -> None:
    """Let what Flower's parts say within this process go to the log of its other processes, not to the screen."""
    logger, path = logging.getLogger("flwr"), folder / LOG
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.FileHandler(path, encoding="utf-8"))
    logger.propagate = False


def start(module: str, arguments: Sequence[str], folder: Path, further: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one of our modules that run a part of Flower; it ends with this process, and writes to a log of its own.

    Ctrl-C does not reach it: whoever started it ends it.
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


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def last_words(folder: Path, size: int = 1 << 16) -> str:
    """Return the end of a log."""
    try:
        data = (folder / LOG).read_bytes()
    except OSError:
        return ""
    return data[-size:].decode("utf-8", "replace")


def split_address(address: str, option: str) -> tuple[str, int]:
    """Return host and port of an address.

    >>> split_address("fcil.example.org:9000", "--address"), split_address("[::1]:9000", "--address")
    (('fcil.example.org', 9000), ('::1', 9000))
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{option} {address}: it should be HOST:PORT, for instance 192.0.2.10:9000")
    return host, int(port)


def check_loopback(address: str, option: str) -> None:
    """Refuse an address at which others could listen to what is said without TLS."""
    host, _ = split_address(address, option)
    if not is_loopback(host):
        raise ConfigError(
            f"{option} {address}: without TLS (--insecure) only a loopback address such as 127.0.0.1:9000 serves"
        )


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine itself, which nobody else can reach; an address may have a zone.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "::1%lo", "0.0.0.0", "::")]
    [True, True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
