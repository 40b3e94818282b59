"""Colours, markers and dashes of curves: a method looks the same in every figure and every run."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The first eight are after Okabe and Ito, distinguishable with any kind of colour vision. Only one of all is orange.
COLOURS = (
    *("#0b7bc1", "#d55e00", "#009e73", "#cc79a7", "#8a8d0f", "#56b4e9", "#7b5fb0", "#7f7f7f"),
    *("#b2182b", "#17a5b5", "#5c8f2e", "#c51b7d", "#3f51b5", "#a3b526", "#8b3a62", "#2f7f6f"),
    *("#9a86e0", "#6b9bd1", "#6fbf94", "#b05fa0"),
)
PALETTE = COLOURS[:8]  # for other series than methods
LATER = tuple(colour for colour in COLOURS if colour != "#d55e00")  # of looks with other dashes and markers
LOOKS = 160
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
    """Return one of the looks; the first 160 differ in colour, marker or dash."""
    if place < len(COLOURS):
        return Look(COLOURS[place], place % 8, dashed=False)
    turn, place = divmod(place - len(COLOURS), len(LATER))
    return Look(LATER[place], (place + turn + 1) % 8, dashed=turn % 2 == 0)


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
    if method in METHODS:
        return METHODS.index(method)
    return len(COLOURS) + zlib.crc32(method.encode()) % (LOOKS - len(COLOURS))


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
