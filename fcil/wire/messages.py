"""The frozen, typed messages that cross a border between client, server, proxy and disk.

A field may be an int, float, str, bool, None, a tensor (optionally `Annotated` with a `Shape`), another message, a
tuple of these or a dict from str to these. Anything else is refused when the message is encoded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

ModelState: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Dimensions and type that a tensor field must have; equal names within one message must have equal sizes."""

    dims: tuple[str | int, ...]
    dtype: torch.dtype


class Message:
    """Base of all messages: a subclass is a frozen dataclass and is known to the codec by its class name."""

    registry: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        other = Message.registry.setdefault(cls.__name__, cls)
        if other is not cls and other.__module__ != cls.__module__:
            raise TypeError(f"two messages are called {cls.__name__}: in {other.__module__} and in {cls.__module__}")
        Message.registry[cls.__name__] = cls


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
class Moment(Message):
    """What everybody may know about a round: no task and no schedule, only the growth of the head."""

    round: int
    catalogue: tuple[int, ...]  # class ids in the order of the outputs
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
class Broadcast(Message):
    """What every client receives at the start of a round; extras name further models by digest."""

    moment: Moment
    model: str  # digest of the global model
    models: dict[str, ModelState]  # the global model and the extras' models by digest
    server: Message | None = None
    proxy: Message | None = None


@dataclass(frozen=True)
class Order(Message):
    """What one client is asked to do in a round."""

    client: int
    seed: int
    participate: bool
    new_classes: bool | None = None  # the scenario's truth, told only to the `oracle` detector


@dataclass(frozen=True)
class Report(Message):
    """What a participant sends to the central server."""

    model: ModelState
    samples: int
    extra: Message | None = None


@dataclass(frozen=True)
class Diagnostics(Message):
    """What a simulation measures at a client; a real site keeps it to itself."""

    alarm: bool = False
    entropy: float | None = None
    loss: float | None = None
    memory: int = 0


@dataclass(frozen=True)
class Reply(Message):
    """A client's answer: its part for the server, its parts for the proxy, and what the simulation measured."""

    client: int
    report: Report | None = None
    uploads: tuple[Message, ...] = ()
    announced: tuple[int, ...] = ()  # ids of the classes in its data that the catalogue lacks
    diagnostics: Diagnostics = field(default_factory=Diagnostics)


@dataclass(frozen=True)
class Failure(Message):
    """A client's error as a message: who, when, at which stage, and why."""

    client: int
    round: int
    stage: str
    reason: str

    def __str__(self) -> str:
        return f"client {self.client} failed in round {self.round} at stage {self.stage}: {self.reason}"
