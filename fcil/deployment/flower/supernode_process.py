"""Flower's SuperNode as a process of its own: `python -m fcil.deployment.flower.supernode_process OWNER ...`.

It differs from `flower-supernode` in three things. It ends with its owner. It looks for requests every half second in
the place of every three, which for short rounds are most of the wait. And it promises a sign of life every ten seconds
in the place of every thirty: a node that was killed is known to be gone after two of them, and is let in again then.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from fcil.core.parent_watch import leave_with

HEARTBEAT = 10  # seconds, the least that Flower takes
POLL = 0.5  # seconds at most between two looks of a node for requests, and for the answer to one


def main() -> None:
    """Serve until the owner is gone or a signal comes."""
    leave_with(int(sys.argv.pop(1)))
    from flwr.supercore import heartbeat  # noqa: PLC0415 (the watch over the owner comes first)
    from flwr.supernode import fleet_http_connection  # noqa: PLC0415
    from flwr.supernode import start_client_internal as loop  # noqa: PLC0415
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415

    for module in (heartbeat, fleet_http_connection):
        setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT)  # noqa: B010
    hurried = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, POLL)))
    setattr(loop, "time", hurried)  # noqa: B010 (of `time` it takes `sleep` alone)
    flower_supernode()


if __name__ == "__main__":
    main()
