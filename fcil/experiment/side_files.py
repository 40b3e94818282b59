"""Side files of a run: data too large for a line of records.jsonl, sealed, and named there by its digest.

A side file is written before the line that names it. A file that a kill leaves without a line is written again, the
same, when its round is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fcil.core.errors import DamagedError
from fcil.core.files import read_sealed, write_sealed
from fcil.core.messages import CodecError, Message, decode, encode
from fcil.federation.diagnostics import Confusion, PrototypeComparisons
from fcil.federation.round_record import RoundRecord

CONFUSION, PROTOTYPES = "confusion", "prototypes"
KINDS: dict[str, type[Message]] = {CONFUSION: Confusion, PROTOTYPES: PrototypeComparisons}
MOST_CLASSES = 500  # of a confusion matrix that is kept
MOST_BYTES = 1 << 20  # of the prototypes of a round
M = TypeVar("M", bound=Message)


def place(folder: Path, kind: str, round: int) -> Path:
    """Return where a round's side file of a kind lies."""
    return folder / f"{kind}-{round:06d}.fcil"


def attach(folder: Path, kind: str, round: int, content: Message) -> str:
    """Write a side file and return its digest, for the round's record."""
    return write_sealed(place(folder, kind, round), encode(content))


def read_attached(
    folder: Path, records: Sequence[RoundRecord], kind: str, expected: type[M]
) -> tuple[dict[int, M], list[str]]:
    """Return the side files of a kind by round, and a sentence for each that is lost: a run is shown without it."""
    found: dict[int, M] = {}
    lost: list[str] = []
    for record in records:
        wanted = record.attached.get(kind)
        if wanted is None:
            continue
        path = place(folder, kind, record.round)
        try:
            content, digest = read_sealed(path)
            if digest != wanted:
                raise DamagedError(f"{path} is not the file that records.jsonl names: its digest is another")
            found[record.round] = decode(content, expected)
        except (DamagedError, CodecError) as error:
            lost.append(str(error))
    return found, lost


def fitting(prototype_comparisons: PrototypeComparisons) -> PrototypeComparisons:
    """Return as many of the prototypes, from the first on, as take up no more than MOST_BYTES."""
    kept, size = [], 0
    for item in prototype_comparisons.items:
        size += 3 * item.original.numel()
        if size > MOST_BYTES:
            break
        kept.append(item)
    return PrototypeComparisons(tuple(kept))
