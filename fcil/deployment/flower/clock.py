"""The difference between this machine's clock and the server's, which decides whether a signature is young enough."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fcil.core.net import split_address
from fcil.deployment.flower.limits import LIMITS

BLUR = 2.0  # seconds by which a Date may be off: it has whole seconds, and the server renews it every second
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class Greeting:
    """By how many seconds our clock is ahead of a server's, and when its certificate ends, as far as it says."""

    ahead: float | None = None
    until: datetime | None = None


def knock(server: str, context: ssl.SSLContext | None, patience: float) -> Greeting:
    """Call a server once, and return what it says of its time and its certificate.

    Without a context it is called over plain HTTP. Errors of TLS and of the network are raised.
    """
    host, port = split_address(server, "--server")
    line: http.client.HTTPConnection
    if context is None:
        line = http.client.HTTPConnection(host, port, timeout=patience)
    else:
        line = http.client.HTTPSConnection(host, port, timeout=patience, context=context)
    try:
        line.connect()
        until = _end_of_certificate(line.sock)
        try:
            line.request("HEAD", "/")
            return Greeting(ahead_of(line.getresponse().getheader("Date"), time.time()), until)
        except http.client.HTTPException:
            return Greeting(None, until)
    finally:
        line.close()


def _end_of_certificate(line: socket.socket) -> datetime | None:
    """Return when the certificate at the other end of a connection ends; an unverified one is not looked at."""
    found = (line.getpeercert() or {}) if isinstance(line, ssl.SSLSocket) else {}
    end = found.get("notAfter")
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC) if isinstance(end, str) else None


def ahead_of(date: str | None, now: float) -> float | None:
    """Return by how many seconds a moment is after an HTTP date, or None if there is no readable date.

    >>> ahead_of("Thu, 01 Jan 1970 00:01:00 GMT", 100.0), ahead_of("soon", 100.0), ahead_of(None, 100.0)
    (39.0, None, None)
    """
    try:
        # A Date is cut to whole seconds and up to one more old, so on average the server's clock says one more.
        return now - parsedate_to_datetime(date or "").timestamp() - BLUR / 2
    except ValueError:
        return None


def misfit(ahead: float | None) -> str | None:
    """Return a sentence about our clock if the server certainly refuses our signatures."""
    if ahead is None or -LIMITS.behind - BLUR < ahead < LIMITS.ahead + BLUR:
        return None
    return (
        f"{difference(ahead)}, and the server takes signatures from {LIMITS.behind:.0f} s behind its clock to "
        f"{LIMITS.ahead:.0f} s ahead; set this machine's clock, or have the server's set if that is the wrong one"
    )


def notable(ahead: float | None) -> str | None:
    """Return a warning if the clocks differ by more than a Date may be off."""
    if ahead is None or abs(ahead) <= BLUR:
        return None
    return f"{difference(ahead)}; beyond {LIMITS.ahead:.0f} s ahead or {LIMITS.behind:.0f} s behind it refuses us"


def difference(ahead: float) -> str:
    """Return a difference between the clocks in words.

    >>> difference(86412.0)
    "this machine's clock is 1 d ahead of the server's"
    >>> difference(-5400.4)
    "this machine's clock is 1 h 30 min behind the server's"
    """
    rest, words = round(abs(ahead)), []
    rest = rest if rest < 600 else round(rest / 60) * 60  # a Date is not exact to the second
    for size, unit in UNITS:
        count, rest = divmod(rest, size)
        words.append((count, unit))
    first = next((place for place, (count, _) in enumerate(words) if count), len(words) - 1)
    shown = [f"{count} {unit}" for count, unit in words[first : first + 2] if count] or ["0 s"]
    return f"this machine's clock is {' '.join(shown)} {'ahead of' if ahead > 0 else 'behind'} the server's"
