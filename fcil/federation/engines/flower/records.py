"""What travels between the engine and a Flower node: our messages, as the arrays of one Flower record.

Arrays, because Flower cuts a large array into chunks on its way, and bytes of a configuration it does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, RecordDict

from fcil.core.messages import Broadcast, Message, encode
from fcil.federation.client import Job

RECORD = "fcil"
PROCESS = "process"  # the record in which an answer says who played
ERRAND, JOB, ANSWER = "errand", "job", "answer"  # arrays by these names; all others are parts, by digest
LETTER = "letter"  # the same for a letter of a real federation's server, and the models that go with it
STYPE = "fcil"  # how an array's bytes came about: by our codec


@dataclass(frozen=True)
class Errand(Message):
    """What a node has to read before it can decode a job; what is the same for many jobs is named by digest."""

    recipe: str
    samples: str  # the digest of a part
    models: dict[str, str]  # the model's own digest -> that of the part

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the digests of all parts that the job needs."""
        return (self.samples, *self.models.values())


@dataclass(frozen=True)
class Task(Message):
    """A job and the broadcast that it is played under; both may hold messages that only the method's module knows."""

    broadcast: Broadcast
    job: Job


@dataclass(frozen=True)
class Part:
    """Something that many jobs need, encoded once."""

    digest: str
    data: bytes

    @classmethod
    def of(cls, message: Message) -> Part:
        """Return a message as a part."""
        data = encode(message)
        return cls(hashlib.sha256(data).hexdigest(), data)


def pack(messages: Mapping[str, Message], parts: Iterable[Part] = ()) -> RecordDict:
    """Return messages by name, and the parts that come with them, as the content of a Flower message."""
    named = {name: encode(message) for name, message in messages.items()}
    data = {**named, **{part.digest: part.data for part in parts}}
    return as_records({name: as_array(value) for name, value in data.items()})


def unpack(content: RecordDict) -> dict[str, bytes]:
    """Return the encoded messages and parts in the content of a Flower message."""
    return {name: array.data for name, array in content.array_records[RECORD].items()}


def as_array(data: bytes) -> Array:
    """Return bytes as an array of Flower's; those who get the same array share what Flower stores of it."""
    return Array("uint8", (len(data),), STYPE, data)


def as_records(arrays: Mapping[str, Array]) -> RecordDict:
    """Return arrays by name as the content of a Flower message; `unpack` gives their bytes."""
    return RecordDict({RECORD: ArrayRecord(dict(arrays))})
