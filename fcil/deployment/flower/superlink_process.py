"""Flower's SuperLink as a process of its own: `python -m fcil.deployment.flower.superlink_process OWNER ...`.

Unlike `flower-superlink`, it ends with its owner and has our authentication and our limits in front.
"""

from __future__ import annotations

import os
import signal
import sys

from fcil.core.parent_watch import leave_with

SECRET = "FCIL_LINK_SECRET"  # in the environment of the process
SLOWEST = 86400  # seconds after its signature at which Flower still takes a request, whose body may be slow


def main() -> None:
    """Serve until the owner is gone or a signal comes."""
    leave_with(int(sys.argv.pop(1)))
    secret = os.environ.pop(SECRET)
    from flwr.supercore.http_logging import get_uvicorn_log_config  # noqa: PLC0415 (first the watch over the owner)
    from flwr.supercore.logger import console_handler  # noqa: PLC0415
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415
    from flwr.superlink.main import create_app  # noqa: PLC0415
    from flwr.superlink.routers.fleet import node_auth  # noqa: PLC0415

    from fcil.deployment.flower.auth_middleware import AuthMiddleware  # noqa: PLC0415
    from fcil.deployment.flower.limited_server import LimitedServer, allow_files  # noqa: PLC0415
    from fcil.deployment.flower.limits import LIMITS  # noqa: PLC0415

    setattr(node_auth, "TIMESTAMP_TOLERANCE", SLOWEST)  # noqa: B010 (checked after the body; ours, before it, is short)
    allow_files(LIMITS.files)
    module = sys.modules[flower_superlink.__module__]
    config = module._parse_superlink_lifespan_config()
    application = create_app(config, module.SuperLinkLifespan)
    state = application.state.linkstate_factory.state()
    server = LimitedServer(
        AuthMiddleware(application, secret, state.get_node_id_by_public_key, not config.enable_supernode_auth),
        host=config.host,
        port=config.port,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )
    signal.signal(signal.SIGHUP, lambda *_: server.reload_certificate())
    server.run()


if __name__ == "__main__":
    main()
