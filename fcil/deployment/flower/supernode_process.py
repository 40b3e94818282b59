"""Flower's SuperNode as a process of its own: `python -m fcil.deployment.flower.supernode_process OWNER ...`.

Unlike `flower-supernode`, it ends with its owner, and it polls for requests every half second instead of every three,
which would be most of a short round. Its heartbeat is ten seconds instead of thirty: a killed node is known to be gone
after two of them, and is admitted again then.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from fcil.core.parent_watch import leave_with

HEARTBEAT = 10  # seconds, the least that Flower takes
POLL = 0.5  # seconds at most between two polls of a node for requests and answers


def main() -> None:
    """Serve until the owner is gone or a signal comes."""
    leave_with(int(sys.argv.pop(1)))
    from flwr.supercore import heartbeat  # noqa: PLC0415 (first the watch over the owner)
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
