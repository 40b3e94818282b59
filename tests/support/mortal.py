"""A party that is killed by a request: `python -m support.mortal OWNER KIND COUNT ...` is `fcil ...` until then."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Mapping

from fcil.core.parent_watch import leave_with


def main() -> None:
    """Run the command line; the request of a kind that makes their number full ends the process at once."""
    leave_with(int(sys.argv.pop(1)))
    kind, left = sys.argv.pop(1), int(sys.argv.pop(1))
    from fcil.core.messages.codec import DEFAULT_LIMIT
    from fcil.deployment.party import Party
    from fcil.deployment.transport.messages import Request, decode_message

    plain = Party.handle

    def handle(party: Party, data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        nonlocal left
        left -= type(decode_message(data, Request, DEFAULT_LIMIT)).__name__ == kind
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(party, data, parcels)

    Party.handle = handle  # type: ignore[method-assign]
    runpy.run_module("fcil", run_name="__main__")


if __name__ == "__main__":
    main()
