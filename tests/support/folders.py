"""A site's folder of images for a test, and a site that runs rounds on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fcil.core.messages import Diagnostics, RoundContext
from fcil.deployment.client.image_folder import SiteData
from fcil.methods import Setting, get_method
from fcil.methods.client import ClientState
from fcil.models import grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.trainer import Trainer
from support.clients import run_client
from support.objectives import MODEL, TRAIN
from support.trees import paint

SHAPE = (3, 8, 8)
NOTHING = torch.empty(0, dtype=torch.int64)


def class_id(name: str) -> str:
    """Return what a class is called on the wire."""
    return f"id of {name}"


def pixels_of(seed: int) -> np.ndarray:
    """Return what `paint` paints, as samples hold it."""
    drawn = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return drawn.transpose(2, 0, 1)


@dataclass(frozen=True)
class Counts:
    """How many images of a class are in use, retired and held out."""

    in_use: int
    retired: int
    held_out: int


def class_counts(site: SiteData) -> dict[str, Counts]:
    """Return how many images of each class a site has, by its name."""
    index, live = site._index, torch.zeros(len(site.samples), dtype=torch.bool)
    live[site.samples.held] = True
    parts = (live & ~index.held_out, ~live, index.held_out)
    tables = [torch.bincount(index.labels[part], minlength=len(index.ids)).tolist() for part in parts]
    return {name: Counts(*of_class) for name, *of_class in zip(index.class_names, *tables, strict=True)}


def age(path: Path, seconds: int) -> None:
    """Let a file have been modified some time before it was."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - seconds * 10**9))


class Place:
    """A folder of images and a state folder."""

    def __init__(self, root: Path, hold_out: float = 0.1) -> None:
        self.data = root / "data"
        self.state = root / "state"
        self.data.mkdir(parents=True)
        self.hold_out = hold_out

    def open(self) -> SiteData:
        """Return the site's data, as after a restart."""
        return SiteData.open(self.state, self.data, SHAPE, class_id, self.hold_out)

    def add(self, name: str, *seeds: int) -> list[Path]:
        """Paint pictures of a class, a minute ago, and return their files."""
        paths = [self.data / name / f"{seed}.png" for seed in seeds]
        for path, seed in zip(paths, seeds, strict=True):
            paint(path, seed)
            age(path, 60)
        return paths

    def spoil(self, name: str, content: bytes = b"no picture", seconds: int = 3600) -> Path:
        """Write a file that is no picture and was modified some time ago."""
        path = self.data / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        age(path, seconds)
        return path


class FolderSite:
    """A site that runs a method's real role, round after round."""

    def __init__(self, place: Place, method: str = "icarl", memory: int = 6) -> None:
        config = get_method(method).config()  # labels tell it of new classes
        self.role = get_method(method).build(config, Setting(memory, SHAPE, 1)).client
        self.place = place
        self.machine = Trainer(MODEL.model_copy(update={"mean": (0.5,) * 3, "deviation": (0.25,) * 3}), TRAIN)
        self.state: ClientState = self.role.init()
        self.former = self.state
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Go on from the state folder alone."""
        self.data = self.place.open()
        self.local = ClientContext.at(self.data.samples, self.machine)

    def freeze(self) -> Tensor:
        """Freeze the round that is next."""
        return self.data.freeze(self.number, self.role.in_use(self.state))

    def round(self, *catalogue: str, participate: bool = False) -> Diagnostics:
        """Play a round in which these classes have outputs, and retire what is no longer used."""
        samples = self.freeze()
        context = RoundContext(self.number, tuple(map(class_id, catalogue)), (len(catalogue),), 0)
        model = grow(initial_state(MODEL, 3, 0), len(catalogue), 1)
        state, _, measured = run_client(
            self.role, self.state, samples, self.local, context, model, participate=participate
        )
        self.former, self.state = self.state, state
        self.number += 1
        self.data.retire(torch.cat([self.role.in_use(self.state), self.role.in_use(self.former)]))
        return measured

    def names(self, indices: Tensor) -> list[str]:
        """Return the files that samples were read from, sorted."""
        return sorted(self.data._index.origins[index] for index in indices.tolist())
