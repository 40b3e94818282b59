"""The frozen, typed messages that cross a border between client, server, proxy and disk.

A field may be an int, float, str, bool, None, a tensor (optionally `Annotated` with a `Shape`), another message, a
tuple of these, a dict from str to these, or one of these or None. A class with any other field cannot be defined (a
`Literal` is a str that `__post_init__` checks, an `int | str` two fields), and any other value cannot be encoded.

On the wire and on disk a message is named by its class: the classes of fcil by their bare name (`Bias`), those of
another package by that package and their name (`mypackage:Bias`). So packages need not know of each other's names, and
a class may move to another module of its package.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from fcil.core.messages.fields import Shape, field_hints

__all__ = [
    "Announcement",
    "Broadcast",
    "Diagnostics",
    "Failure",
    "Message",
    "Missing",
    "ModelParcel",
    "ModelState",
    "Notice",
    "Order",
    "Prototype",
    "Reply",
    "Report",
    "RoundContext",
    "Shape",
    "Teacher",
    "Teachers",
    "Weighted",
    "message_fields",
    "model_digest",
    "wire_name",
]

ModelState: TypeAlias = dict[str, Tensor]
OWN = __name__.partition(".")[0]  # the package whose messages have bare names
_hints: dict[type, dict[str, Any]] = {}  # types of each message's fields


class Message:
    """Base of all messages: a subclass is a frozen dataclass and is known to the codec by its `wire_name`."""

    registry: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        bases = [base for base in reversed(cls.__mro__) if base not in (object, Message)]
        found = [_hints.get(base) or field_hints(base, Message) for base in bases]
        name = wire_name(cls)
        other = Message.registry.get(name, cls)
        if _module(other) != _module(cls):
            raise TypeError(f"two messages are called {name}: in {_module(other)} and in {_module(cls)}")
        _hints[cls] = {key: hint for hints in found for key, hint in hints.items()}
        Message.registry[name] = cls


def wire_name(kind: type[Message]) -> str:
    """Return the name of a class of messages on the wire: its name, after that of its package unless it is fcil.

    >>> wire_name(Order)
    'Order'
    """
    package = _module(kind).partition(".")[0]
    return kind.__name__ if package == OWN else f"{package}:{kind.__name__}"


def _module(kind: type) -> str:
    """Return the module a class comes from, by its own name even where it was started with `python -m`."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started.name if kind.__module__ == "__main__" and started is not None else kind.__module__


@cache
def message_fields(kind: type[Message]) -> dict[str, Any]:
    """Return the fields of a message and their types, in order."""
    if "__dataclass_fields__" not in vars(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass; put @dataclass(frozen=True) above it")
    return {entry.name: _hints[kind][entry.name] for entry in fields(kind)}  # type: ignore[arg-type]


def model_digest(model: ModelState) -> str:
    """Return a name for a model that depends on every bit of it and on nothing else."""
    digest = hashlib.sha256()
    for name in sorted(model):
        tensor = model[name].detach().cpu().contiguous()
        digest.update(f"{len(name)}:{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class ModelParcel(Message):
    """One model on its way."""

    digest: str
    model: ModelState


@dataclass(frozen=True)
class RoundContext(Message):
    """The public facts of a round: the growth of the head, without tasks or a schedule."""

    round: int
    catalogue: tuple[str, ...]  # class ids in the order of the outputs; only the sites know what they stand for
    blocks: tuple[int, ...]  # head width after each growth, newest last
    rounds_since_growth: int  # rounds since the newest block began

    @property
    def classes(self) -> int:
        """Return the number of outputs (C in the paper's terms: old and new classes together)."""
        return len(self.catalogue)

    @property
    def old_classes(self) -> int:
        """Return the number of outputs that existed before the newest block (C_old)."""
        return self.blocks[-2] if len(self.blocks) > 1 else 0


@dataclass(frozen=True)
class Teacher(Message):
    """An old model that a client may learn from, by digest, and the number of its outputs."""

    digest: str
    outputs: int


@dataclass(frozen=True)
class Teachers(Message):
    """The old models on offer: the best of the current block, and of the one before."""

    current: Teacher | None = None
    last: Teacher | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """Return the digests of those there are, the current one first."""
        return tuple(teacher.digest for teacher in (self.current, self.last) if teacher is not None)

    @property
    def named(self) -> dict[str, str]:
        """Return the digests of the existing teachers, by role."""
        offered = {"current": self.current, "last": self.last}
        return {what: teacher.digest for what, teacher in offered.items() if teacher is not None}


@dataclass(frozen=True)
class Notice(Message):
    """Base of a server's message to all clients beside the models; bystanders rank their memory by it, too."""


@dataclass(frozen=True)
class Broadcast(Message):
    """The message to every client at the start of a round; models are named by digest and requested if missing.

    `pools` names further tensors that the extra speaks of and that travel like a model.
    """

    context: RoundContext
    model: str  # digest of the global model
    teachers: Teachers = field(default_factory=Teachers)
    extra: Message | None = None  # of the method's server
    pools: tuple[str, ...] = ()

    def digests(self, participate: bool) -> tuple[str, ...]:
        """Return the models that a client needs, the global one first: bystanders need no other."""
        further = (*self.teachers.digests, *self.pools) if participate else ()
        return tuple(dict.fromkeys((self.model, *further)))

    def for_bystanders(self) -> Broadcast:
        """Return the broadcast for clients that do not train; a notice is the only extra they get."""
        return Broadcast(self.context, self.model, extra=self.extra if isinstance(self.extra, Notice) else None)


@dataclass(frozen=True)
class Order(Message):
    """The task of one client in a round."""

    client: int
    participate: bool


@dataclass(frozen=True)
class Missing(Message):
    """A client's answer when it lacks models that a broadcast names: it receives them and then trains."""

    digests: tuple[str, ...]


@dataclass(frozen=True)
class Announcement(Message):
    """The ids of the classes in a client's data that the catalogue lacks."""

    classes: tuple[str, ...]


@dataclass(frozen=True)
class Weighted(Message):
    """A value that is averaged over the reports which carry it, by its weight: one number, or one per row."""

    value: Tensor
    weight: Tensor  # float64, of no dimension or of one


@dataclass(frozen=True)
class Report(Message):
    """A participant's report to the server; every part can be summed over participants."""

    model: ModelState
    samples: int
    rows: dict[str, Tensor] = field(default_factory=dict)  # of tensors in which rows have weights of their own
    parts: dict[str, Weighted] = field(default_factory=dict)  # what a method sends in addition to the model


@dataclass(frozen=True)
class Prototype(Message):
    """An image that stands for a class, before and after its perturbation; only simulated clients show theirs."""

    output: int  # of its class
    original: Tensor
    perturbed: Tensor


@dataclass(frozen=True)
class Diagnostics(Message):
    """Measurements at a simulated client; a real site does not send them."""

    alarm: bool = False
    entropy: float | None = None
    loss: float | None = None
    memory: int = 0
    prototypes: tuple[Prototype, ...] = ()


@dataclass(frozen=True)
class Reply(Message):
    """A client's answer: its part for the server, and its parts for the proxy, which reach it without their sender."""

    client: int
    report: Report | None = None
    uploads: tuple[Message, ...] = ()
    announced: tuple[str, ...] = ()  # ids of the classes in its data that the catalogue lacks


@dataclass(frozen=True)
class Failure(Message):
    """A client's error as a message: who, when, at which stage, and why."""

    client: int
    round: int
    stage: str
    reason: str

    def __str__(self) -> str:
        return f"client {self.client} failed in round {self.round + 1} at stage {self.stage}: {self.reason}"
