"""The ClientApp: it plays whichever participant the server sends."""

from fcil.federation.engines.flower.app import client_app as app

__all__ = ["app"]
