"""A model that is replaced when the release, run or file behind it changes, without an interruption."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fcil.core.errors import FcilError
from fcil.core.files import exists
from fcil.experiment.model_file import load_model, model_file
from fcil.experiment.predictor import Predictor

LOOK = 1.0  # seconds between two looks for another model
CHECKPOINT = "checkpoint.fcil"  # of a run without a model file
Stamp = tuple[str, int, int, int]  # the file, its inode, its size and its time


@dataclass(frozen=True)
class LoadedModel:
    """A predictor, and a name for it: the release's folder, or the file."""

    predictor: Predictor
    name: str


class FollowedModel:
    """The newest model at a place; a request keeps the one that it has begun with."""

    def __init__(self, place: Path, device: str, say: Callable[[str], None]) -> None:
        """Load the model, and raise an error if there is none."""
        self.place = place
        self.device = device
        self.say = say
        self._stamp = self._found()
        self.loaded = self._load()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stopped.wait(LOOK):
            self.look()

    def look(self) -> None:
        """Load the model if there is another one; the former stays if the new one cannot be loaded."""
        try:
            stamp = self._found()
            if stamp != self._stamp:
                self._stamp = stamp
                self.loaded = self._load()
                self.say(f"now {self.loaded.name}")
        except (FcilError, OSError, MemoryError, RuntimeError) as error:
            self.say(f"warning: {self.loaded.name} stays: {error}")

    def _load(self) -> LoadedModel:
        predictor = load_model(self.place, self.device)
        file = Path(self._stamp[0])
        return LoadedModel(predictor, str(file.parent.name if file.parent.parent.name == "releases" else file))

    def _found(self) -> Stamp:
        """Return what identifies the present model; a file that is not there is missed when it is loaded."""
        file = model_file(self.place)
        if self.place.is_dir() and not exists(file):
            file = self.place / CHECKPOINT
        try:
            found = file.stat()
        except FileNotFoundError:
            return str(file), 0, 0, 0
        return str(file), found.st_ino, found.st_size, found.st_mtime_ns

    def close(self) -> None:
        """Stop following."""
        self._stopped.set()
        self._thread.join()
