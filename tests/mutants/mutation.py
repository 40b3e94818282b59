"""Named mistakes: a piece of the code, what it is replaced by, and the tests that must notice."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Mutation:
    """One mistake; `old` stands exactly once in `file`, and `tests` are paths or node ids for pytest."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Put the mistake into the copy of the project at `root`."""
        path = root / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its old text occurs {text.count(self.old)} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new), "utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # a change of one second and no length would not be seen


def read_mutations(folder: Path = HERE) -> list[Mutation]:
    """Return the mutations of all files in a folder, in the order of files and lines."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutation"]:
            found.append(Mutation(**{**entry, "tests": tuple(entry["tests"])}))
    return found
