"""Messages: an example of every registered type, and frames whose lengths are right although their content is not."""

from __future__ import annotations

import json
import math
import struct
import types
from functools import cache
from pathlib import Path
from random import Random
from typing import Annotated, Any, Union, get_args, get_origin

import torch
from torch import Tensor

import fcil.federation.engines.processes  # noqa: F401 (it defines messages, as methods do)
from fcil.core.messages import Message, Shape, decode, encode
from fcil.core.messages.codec import DTYPES, FRAME, MAGIC, VERSION
from fcil.core.messages.types import message_fields
from fcil.deployment.server.state import ServedCheckpoint
from fcil.deployment.transport.messages import Release
from fcil.experiment.checkpoint import AnyCheckpoint, Checkpoint, ClientStates, Part
from fcil.federation.diagnostics import Confusion
from fcil.federation.masking.messages import Session
from fcil.federation.simulated_clients import ClientsTable
from fcil.methods import methods
from fcil.methods.bic import Bias
from fuzz.case import Damage, FindingError, Kind
from fuzz.damage import changed, damaged, json_bytes

CHECKED: dict[type[Message], dict[str, Any]] = {  # fields that are not of any value of their type
    Checkpoint: {"config": "{}"},
    ServedCheckpoint: {"config": "{}"},
    ClientStates: {"clients": {"0": Bias(1.0, 0.5), "12": Bias(2.0, 0.0)}},
    Confusion: {"classes": ("0",), "names": ("zero",), "counts": torch.ones(1, 1, dtype=torch.int32)},
    Session: {
        "numbers": torch.tensor([3, 5]),
        "keys": torch.ones(2, 32, dtype=torch.uint8),
        "proofs": torch.ones(2, 32, dtype=torch.uint8),
    },
    Release: {"number": 3, "round": 7, "catalogue": ("a", "b")},
    Part: {"name": "clients-000001-0.fcil"},
    ClientsTable: {"digests": ("one", "two")},
}


@cache
def _examples() -> dict[str, bytes]:
    """Return an encoded message of every type that fcil knows."""
    methods()
    random = Random(5)
    ours = {name: kind for name, kind in Message.registry.items() if ":" not in name and kind is not AnyCheckpoint}
    # A site's own files are checked as a whole, and damaged by their own tests; who else imports them is no matter.
    known = {name: kind for name, kind in ours.items() if kind.__module__ != "fcil.deployment.client.sample_store"}
    return {name: encode(_message(kind, random)) for name, kind in sorted(known.items())}


def _message(kind: type[Message], random: Random) -> Message:
    if kind is Message:
        return Bias(1.0, 0.5)
    sizes: dict[str | int, int] = {}
    fields = {name: _value(hint, random, sizes) for name, hint in message_fields(kind).items()}
    return kind(**{**fields, **CHECKED.get(kind, {})})


def _value(hint: Any, random: Random, sizes: dict[str | int, int]) -> Any:  # noqa: PLR0911 (one return a kind of hint)
    """Return a value that a field of this type may have."""
    origin, items = get_origin(hint), get_args(hint)
    if origin is Annotated:
        (shape,) = (extra for extra in items[1:] if isinstance(extra, Shape))
        sides = [side if isinstance(side, int) else sizes.setdefault(side, random.randrange(4)) for side in shape.dims]
        return torch.zeros(sides, dtype=shape.dtype)
    if origin in (Union, types.UnionType):
        return _value(next(item for item in items if item is not types.NoneType), random, sizes)
    if origin is tuple:
        several = [items[0]] * random.randrange(4) if items[-1] is Ellipsis else items
        return tuple(_value(item, random, sizes) for item in several)
    if origin is dict:
        return {f"key {place}": _value(items[1], random, sizes) for place in range(random.randint(1, 3))}
    if hint is Tensor:
        return torch.ones([random.randrange(4) for _ in range(random.randrange(3))], dtype=random.choice([*DTYPES]))
    if issubclass(hint, Message):
        return _message(hint, random)
    return {int: random.randrange(1 << 20), float: random.choice((0.25, math.nan)), str: "text", bool: True}[hint]


def take_apart(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a message's header, its table of tensors and their data."""
    _, _, header_size, _ = FRAME.unpack_from(data)
    body = FRAME.size + header_size
    (table_size,) = struct.unpack_from("<Q", data, body)
    rest = body + 8 + table_size
    return data[FRAME.size : body], data[body + 8 : rest], data[rest:]


def put_together(header: bytes, table: bytes, rest: bytes) -> bytes:
    """Return a message of these, under lengths that are right."""
    payload = struct.pack("<Q", len(table)) + table + rest
    return FRAME.pack(MAGIC, VERSION, len(header), len(payload)) + header + payload


def forged(data: bytes, random: Random) -> bytes:
    """Return a message with a change in its header, its table of tensors or its data, under the right lengths."""
    header, table, rest = take_apart(data)
    match random.randrange(5):
        case 0 | 1:
            header = json_bytes(changed(json.loads(header), random))
        case 2:
            table = json_bytes(changed(json.loads(table), random))
        case 3:
            header = damaged(header, random)
        case _:
            rest = damaged(rest, random)
    return put_together(header, table, rest)


def _draw(random: Random) -> Damage:
    examples = _examples()
    name = random.choice([*examples])
    if random.random() < 1 / 3:
        return Damage({name: damaged(examples[name], random, [*examples.values()])})
    return Damage({name: forged(examples[name], random)})


def _play(damage: Damage, folder: Path) -> None:
    """Decode the message both ways; what is decoded must be a message that can be sent again."""
    _examples()
    for name, data in damage.files.items():
        assert data is not None
        for share in (False, True):
            again = encode(decode(data, Message.registry[name], share=share))
            if encode(decode(again, Message.registry[name])) != again:
                raise FindingError(f"a {name} that was decoded is another one once it was sent again")


KINDS = (Kind("message", 24, lambda: Damage({**_examples()}), _draw, _play),)
