"""Flower's SuperLink as a process of its own: `python -m fcil.flower.superlink OWNER ...` takes its options.

It differs from `flower-superlink` in two things: it ends with its owner, and what is not meant for sites is closed to
them. Flower serves three interfaces on one port: that of the nodes, that of the operator (who registers nodes and
starts runs) and that of the server's program. The last two ask for no password, so whoever reaches the port could
register itself. Here they ask for a secret that only the owner knows.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fcil.owner import leave_with

SECRET = "FCIL_LINK_SECRET"  # in the environment of the process
HEADER = b"x-fcil-link-secret"
OPEN = ("/v1/fleet/",)  # what nodes call, each request signed with the node's key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Lets nodes call what is theirs, and nobody else anything without the secret."""

    def __init__(self, inner: Application, secret: str) -> None:
        self.inner = inner
        self.secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._may(scope):
            await self.inner(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"closed"})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _may(self, scope: Scope) -> bool:
        if str(scope.get("path", "")).startswith(OPEN):
            return True
        given = next((value for name, value in scope.get("headers", ()) if name == HEADER), b"")
        return hmac.compare_digest(given, self.secret)


def main() -> None:
    """Serve until the owner is gone or a signal comes."""
    leave_with(int(sys.argv.pop(1)))
    secret = os.environ.pop(SECRET)
    import uvicorn  # noqa: PLC0415 (the watch over the owner comes first)
    from flwr.supercore.http_logging import get_uvicorn_log_config  # noqa: PLC0415
    from flwr.supercore.logger import console_handler  # noqa: PLC0415
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415
    from flwr.superlink.main import create_app  # noqa: PLC0415

    module = sys.modules[flower_superlink.__module__]
    config = module._parse_superlink_lifespan_config()
    application = create_app(config, module.SuperLinkLifespan)
    uvicorn.run(
        Guard(application, secret),
        host=config.host,
        port=config.port,
        access_log=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
