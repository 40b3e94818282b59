"""One case: damaged input, what may come of it, and what was found where something else does."""

from __future__ import annotations

import base64
import json
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from fcil.core.errors import LONGEST, FcilError

READ, REFUSED = "read", "refused"
SECONDS = 10.0  # of the processor for one case; most take a hundredth
ROOM = 20  # characters of a sentence beyond the longest: what stands for the middle of a longer one, and "error: "


@dataclass(frozen=True)
class Damage:
    """The files that are not as they were written; None: one that is missing.

    With `forged` the digests were put right after the damage, so that another content may be read in good faith.
    """

    files: dict[str, bytes | None]
    forged: bool = False

    def dump(self, kind: str) -> str:
        """Return the damage as text from which it can be repeated."""
        files = {name: None if data is None else base64.b64encode(data).decode() for name, data in self.files.items()}
        return json.dumps({"kind": kind, "forged": self.forged, "files": files})

    @classmethod
    def load(cls, text: str) -> tuple[str, Damage]:
        """Return what `dump` wrote: the kind and the damage."""
        found = json.loads(text)
        files = {name: None if data is None else base64.b64decode(data) for name, data in found["files"].items()}
        return found["kind"], cls(files, found["forged"])


@dataclass(frozen=True)
class Kind:
    """A kind of input: how its damage is drawn, and how it is read, in a folder that is empty before."""

    name: str
    share: int  # of all cases, relative to the other kinds
    whole: Callable[[], Damage]  # without any damage
    draw: Callable[[Random], Damage]
    play: Callable[[Damage, Path], None]

    def damage(self, seed: int, number: int) -> Damage:
        """Return the damage of the case with this number; the first has none, so that refusing all is no way out."""
        return self.whole() if number == 0 else self.draw(Random(f"{seed} {self.name} {number}"))


class FindingError(Exception):
    """Something came of a case that may not."""


class TooLongError(BaseException):
    """A case took too long; nothing that catches errors catches this."""


def judge(kind: Kind, damage: Damage, folder: Path, seconds: float = SECONDS) -> str:
    """Return whether the damaged input was read or refused; raise a FindingError for anything else."""
    try:
        with warnings.catch_warnings(), _limited(seconds):
            warnings.simplefilter("error")
            kind.play(damage, folder)
    except FindingError:
        raise
    except FcilError as error:
        check_sentence(str(error))
        return REFUSED
    except TooLongError as error:
        raise FindingError(f"no end within {seconds} seconds of the processor, in\n{traceback.format_exc()}") from error
    except BaseException as error:
        raise FindingError(traceback.format_exc()) from error
    return READ


def check_sentence(text: str) -> None:
    """Raise a FindingError unless a text is one line that a terminal can show."""
    if not text.strip() or not text.isprintable() or len(text) > LONGEST + ROOM:
        raise FindingError(f"not one line of at most {LONGEST} characters that can be shown: {text[: 2 * LONGEST]!r}")


def check_same(found: object, *wanted: object) -> None:
    """Raise a FindingError unless what was read is what was once written."""
    if found not in wanted:
        raise FindingError("damaged input was read as something that was never written")


def all_of(*steps: Callable[[], None]) -> None:
    """Take all steps, even where one is refused, and raise the last refusal."""
    refusal: FcilError | None = None
    for step in steps:
        try:
            step()
        except FcilError as error:
            check_sentence(str(error))
            refusal = error
    if refusal is not None:
        raise refusal


def write_files(folder: Path, whole: dict[str, bytes], damage: Damage) -> None:
    """Write the files of a sample with those that are damaged in their places."""
    for name, data in {**whole, **damage.files}.items():
        if data is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise a TooLongError once the block has taken so many seconds of the processor, whatever else it serves."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    former = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
