"""Flower's SuperNode as a process of its own: `python -m fcil.deployment.flower.supernode_process OWNER ...`.

Unlike `flower-supernode`, it ends with its owner, and it polls for requests every half second instead of every three,
which would be most of a short round, until it has been idle for a while. Its heartbeat is ten seconds instead of
thirty: a killed node is known to be gone after two of them, and is admitted again then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from fcil.core.parent_watch import leave_with

HEARTBEAT = 10  # seconds, the least that Flower takes
UNANSWERED, ANSWERED = "a heartbeat is not answered", "a heartbeat is answered again"
POLL = 0.5  # seconds at most between two polls of a node for requests and answers
IDLE = 3  # seconds that Flower's loop sleeps after a poll without a request
WHILE = 5.0  # seconds without a request after which that is what it does


class Pauses:
    """The pauses of Flower's loop: short ones while requests come, its own once none has come for a while."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._idle = 0.0  # seconds slept since the last request

    def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds or fewer."""
        pause = seconds if self._idle >= WHILE else min(seconds, POLL)
        self._sleep(pause)
        self._idle = self._idle + pause if seconds >= IDLE else 0.0  # it waits less long for an answer


def main() -> None:
    """Serve until the owner is gone or a signal comes."""
    leave_with(int(sys.argv.pop(1)))
    from flwr.supercore import heartbeat  # noqa: PLC0415 (first the watch over the owner)
    from flwr.supernode import fleet_http_connection  # noqa: PLC0415
    from flwr.supernode import start_client_internal as loop  # noqa: PLC0415
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415

    _tell_outages(heartbeat)
    for module in (heartbeat, fleet_http_connection):
        setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT)  # noqa: B010
    setattr(loop, "time", Pauses())  # noqa: B010 (of `time` it takes `sleep` alone)
    flower_supernode()


def _tell_outages(heartbeat: Any) -> None:
    """Let the log say when heartbeats begin to fail and when they succeed again; Flower logs failed polls alone."""
    plain = heartbeat.HeartbeatSender._heartbeat

    def told(sender: Any) -> None:
        try:
            plain(sender)
        except heartbeat.HeartbeatFailure:
            print(UNANSWERED, flush=True)  # noqa: T201 (to the log, which the site reads)
            sender.failed = True
            raise
        if getattr(sender, "failed", False):
            print(ANSWERED, flush=True)  # noqa: T201
            sender.failed = False

    heartbeat.HeartbeatSender._heartbeat = told


if __name__ == "__main__":
    main()
