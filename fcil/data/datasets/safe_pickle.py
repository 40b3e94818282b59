"""Pickles of plain values and arrays of bytes, read without `pickle`: nothing that a file names is imported or called.

The reader knows the instructions that such pickles consist of (protocols 2 to 5) and refuses all others. An instruction
takes as much memory as it has bytes in the file, and a little more; their number is bounded, whatever the file claims.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTRUCTIONS = 2_000_000  # CIFAR-100's training file has an eighth of them
NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i"}
BYTES = {b"U": "<B", b"T": "<I", b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"\x96": "<Q"}  # Python 2's strings are bytes
TEXTS = {b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q"}
PUTS, GETS = {b"q": "<B", b"r": "<I"}, {b"h": "<B", b"j": "<I"}
SKIPPED = {b"\x80": 1, b"\x95": 8}  # the protocol's number, a frame's length
CONSTANTS: dict[bytes, Callable[[], Any]] = {
    b"N": lambda: None,
    b"\x88": lambda: True,
    b"\x89": lambda: False,
    b"]": list,
    b"}": dict,
    b")": tuple,
}
TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
MODULES = ("numpy.core", "numpy._core")  # before numpy 2 and since
RECONSTRUCT = {f"{root}.multiarray._reconstruct" for root in MODULES}
FROM_BUFFER = {f"{root}.numeric._frombuffer" for root in MODULES}
DTYPE, NDARRAY, ENCODE = "numpy.dtype", "numpy.ndarray", "_codecs.encode"
KNOWN = {*RECONSTRUCT, *FROM_BUFFER, DTYPE, NDARRAY, ENCODE}


class PickleError(Exception):
    """The bytes are no pickle of plain values; the message says why."""


@dataclass(frozen=True)
class _Name:
    """A name in the file; it stands for itself and is never looked up."""

    path: str


@dataclass(frozen=True)
class _Type:
    code: str


@dataclass
class _Array:
    """An array under way; a pickle makes it first and fills it later."""

    pixels: NDArray[np.uint8] | None = None


def read_pickle(data: bytes) -> Any:
    """Return the content of a pickle: plain values, and arrays of uint8 where they are values of its dictionary."""
    try:
        content = _Reader(data).read()
        if isinstance(content, dict):
            return {key: value.pixels if isinstance(value, _Array) else value for key, value in content.items()}
    except (LookupError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise PickleError(f"it breaks off or contradicts itself ({error})") from error
    return content


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []  # lengths of the stack
        self.memo: dict[int, Any] = {}

    def read(self) -> Any:
        for _ in range(INSTRUCTIONS):
            code = self._take(1)
            if code == b".":
                return self.stack.pop()
            self._step(code)
        raise PickleError(f"it has more than {INSTRUCTIONS:,} instructions")

    def _take(self, count: int) -> bytes:
        part = self.data[self.place : self.place + count]
        if len(part) != count:
            raise PickleError("it breaks off")
        self.place += count
        return part

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return int(value)

    def _line(self) -> str:
        end = self.data.index(b"\n", self.place)
        line = self.data[self.place : end].decode()
        self.place = end + 1
        return line

    def _marked(self) -> list[Any]:
        """Pop and return the values above the last mark of the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _step(self, code: bytes) -> None:  # the frequent ones first: a file has hundreds of thousands
        if code in NUMBERS:
            self.stack.append(self._number(NUMBERS[code]))
        elif code in BYTES:
            self.stack.append(self._take(self._number(BYTES[code])))
        elif code in PUTS:
            self.memo[self._number(PUTS[code])] = self.stack[-1]
        elif code == b"\x94":
            self.memo[len(self.memo)] = self.stack[-1]
        elif code in GETS:
            self.stack.append(self.memo[self._number(GETS[code])])
        elif code in TEXTS:
            self.stack.append(self._take(self._number(TEXTS[code])).decode("utf-8", "surrogatepass"))
        elif code in CONSTANTS:
            self.stack.append(CONSTANTS[code]())
        elif code in SKIPPED:
            self._take(SKIPPED[code])
        elif code == b"\x8a":
            self.stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))
        elif code == b"G":
            self.stack.append(struct.unpack(">d", self._take(8))[0])
        else:
            self._combine(code)

    def _combine(self, code: bytes) -> None:
        stack = self.stack
        if code == b"(":
            self.marks.append(len(stack))
        elif code in TUPLES:
            items = [stack.pop() for _ in range(TUPLES[code])]
            stack.append(tuple(reversed(items)))
        elif code == b"t":
            stack.append(tuple(self._marked()))
        elif code in (b"e", b"a"):
            items = self._marked() if code == b"e" else [stack.pop()]
            _checked(stack[-1], list).extend(items)
        elif code in (b"u", b"s"):
            items = self._marked() if code == b"u" else [stack.pop(-2), stack.pop()]
            for key, value in zip(items[::2], items[1::2], strict=True):
                _checked(stack[-1], dict)[_checked(key, bytes, str)] = value  # others may be too deep to hash
        else:
            self._build(code)

    def _build(self, code: bytes) -> None:
        stack = self.stack
        if code == b"c":
            stack.append(_named(self._line(), self._line()))
        elif code == b"\x93":
            name = stack.pop()
            stack.append(_named(stack.pop(), name))
        elif code == b"R":
            arguments = stack.pop()
            stack.append(_made(_checked(stack.pop(), _Name).path, *_checked(arguments, tuple)))
        elif code == b"b":
            state = stack.pop()
            if isinstance(stack[-1], _Array):
                _, shape, kind, by_columns, held = _checked(state, tuple)
                stack[-1].pixels = _pixels(held, kind, shape, "F" if by_columns else "C")
            else:
                _checked(stack[-1], _Type)  # what follows its code does not matter for bytes
        else:
            raise PickleError(f"the instruction {code!r} at byte {self.place - 1} is not admitted")


def _checked(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        found, *right = (kind.__name__.strip("_") for kind in (type(value), *kinds))
        raise PickleError(f"it has a {found} where a {' or '.join(right)} belongs")
    return value


def _named(module: str, name: str) -> _Name:
    path = f"{_checked(module, str)}.{_checked(name, str)}"
    if path not in KNOWN:
        raise PickleError(f"the name {path[:80]!r} is not admitted")
    return _Name(path)


def _made(path: str, *arguments: Any) -> Any:
    """Return the value that a call in the file stands for."""
    if path in RECONSTRUCT:
        return _Array()
    if path in FROM_BUFFER:
        held, kind, shape, order = arguments
        return _Array(_pixels(held, kind, shape, order))
    if path == DTYPE:
        code = arguments[0]
        return _Type(code.decode() if isinstance(code, bytes) else _checked(code, str))
    if path == ENCODE and arguments[1:] == ("latin1",):  # how protocol 2 writes bytes
        return _checked(arguments[0], str).encode("latin1")
    raise PickleError(f"{path} is not admitted here")


def _pixels(held: Any, kind: Any, shape: Any, order: Any) -> NDArray[np.uint8]:
    if _checked(kind, _Type).code != "u1":
        raise PickleError(f"it has an array of type {kind.code[:80]!r} where 'u1' belongs")
    sides = [side for side in _checked(shape, tuple) if type(side) is int and side >= 0]
    if len(sides) != len(shape) or math.prod(sides) != len(_checked(held, bytes)):
        raise PickleError(f"it has an array of {len(held)} bytes whose shape does not have as many")
    return np.frombuffer(held, np.uint8).reshape(sides, order="F" if order == "F" else "C")
