"""The catalogue: class ids to outputs; its growth is the only clock of the federation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fcil.core.messages import Message, RoundContext

LONGEST_ID = 64  # characters of a class id that is believed
MOST_CLASSES = 100_000
MOST_ANNOUNCED = 10_000  # by one site in a round; one that has more waits for the next


@dataclass(frozen=True)
class Catalogue(Message):
    """Known class ids in the order of their outputs, the head's width after each block, and when the last one began."""

    classes: tuple[str, ...] = ()
    blocks: tuple[int, ...] = ()
    began: int = 0  # round in which the newest block began

    def with_classes(self, announced: Iterable[str], round: int, merge_rounds: int) -> Catalogue:
        """Return the catalogue with outputs for the ids it lacks: short ones first, so numbers come in their order.

        A growth at most `merge_rounds` rounds after the newest block began widens that block; any other starts one.
        Once there are MOST_CLASSES, further ids are left out.
        """
        known = set(self.classes)
        new = in_order(found for found in announced if found not in known)[: MOST_CLASSES - len(known)]
        if not new:
            return self
        classes = (*self.classes, *new)
        if self.blocks and round - self.began <= merge_rounds:
            return Catalogue(classes, (*self.blocks[:-1], len(classes)), self.began)
        return Catalogue(classes, (*self.blocks, len(classes)), round)

    def context(self, round: int) -> RoundContext:
        """Return what everybody may know about a round."""
        return RoundContext(round, self.classes, self.blocks, round - self.began)


def in_order(ids: Iterable[str]) -> list[str]:
    """Return each id once, short ones first.

    >>> in_order(["10", "9", "b", "10"])
    ['9', 'b', '10']
    """
    return sorted(set(ids), key=lambda found: (len(found), found))


def is_class_id(found: str) -> bool:
    """Say whether a text can be a class id at all."""
    return 0 < len(found) <= LONGEST_ID and found.isprintable()


def believable(announced: Sequence[str]) -> set[str]:
    """Return the ids of one site's announcement that can be ids at all, and none of more than a site may announce.

    Each announcement is judged by itself. What a hostile site makes up in a round is a tenth of the catalogue at most,
    so there is room for the classes of the others.
    """
    return {found for found in announced if is_class_id(found)} if len(announced) <= MOST_ANNOUNCED else set()
