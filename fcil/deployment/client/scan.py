"""The files in a site's folder, images by class, with the stat values that tell whether one has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from fcil.core.errors import reason
from fcil.data.datasets.class_folders import SUFFIXES
from fcil.data.datasets.image import BrokenPictureError

LARGEST = 256 << 20  # bytes of the largest file that is read; an image is far smaller

Tell = Callable[[str], None]  # a warning


class ChangingError(Exception):
    """A file changed while it was read; it is read again in the next round."""


class FileStat(NamedTuple):
    """Size and times (nanoseconds) of a file, by which a change is noticed."""

    size: int
    modified: int
    changed: int  # of the inode: new permissions change it too

    @classmethod
    def of(cls, found: os.stat_result) -> FileStat:
        """Return the values in a stat result."""
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class FoundFile(NamedTuple):
    """A file: its class if it is an image, its path in the site's folder, its stat values, and if it is regular."""

    class_name: str
    name: str
    stat: FileStat
    regular: bool


def find_images(folder: Path, tell: Tell) -> Iterator[FoundFile]:
    """Yield the image files of each class, sorted by name, with a warning for each unreadable folder.

    Each folder is a class, as in a data set (`fcil.data.datasets.class_folders`). Files below it belong to that class;
    hidden files and files with other endings are ignored. A folder that is a link is no class: one to `.` would take
    the images of all others.
    """
    root = os.path.realpath(folder)
    for entry in _entries(folder, tell):
        if _is_folder(entry, follow=True):
            if entry.is_symlink():
                tell(f"{entry.path} is left out: it is a link, and a class needs a folder of its own")
                continue
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                tell(f"{entry.path} is left out: the name of a class must be UTF-8")
                continue
            yield from _pictures_below(entry.path, entry.name, entry.name, tell, root)


def find_files(folder: Path, suffixes: tuple[str, ...], tell: Tell) -> Iterator[FoundFile]:
    """Yield the files with these endings that lie in a folder itself, sorted by name; links out of it are left out."""
    root = os.path.realpath(folder)
    for entry in _entries(folder, tell):
        if entry.name.lower().endswith(suffixes) and not _is_folder(entry, follow=True):
            yield from _found(entry, "", entry.name, tell, root)


def _pictures_below(place: str, class_name: str, name: str, tell: Tell, root: str) -> Iterator[FoundFile]:
    for entry in _entries(place, tell):
        below = f"{name}/{entry.name}"
        if _is_folder(entry, follow=False):
            yield from _pictures_below(entry.path, class_name, below, tell, root)
        elif entry.name.lower().endswith(SUFFIXES) and not _is_folder(entry, follow=True):
            yield from _found(entry, class_name, below, tell, root)


def _found(entry: os.DirEntry[str], class_name: str, name: str, tell: Tell, root: str) -> Iterator[FoundFile]:
    """Yield a file, unless it is a link out of the site's folder or cannot be looked at."""
    if entry.is_symlink() and not _is_within(entry.path, root):
        tell(f"{entry.path} is left out: it is a link out of the site's folder")
        return
    try:
        found = entry.stat()
    except FileNotFoundError:  # deleted meanwhile
        return
    except OSError as error:
        tell(f"{entry.path} is left out: {reason(error)}")
        return
    yield FoundFile(class_name, name, FileStat.of(found), S_ISREG(found.st_mode))


def _entries(place: Path | str, tell: Tell) -> list[os.DirEntry[str]]:
    """Return the entries of a folder that are not hidden, sorted; none if it cannot be read."""
    try:
        with os.scandir(place) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        tell(f"{place} cannot be read as a folder: {reason(error)}")
        return []


def _is_folder(entry: os.DirEntry[str], follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError:
        return False


def _is_within(path: str, root: str) -> bool:
    return os.path.realpath(path).startswith(f"{root.rstrip('/')}/")


def read_content(path: Path, entry: FoundFile) -> bytes:
    """Return the bytes of a file, which must not have changed since it was found."""
    if not entry.regular:  # opening a pipe would block
        raise BrokenPictureError("it is not a file")
    if entry.stat.size > LARGEST:
        raise BrokenPictureError(f"it has {entry.stat.size} bytes, more than {LARGEST}")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST)
            found = FileStat.of(os.fstat(file.fileno()))
    except OSError as error:
        raise BrokenPictureError(reason(error)) from error
    if found[:2] != entry.stat[:2] or len(content) != found.size:
        raise ChangingError
    return content
