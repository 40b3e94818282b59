"""Releases at a site: the current one and the one before, each with its classes named as far as the site knows them.

releases/0007-1790000000/model.safetensors   release 7, the current one since that second
releases/0007-1790000000/release.json        what the server said of it
releases/current                             a link to the folder of the current one, swapped in one step
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fcil.core.errors import DamagedError
from fcil.core.files import PARTIAL, exists, point_to, read_json, seal_json, write_folder
from fcil.deployment.transport.messages import Release
from fcil.experiment.model_file import CURRENT, RELEASES
from fcil.experiment.model_file import FILE as MODEL_FILE

ENTRY = "release.json"


class HeldReleases:
    """The releases in a site's state folder."""

    def __init__(self, state: Path) -> None:
        self.folder = state / RELEASES

    @property
    def current(self) -> Path:
        """Return the link to the folder of the current release."""
        return self.folder / CURRENT

    @property
    def since(self) -> int:
        """Return since when the current release has been that, 0 without one or if it is damaged."""
        return int(self._entry().get("since", 0))

    def break_in_lineage(self, release: Release) -> str:
        """Return a sentence if a release does not continue the lineage of the current one as far as that can be told.

        A server that was restored from a backup, or whose people rewrote its history, gives a number away twice.
        """
        held = self._entry()
        number, digest = held.get("number"), held.get("identity")
        again = release.number == number and release.digest != digest
        if again or (number is not None and release.number == number + 1 and release.previous != digest):
            return (
                f"release {release.number} does not follow release {number}, which this site has: the server was "
                "restored, or its releases were changed"
            )
        return ""

    def take(self, release: Release, since: int, model: bytes) -> None:
        """Store a release and make it the current one; a kill or a full disk leaves the former one as it was."""
        place = self.folder / f"{release.number:04}-{since}"
        before = self._target()
        if exists(place):  # written, and then killed before the swap, or damaged
            shutil.rmtree(place)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        document = {**asdict(release), "identity": release.digest, "since": since}
        write_folder(place, {MODEL_FILE: model, ENTRY: seal_json(document)})
        point_to(self.current, place.name)
        self._drop({place.name, before})

    def _drop(self, kept: set[str]) -> None:
        """Remove all but the current release and the one before, which a program may just be reading."""
        for path in (*self.folder.glob("[0-9]*"), *self.folder.glob(f".*{PARTIAL}")):
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _target(self) -> str:
        return str(self.current.readlink()) if self.current.is_symlink() else ""

    def _entry(self) -> dict[str, Any]:
        """Return what the server said of the current release; nothing if there is none or it is damaged."""
        if not exists(self.current / MODEL_FILE):
            return {}
        try:
            found = read_json(self.current / ENTRY)
            return found if all(isinstance(found.get(key), int) for key in ("since", "number")) else {}
        except DamagedError:
            return {}
