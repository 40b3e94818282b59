"""The catalogue: class ids to outputs; its growth is the only clock of the federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

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
        if not self.begins_block(round, merge_rounds):
            return Catalogue(classes, (*self.blocks[:-1], len(classes)), self.began)
        return Catalogue(classes, (*self.blocks, len(classes)), round)

    def begins_block(self, round: int, merge_rounds: int) -> bool:
        """Return whether a growth in this round starts a block."""
        return not self.blocks or round - self.began > merge_rounds

    def context(self, round: int) -> RoundContext:
        """Return the public facts of a round."""
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
    """Return the well-formed ids of one site's announcement, or none if it announces more than it may.

    Each announcement is judged by itself. A hostile site's made-up ids of a round are a tenth of the catalogue at most,
    so there is room for the classes of the others.
    """
    return {found for found in announced if is_class_id(found)} if len(announced) <= MOST_ANNOUNCED else set()


@dataclass(frozen=True)
class Ledger(Message):
    """The number of classes that each client has brought, by its number."""

    coming: dict[str, int] = field(default_factory=dict)  # announced since the head last grew
    newest: dict[str, int] = field(default_factory=dict)  # in the newest block
    untrained: dict[str, int] = field(default_factory=dict)  # width of the head before classes it has not trained yet

    def allowed(self, client: int, most: int, new_block: bool) -> int:
        """Return how many more classes a client may bring to the next growth, which may start a block.

        A client has to train on the classes of a block before it can bring classes to another one.
        """
        key = str(client)
        if new_block and key in self.untrained:
            return 0
        return max(most - self.coming.get(key, 0) - (0 if new_block else self.newest.get(key, 0)), 0)

    def announced(self, client: int, classes: int) -> Ledger:
        """Return the ledger after a client has announced so many classes that will get an output."""
        if classes == 0:
            return self
        return replace(self, coming={**self.coming, str(client): self.coming.get(str(client), 0) + classes})

    def grown(self, new_block: bool, width: int) -> Ledger:
        """Return the ledger once the classes have their outputs, in a head that had this width before their block."""
        before = {} if new_block else self.newest
        newest = {client: before.get(client, 0) + self.coming.get(client, 0) for client in {**before, **self.coming}}
        return Ledger({}, newest, {**dict.fromkeys(self.coming, width), **self.untrained})

    def trained(self, reports: Mapping[int, Tensor | None]) -> Ledger:
        """Return the ledger after these clients have trained, with their samples per class where they are counted."""
        waiting = {
            client: width
            for client, width in self.untrained.items()
            if int(client) not in reports or not _counts_any(reports[int(client)], width)
        }
        return self if waiting == self.untrained else replace(self, untrained=waiting)


def _counts_any(counts: Tensor | None, width: int) -> bool:
    """Return whether samples of a class from this output on are counted; uncounted ones are believed."""
    return counts is None or bool((counts[width:] > 0).any())


class Admission:
    """Class ids that clients announce, as far as they are believed and a client may bring so many."""

    def __init__(self, ledger: Ledger, catalogue: Sequence[str], most: int | None, new_block: bool) -> None:
        self.ledger = ledger
        self.known = set(catalogue)
        self.most = most
        self.new_block = new_block
        self.ids: set[str] = set()

    def announce(self, client: int, announced: Sequence[str]) -> str | None:
        """Take in one client's ids, and return an objection to their number, if there is one."""
        taken = in_order(believable(announced) - self.known)[: self.allowed(client)]
        self.ids |= {*taken}
        self.ledger = self.ledger.announced(client, len(taken))
        return self._excess(len(announced))

    def allowed(self, client: int) -> int:
        """Return how many classes a client may bring."""
        if self.most is None:
            return MOST_ANNOUNCED
        return self.ledger.allowed(client, self.most, self.new_block)

    def count(self, client: int, classes: int) -> str | None:
        """Take in the proxy's count of new ids in a client's box, and return an objection to it, if any."""
        self.ledger = self.ledger.announced(client, max(min(classes, self.allowed(client)), 0))
        return self._excess(classes)

    def _excess(self, classes: int) -> str | None:
        if self.most is None or classes <= self.most:
            return None
        return f"it announces {classes} new classes, federation.max_new_classes allows {self.most} in a block"
