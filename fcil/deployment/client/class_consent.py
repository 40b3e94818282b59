"""What a folder of a site needs to become a class: enough images, and a person's consent where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fcil.core.errors import ConfigError, FileError
from fcil.core.files import exists, read_bytes, write_atomically

LEAST = 5  # images of a class by default


@dataclass(frozen=True)
class ClassConsent:
    """The least images of a new class, and the file with the names of approved classes, one per line, if there is one.

    The file is read in every round, so a name that is added takes effect in a running site.
    """

    least: int = 1
    file: Path | None = None

    def allows(self, name: str) -> bool:
        """Return whether a folder of this name may become a class."""
        return self.file is None or name.strip() in approved(self.file)


def approved(file: Path) -> list[str]:
    """Return the names in a file; none if it is missing."""
    try:
        text = read_bytes(file).decode() if exists(file) else ""
    except UnicodeDecodeError as error:
        raise FileError(f"{file} cannot be read: its names must be UTF-8") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def approve(file: Path, name: str) -> bool:
    """Add a name to a file of approved classes; return False if it was there."""
    called = name.strip()
    if not called or not called.isprintable() or "/" in called:
        raise ConfigError(f"{name!r} is no name of a class: it should be that of a folder")
    names = approved(file)
    if called in names:
        return False
    write_atomically(file, "".join(f"{each}\n" for each in (*names, called)).encode())
    return True
