"""Warnings about certificates, from sixty days before their end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from fcil.core.errors import FcilError
from fcil.deployment.keys.tls import read_certificate, timestamp

SOON = timedelta(days=60)


def days_left(path: Path, now: datetime | None = None) -> int | None:
    """Return the whole days until a certificate expires; None if it cannot be read."""
    try:
        return (read_certificate(path).not_valid_after_utc - timestamp(now)).days
    except FcilError:
        return None


def days_by_file(files: Mapping[str, Path]) -> dict[str, int]:
    """Return the days left of the certificates in files that can be read."""
    return {name: days for name, path in files.items() if (days := days_left(path)) is not None}


def expiry_warning(name: str, until: datetime, remedy: str, now: datetime | None = None) -> str | None:
    """Return a warning if a certificate ends soon.

    >>> from datetime import UTC
    >>> end = datetime(2027, 3, 1, tzinfo=UTC)
    >>> expiry_warning("ca.crt", end, "renew it", end - timedelta(days=60))
    'ca.crt expires on 2027-03-01, in 60 days; renew it'
    >>> expiry_warning("ca.crt", end, "renew it", end - timedelta(days=61))
    """
    left = until - timestamp(now)
    if left > SOON:
        return None
    return f"{name} expires on {until:%Y-%m-%d}, in {left.days} days; {remedy}"


def file_warnings(files: dict[Path, str], now: datetime | None = None) -> list[str]:
    """Return the warnings on certificates in files, each with its remedy; damaged ones are others' to report."""
    found: list[str | None] = []
    for path, remedy in files.items():
        try:
            found.append(expiry_warning(str(path), read_certificate(path).not_valid_after_utc, remedy, now))
        except FcilError:
            continue
    return [sentence for sentence in found if sentence is not None]
