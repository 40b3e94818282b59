"""Lines of text that people send to each other by mail: tagged fields, found again in whatever surrounds them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from fcil.core.errors import ConfigError
from fcil.core.files import exists, read_bytes

LONGEST = 1 << 20  # characters of a file that is searched for lines
END = "end"
GROUP, GROUPS = 4, 6  # letters of a fingerprint's groups, and their number: 120 bits


def dump_line(tag: str, fields: Sequence[str]) -> str:
    """Return a line with a tag and fields, which have no colons."""
    return ":".join((tag, *fields, END))


def find_lines(tag: str, given: str, option: str) -> list[tuple[str, ...]]:
    """Return the fields of all lines with a tag, in a text or in the file of this name.

    A mail may have broken lines, and have marked them as quoted.
    """
    text = given
    if not given.lstrip().startswith(tag):
        if not exists(Path(given)):
            raise ConfigError(f"{option} {given[:60]}: neither a file nor a line that begins with {tag}:")
        text = read_bytes(Path(given))[:LONGEST].decode("utf-8", "replace")
    found = re.findall(rf"{re.escape(tag)}:(.*?):[\s>]*{END}\b", text, re.DOTALL)
    if not found:
        raise ConfigError(f"{option} {given[:60]}: it has no whole line from {tag}: to :{END}")
    return [tuple(re.sub(r"[\s>]", "", one).split(":")) for one in found]


def dump_bytes(content: bytes) -> str:
    """Return bytes as a field."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def load_bytes(field: str) -> bytes:
    """Return the bytes of a field, or raise a ValueError."""
    try:
        return base64.b64decode(field + "=" * (-len(field) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def spoken(content: bytes) -> str:
    """Return a fingerprint that people read to each other: 120 bits of SHA-256 in groups of letters and digits.

    >>> spoken(b"fcil")
    'nvex-x4to-zmfj-3tgi-n3bd-4p5w'
    """
    text = base64.b32encode(hashlib.sha256(content).digest()).decode().lower()
    return "-".join(text[place : place + GROUP] for place in range(0, GROUP * GROUPS, GROUP))
