"""Colours, markers and dashes of curves: a method looks the same in every figure and every run."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# After Okabe and Ito, distinguishable with any kind of colour vision, on light and dark pages; only one is orange.
PALETTE = ("#0b7bc1", "#d55e00", "#009e73", "#cc79a7", "#8a8d0f", "#56b4e9", "#7b5fb0", "#7f7f7f")
LOOKS = 64  # that differ
MARKERS = "osDPX^v<"  # of matplotlib; plotly has the same ones under the numbers 0 to 7
METHODS = (
    *("glfc", "mosaic", "icarl", "bic", "dde", "finetune", "lga", "joint"),
    *("podnet", "lwf", "ewc", "fedprox", "ssil", "geodl", "target", "fedcbdr"),
    *("re-fed", "glfc-wo-cgc", "glfc-wo-crd", "glfc-wo-prs"),
)


@dataclass(frozen=True)
class Look:
    """The look of a curve; `marker` is a number from 0 to 7."""

    colour: str
    marker: int
    dashed: bool


def look(place: int) -> Look:
    """Return one of the 64 looks that differ in colour, marker or dash."""
    turn = place // len(PALETTE)
    return Look(PALETTE[place % len(PALETTE)], (place + turn) % 8, turn % 2 == 1)


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """Return a look per curve, by its label; `methods` has the method of each label.

    A method of fcil has a fixed place. Another one gets a place by its name, and the next free one if that is taken, as
    a second curve of the same method does.

    >>> looks({"icarl": "icarl"})["icarl"] == looks({"glfc": "glfc", "icarl": "icarl"})["icarl"]
    True
    """
    taken: dict[int, str] = {}
    for label in sorted(methods, key=lambda label: (methods[label] not in METHODS, label)):
        place = _wanted(methods[label])
        while place % LOOKS in taken and len(taken) < LOOKS:
            place += 1
        taken[place % LOOKS] = label
    places = {label: place for place, label in taken.items()}
    return {label: look(places.get(label, _wanted(methods[label]))) for label in methods}


def _wanted(method: str) -> int:
    return METHODS.index(method) if method in METHODS else zlib.crc32(method.encode()) % LOOKS


def shortened(names: Sequence[str], longest: int = 18, most: int = 40) -> dict[str, list[str]]:
    """Return ticks for an axis of names: long names are shortened, and of many names some are left out.

    An ellipsis replaces the end of a name, or the middle where names would look alike.

    >>> shortened(["cat", "a very long name of a class"], 10)
    {'tickvals': ['cat', 'a very long name of a class'], 'ticktext': ['cat', 'a very lo…']}
    >>> shortened(["a class with the number 1", "a class with the number 2"], 10)["ticktext"]
    ['a cla…er 1', 'a cla…er 2']
    """
    if all(len(name) <= longest for name in names):
        return {}
    shown = list(names)[:: -(-len(names) // most)]
    texts = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in shown]
    if len(set(texts)) < len(texts):
        half = longest // 2
        texts = [name if len(name) <= longest else f"{name[: longest - half]}…{name[1 - half :]}" for name in shown]
    return {"tickvals": shown, "ticktext": texts}
