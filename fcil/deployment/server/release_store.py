"""Releases in a server's folder: numbered models with their origin, and the choice of the current one.

    releases/0007/model.safetensors   the model, whose classes are ids
    releases/0007/release.json        its accuracy and origin, with the digest of the release before
    releases/choice.json              the current release, and since when
    releases/current                  a link to its folder

The server and the operators' commands change the choice under a lock, so each choice is later than the one before.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from fcil.core.errors import ConfigError, DamagedError, FileError, reason
from fcil.core.files import PARTIAL, exists, point_to, read_json, seal_json, write_folder, write_json
from fcil.core.lock import Lock
from fcil.core.settings_table import SettingsTable
from fcil.deployment.transport.messages import Release
from fcil.experiment.model_file import CURRENT, RELEASES
from fcil.experiment.model_file import FILE as MODEL_FILE

ENTRY, CHOICE, ASKED = "release.json", "choice.json", "asked"
KEPT = 20  # newest releases whose models stay, with the current one


class ReleaseEntry(SettingsTable):
    """A release as the server stores it."""

    number: int = Field(ge=1)
    federation: str
    round: int  # after which it was frozen, from 1
    model: str  # digest
    catalogue: tuple[str, ...]
    records: str  # digest of the records of all rounds so far
    previous: str  # digest of the release before; empty for the first
    made: int  # seconds since 1970
    per_class: dict[str, tuple[int, int]] = Field(default_factory=dict)  # right and all hold-out images
    kept_back: str = ""  # why it was not made the current one

    @property
    def digest(self) -> str:
        """Return the digest of the release as it is sent, which the next one names."""
        return self.message().digest

    @property
    def images(self) -> int:
        """Return the hold-out images that the accuracy covers."""
        return sum(known for _, known in self.per_class.values())

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy in percent, or None if it was not measured."""
        return self.accuracy_on(set(self.per_class))

    def accuracy_on(self, classes: set[str]) -> float | None:
        """Return the accuracy on some of the classes that it covers."""
        counts = [count for name, count in self.per_class.items() if name in classes]
        images = sum(known for _, known in counts)
        return 100 * sum(right for right, _ in counts) / images if images else None

    def message(self) -> Release:
        """Return the release as it is sent, without counts per class, which would tell what single sites hold."""
        return Release(
            self.number,
            self.model,
            self.round,
            self.catalogue,
            self.records,
            self.previous,
            self.accuracy,
            len(self.per_class),
            self.images,
        )

    def __str__(self) -> str:
        found = self.accuracy
        covered = f"{len(self.per_class)} of {len(self.catalogue)} classes"
        measured = "accuracy not measured" if found is None else f"accuracy {found:.1f} % on {covered}"
        return f"release {self.number}, round {self.round}, {measured}"


class CurrentRelease(SettingsTable):
    """The current release, and since when it has been the current one."""

    number: int
    since: int  # seconds since 1970; later than those of all former choices


class ReleaseStore:
    """The releases of one server."""

    def __init__(self, run: Path) -> None:
        self.folder = run / RELEASES

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of all releases, ascending."""
        return sorted(int(path.parent.name) for path in self.folder.glob(f"[0-9]*/{ENTRY}"))

    @property
    def entries(self) -> list[ReleaseEntry]:
        """Return all releases, the oldest first."""
        return list(map(self.entry, self.numbers))

    @property
    def newest(self) -> ReleaseEntry | None:
        """Return the newest release."""
        return self.entry(self.numbers[-1]) if self.numbers else None

    @property
    def choice(self) -> CurrentRelease | None:
        """Return the choice of the current release, once there is one."""
        path = self.folder / CHOICE
        if not exists(path):
            return None
        try:
            return CurrentRelease.model_validate(read_json(path))
        except ValidationError as error:
            raise DamagedError(f"{path} is damaged: {reason(error)}") from error

    def entry(self, number: int) -> ReleaseEntry:
        """Return a release by its number."""
        path = self._place(number) / ENTRY
        if not exists(path):
            known = ", ".join(map(str, self.numbers[-KEPT:])) or "none"
            raise ConfigError(f"release {number}: there is no such release in {self.folder}; there are {known}")
        return _read_entry(path)

    def model_file(self, number: int) -> Path:
        """Return the file of a release's model."""
        path = self._place(number) / MODEL_FILE
        if not exists(path):
            raise ConfigError(f"release {number}: its model is gone; the models of the newest {KEPT} are kept")
        return path

    def add(self, entry: ReleaseEntry, model: bytes) -> None:
        """Store a release, whole or not at all."""
        self._make()
        files = {MODEL_FILE: model, ENTRY: seal_json(entry.model_dump(mode="json"))}
        write_folder(self._place(entry.number), files)

    def choose(self, number: int) -> CurrentRelease:
        """Make a release the current one from now on."""
        self.model_file(number)
        with Lock(self.folder / ".lock"):
            former = self.choice
            choice = CurrentRelease(number=number, since=max(int(time.time()), former.since + 1 if former else 0))
            write_json(self.folder / CHOICE, choice.model_dump(mode="json"))
            point_to(self.folder / CURRENT, self._place(number).name)
        return choice

    def drop_old(self) -> None:
        """Remove the models of old releases; their entries stay."""
        choice = self.choice
        for number in self.numbers[:-KEPT]:
            if choice is None or number != choice.number:
                with suppress(OSError):
                    (self._place(number) / MODEL_FILE).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what killed writes of the server have left, and let the link follow the choice."""
        for path in self.folder.glob(f".*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)
        choice = self.choice
        if choice is not None:
            point_to(self.folder / CURRENT, self._place(choice.number).name)

    # --- what operators ask for ---------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask the server for a release."""
        self._make()
        write_json(self.folder / ASKED, {"time": int(time.time())})

    @property
    def asked(self) -> bool:
        """Return whether an operator has asked for a release."""
        return exists(self.folder / ASKED)

    def answered(self) -> None:
        """Note that the release that was asked for is there."""
        with suppress(OSError):
            (self.folder / ASKED).unlink(missing_ok=True)

    def _make(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.folder} cannot be made a folder: {reason(error)}") from error

    def _place(self, number: int) -> Path:
        return self.folder / f"{number:04}"


def _read_entry(path: Path) -> ReleaseEntry:
    try:
        return ReleaseEntry.model_validate(read_json(path), strict=False)
    except ValidationError as error:
        raise DamagedError(f"{path} is damaged: {reason(error)}") from error
