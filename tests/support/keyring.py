"""Folders of keys of one small consortium, complete."""

from __future__ import annotations

import shutil
from pathlib import Path

from fcil.deployment.keys.make import make_proxy_keys, make_secret, make_server_keys, make_site_keys


def consortium(place: Path) -> Path:
    """Make the folders server, berlin and proxy, each with what the others send to it."""
    make_server_keys(place / "server", ["fl.example.org", "10.0.0.7"])
    make_site_keys(place / "berlin", "berlin")
    make_proxy_keys(place / "proxy")
    make_secret(place / "berlin" / "consortium.secret")
    shutil.copy(place / "berlin" / "consortium.secret", place / "proxy")
    shutil.copy(place / "proxy" / "proxy.pub", place / "berlin")
    for party in ("berlin", "proxy"):
        shutil.copy(place / "server" / "ca.crt", place / party)
    return place
