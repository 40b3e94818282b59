"""Damage to bytes, JSON documents and TOML; every draw comes from the caller's generator."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

EXTREMES = (0, 1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
DIGITS = re.compile(rb"\d+")
LONGEST_RUN = 64  # bytes that one step of damage deletes, inserts or doubles


def damaged(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return the bytes after one to three steps of damage; `others` are what a piece may be taken from."""
    found = data
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        found = random.choice(STEPS)(found, random, others) if found else random.randbytes(3)
    return found


def _place(data: bytes, random: Random) -> int:
    """Return a place in the bytes; headers are short and matter most, so that every third one is near an end."""
    if random.random() < 1 / 3:
        near = min(len(data), LONGEST_RUN)
        return random.choice((random.randrange(near), len(data) - 1 - random.randrange(near)))
    return random.randrange(len(data))


def _run(data: bytes, random: Random) -> tuple[int, int]:
    start = _place(data, random)
    return start, start + random.randint(1, LONGEST_RUN)


def _flip(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place = _place(data, random)
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def _replace(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, end = _run(data, random)
    new = random.choice((random.randbytes(end - start), bytes(end - start), b"\xff" * (end - start)))
    return data[:start] + new + data[end:]


def _delete(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, end = _run(data, random)
    return data[:start] + data[end:]


def _insert(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, end = _run(data, random)
    return data[:start] + random.randbytes(end - start) + data[start:]


def _double(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, end = _run(data, random)
    return data[:end] * random.choice((1, 1, 1, 20)) + data[start:]


def _cut(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return data[: _place(data, random)]


def _splice(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice([*others, data])
    return data[: _place(data, random)] + other[random.randrange(len(other) + 1) :]


def _number(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    """Write an extreme number over a binary one."""
    size, start = random.choice((1, 2, 4, 8)), _place(data, random)
    value = random.choice(EXTREMES) & (1 << 8 * size) - 1
    return data[:start] + value.to_bytes(size, random.choice(("little", "big"))) + data[start + size :]


def _digits(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    """Write an extreme number over one in digits."""
    places = list(DIGITS.finditer(data))
    if not places:
        return _flip(data, random, _)
    place = random.choice(places)
    value = random.choice((*map(str, EXTREMES), "-1", "1e999", "1.5", "9" * 400, "9" * 5000))
    return data[: place.start()] + value.encode() + data[place.end() :]


STEPS: tuple[Callable[[bytes, Random, Sequence[bytes]], bytes], ...] = (
    _flip,
    _replace,
    _delete,
    _insert,
    _double,
    _cut,
    _splice,
    _number,
    _digits,
)

# --- documents ----------------------------------------------------------------------------------------------------


DEEP = "<deep>"  # stands for lists within lists, which no copying comes through
NEST = b"[" * 50_000 + b"]" * 50_000
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "5", "nan", "\0", "\n", "\ud800", "../../x", "\x1b[31m", "\u202e", "a" * 5000),
    *(-1, *EXTREMES, -(2**63) - 1, 10**30, 10**400, 0.5, -0.5, 1e-320, 1e308, math.nan, math.inf),
    *([], {}, [None], [[]], {"": None}, {"x": {"x": 1}}, ["a", 1], [0] * 1000, DEEP),
)


def changed(document: Any, random: Random) -> Any:
    """Return a copy of a JSON document with one to three of its values, keys or items changed."""
    holder = [copy.deepcopy(document)]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        inner = list(_places(holder))[1:]
        if inner:
            _change(*random.choice(inner), random, inner)
        else:
            holder[0] = copy.deepcopy(random.choice(VALUES))
    return holder[0]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value, the outermost first."""
    if not isinstance(node, (dict, list)):
        return
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if not isinstance(value, list) or len(value) < 1000:
            yield from _places(value)


def _change(container: Any, key: Any, random: Random, places: Sequence[tuple[Any, Any]]) -> None:
    value = container[key]
    match random.randrange(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[random.choice((f"{key}x", "", "digest", key.upper()))] = container.pop(key)
        case 1:
            container.insert(key, copy.deepcopy(value))
        case 2:
            other, place = random.choice(places)
            container[key] = copy.deepcopy(other[place]) if place in other or isinstance(other, list) else None
        case 3 | 4 if isinstance(value, (int, float)) and not isinstance(value, bool):
            container[key] = random.choice((value + 1, value - 1, -value, value * 10, float(value % 1000), str(value)))
        case 3 | 4 if isinstance(value, str) and value:
            raw = damaged(value.encode("utf-8", "surrogatepass"), random)
            container[key] = raw.decode("utf-8", "replace")
        case 3 | 4 if isinstance(value, list) and value:
            container[key] = random.choice((value[::-1], value * 2, value[:-1], value[0]))
        case _:
            container[key] = copy.deepcopy(random.choice(VALUES))


def json_bytes(document: Any) -> bytes:
    """Return a document as JSON, or what comes near to it for a number that JSON does not have."""
    return _nested(json.dumps(document).encode())


def toml_bytes(document: dict[str, Any]) -> bytes:
    """Return a document as TOML: what JSON writes is TOML too, but for tables, nothing, and what is no number."""
    lines = (f"{_key(key)} = {_toml(value)}" for key, value in document.items() if value is not None)
    return _nested("\n".join(lines).encode("utf-8", "surrogatepass"))


def _nested(text: bytes) -> bytes:
    return text.replace(json.dumps(DEEP).encode(), NEST)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_toml(item)}' for key, item in value.items() if item is not None)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value if item is not None)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
