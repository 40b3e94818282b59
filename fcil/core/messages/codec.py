"""Messages to bytes and back: a versioned frame, a JSON header, tensors as safetensors, and never pickle.

    frame = "FCIL" | version u16 | header length u32 | payload length u64 | header (JSON) | payload (safetensors)

Whatever is wrong with the bytes, `decode` raises `CodecError` and nothing else.
"""

from __future__ import annotations

import json
import math
import struct
import types
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fcil.core.errors import FcilError
from fcil.core.messages.homes import message_type
from fcil.core.messages.types import Message, Shape, message_fields, wire_name
from fcil.core.stopwatch import timed

MAGIC = b"FCIL"
VERSION = 1
FRAME = struct.Struct("<4sHIQ")
DEFAULT_LIMIT = (4 << 30) - 1  # bytes, of which a header's length fits into the frame
LARGEST_TENSOR = 1 << 48  # elements

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {name: dtype for dtype, name in DTYPES.items()}

M = TypeVar("M", bound=Message)
Node = Any  # a JSON value


class CodecError(FcilError):
    """The bytes are not a message of this version, or the value is not one a message may hold."""


class TooLargeError(CodecError):
    """A message takes more bytes than `decode` would read."""


def encode(message: Message, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return the message as one self-contained byte string of at most `limit` bytes, which `decode` takes as well."""
    with timed("encoding"):
        return b"".join(_parts(message, limit))


def encode_into(message: Message, buffer: memoryview) -> int:
    """Write the message to the start of a buffer that has room for it, and return its size."""
    end = 0
    with timed("encoding"):
        for part in _parts(message):
            start, end = end, end + len(part)
            buffer[start:end] = part
    return end


def encoded_size(message: Message) -> int:
    """Return `len(encode(message))` without touching a tensor's data."""
    header, tensors = _pack_message(message)
    return FRAME.size + len(header) + _payload_size(_tensor_table(tensors), tensors)


def _parts(message: Message, limit: int | None = None) -> list[bytes | memoryview]:
    header, tensors = _pack_message(message)
    table = _tensor_table(tensors)
    payload = _payload_size(table, tensors)
    size = FRAME.size + len(header) + payload
    if limit is not None and size > limit:  # before any data is gathered
        raise TooLargeError(f"the {wire_name(type(message))} message takes {size} bytes, over the limit of {limit}")
    frame = FRAME.pack(MAGIC, VERSION, len(header), payload)
    return [frame, header, struct.pack("<Q", len(table)), table, *map(_raw, tensors)]


def decode(data: bytes | memoryview, expected: type[M], limit: int = DEFAULT_LIMIT, *, share: bool = False) -> M:
    """Return the message in `data`, which must be of type `expected` and declare at most `limit` bytes.

    With `share` its tensors are views of `data`: nobody may write to either while they are used. Types of messages that
    others send have a `header_limit`: JSON takes over twenty times its bytes in memory before any of it can be checked.
    """
    if len(data) < FRAME.size:
        raise CodecError(f"truncated message: {len(data)} bytes where a frame alone takes {FRAME.size}")
    magic, version, header_size, payload_size = FRAME.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"not an fcil message: it starts with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise CodecError(f"message version {version} where this fcil reads version {VERSION}")
    declared = FRAME.size + header_size + payload_size
    if declared > limit:
        raise CodecError(f"the message declares {declared} bytes, over the limit of {limit}")
    if declared != len(data):
        problem = "truncated message" if len(data) < declared else "trailing bytes"
        raise CodecError(f"{problem}: {len(data)} bytes where the frame declares {declared}")
    header_limit: int = getattr(expected, "header_limit", DEFAULT_LIMIT)
    if header_size > header_limit:
        raise CodecError(f"the message declares a header of {header_size} bytes, over its limit of {header_limit}")
    body = FRAME.size + header_size
    view = memoryview(data)
    try:
        header = json.loads(bytes(view[FRAME.size : body]))
        tensors = _read_tensors(view[body:], header_limit, share)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"unreadable message: {error}") from error
    try:
        message = _unpack_message(header, tensors, "message")
    except (RecursionError, OverflowError) as error:
        raise CodecError(f"unreadable message: {error}") from error
    if not isinstance(message, expected):
        raise CodecError(f"a {wire_name(type(message))} message where a {wire_name(expected)} was expected")
    if tensors:
        raise CodecError(f"{len(tensors)} tensors of the payload belong to no field of the message")
    return message


def _raw(tensor: Tensor) -> bytes | memoryview:
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: memoryview = flat.view(torch.uint8).numpy().data
    return data


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tensor_table(tensors: list[Tensor]) -> bytes:
    """Return the safetensors header: names are positions, data lies in that order without gaps."""
    table: dict[str, Node] = {}
    offset = 0
    for position, tensor in enumerate(tensors):
        end = offset + _size(tensor)
        table[str(position)] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _read_tensors(payload: memoryview, limit: int, share: bool) -> dict[str, Tensor]:
    """Return the tensors of a safetensors payload by name: copies, or views of it; its table has a limit, too."""
    if len(payload) < 8:
        raise CodecError("the payload has no table of tensors")
    (size,) = struct.unpack_from("<Q", payload)
    if size > len(payload) - 8:
        raise CodecError(f"the table of tensors declares {size} bytes, the payload has {len(payload) - 8}")
    if size > limit:
        raise CodecError(f"the table of tensors declares {size} bytes, over its limit of {limit}")
    table, data = json.loads(bytes(payload[8 : 8 + size])), payload[8 + size :]
    if not isinstance(table, dict):
        raise CodecError(f"the table of tensors is a {type(table).__name__}")
    tensors, offset = {}, 0
    for name, entry in table.items():
        dtype, shape, end = _table_entry(name, entry, offset)
        if end > len(data):
            raise CodecError(f"tensor {name} ends at {end} of {len(data)} bytes")
        tensors[name] = _tensor(data[offset:end], dtype, shape, share)
        offset = end
    if offset != len(data):
        raise CodecError(f"{len(data) - offset} bytes of the payload belong to no tensor")
    return tensors


def _table_entry(name: str, entry: Node, offset: int) -> tuple[torch.dtype, list[int], int]:
    """Return type, shape and end of a tensor that begins at the offset, once its entry is found sound."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CodecError(f"tensor {name}: its entry in the table should give dtype, shape and data_offsets")
    dtype, shape = TYPES.get(str(entry["dtype"])), entry["shape"]
    if dtype is None:
        raise CodecError(f"tensor {name}: {entry['dtype']} is no type of a message")
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
        raise CodecError(f"tensor {name}: {shape} is not a shape")
    if math.prod(side or 1 for side in shape) > LARGEST_TENSOR:
        raise CodecError(f"tensor {name}: no message is as large as {shape}")
    end = offset + math.prod(shape) * dtype.itemsize
    if entry["data_offsets"] != [offset, end]:
        raise CodecError(f"tensor {name} lies at {entry['data_offsets']} where {[offset, end]} belongs")
    return dtype, shape, end


def _tensor(data: memoryview, dtype: torch.dtype, shape: list[int], share: bool) -> Tensor:
    if len(data) == 0:
        return torch.empty(shape, dtype=dtype)
    raw = from_dlpack(np.frombuffer(data if share else bytearray(data), dtype=np.uint8))
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()  # a view of another type must begin at a multiple of its size
    return raw.view(dtype).view(shape)


def _payload_size(table: bytes, tensors: list[Tensor]) -> int:
    return 8 + len(table) + sum(_size(tensor) for tensor in tensors)


def _pack_message(message: Message) -> tuple[bytes, list[Tensor]]:
    tensors: list[Tensor] = []
    node = _pack(message, tensors, type(message).__name__)
    header = json.dumps(node, separators=(",", ":"), allow_nan=False).encode()
    return header + b" " * (-(FRAME.size + len(header)) % 8), tensors  # so that tensors begin at whole words


def _pack(value: object, tensors: list[Tensor], where: str) -> Node:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(float(value))}
        case Tensor():
            if value.dtype not in DTYPES:
                raise CodecError(f"{where}: a tensor of type {value.dtype} cannot be sent")
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        case Message():
            names = _fields(type(value))
            body = {name: _pack(getattr(value, name), tensors, f"{where}.{name}") for name in names}
            return {"message": wire_name(type(value)), "fields": body}
        case tuple():
            return [_pack(item, tensors, f"{where}[{index}]") for index, item in enumerate(value)]
        case dict():
            if not all(isinstance(key, str) for key in value):
                raise CodecError(f"{where}: a dict with keys that are no strings cannot be sent")
            return {"dict": {str(key): _pack(item, tensors, f"{where}[{key!r}]") for key, item in value.items()}}
    raise CodecError(f"{where}: a {type(value).__name__} cannot be sent")


def _refuse(where: str, node: Node, wanted: object) -> NoReturn:
    found = next(iter(node)) if isinstance(node, dict) and node else type(node).__name__
    raise CodecError(f"{where}: found {found} where {getattr(wanted, '__name__', wanted)} belongs")


def _fields(kind: type[Message]) -> dict[str, Any]:
    """Return the fields of a message and their types."""
    try:
        return message_fields(kind)  # type: ignore[arg-type]
    except TypeError as error:
        raise CodecError(str(error)) from error


def _unpack_message(node: Node, tensors: dict[str, Tensor], where: str) -> Message:
    if not isinstance(node, dict) or set(node) != {"message", "fields"} or not isinstance(node["fields"], dict):
        _refuse(where, node, Message)
    kind = message_type(str(node["message"]))
    if kind is None:
        raise CodecError(f"{where}: unknown message type {node['message']!r}")
    hints = _fields(kind)
    if set(node["fields"]) != set(hints):
        odd = ", ".join(sorted(set(node["fields"]) ^ set(hints)))
        raise CodecError(f"{where}: the fields of a {kind.__name__} do not match: {odd}")
    sizes: dict[str, int] = {}
    values = {
        name: _unpack(child, hints[name], tensors, sizes, f"{kind.__name__}.{name}")
        for name, child in node["fields"].items()
    }
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise CodecError(f"{where}: not a valid {kind.__name__}: {error}") from error


def _unpack(  # noqa: PLR0911 (one return a kind of hint)
    node: Node, hint: Any, tensors: dict[str, Tensor], sizes: dict[str, int], where: str
) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        base, *extras = get_args(hint)
        value = _unpack(node, base, tensors, sizes, where)
        for shape in extras:
            if isinstance(shape, Shape):
                _check_shape(value, shape, sizes, where)
        return value
    if origin in (Union, types.UnionType):
        return _unpack_union(node, get_args(hint), tensors, sizes, where)
    if origin is tuple:
        return _unpack_tuple(node, get_args(hint), tensors, sizes, where)
    if origin is dict:
        if not isinstance(node, dict) or set(node) != {"dict"} or not isinstance(node["dict"], dict):
            _refuse(where, node, "dict")
        item = get_args(hint)[1]
        return {key: _unpack(child, item, tensors, sizes, f"{where}[{key!r}]") for key, child in node["dict"].items()}
    if hint is Tensor:
        return _unpack_tensor(node, tensors, where)
    if isinstance(hint, type) and issubclass(hint, Message):
        message = _unpack_message(node, tensors, where)
        if not isinstance(message, hint):
            raise CodecError(f"{where}: found {wire_name(type(message))} where {wire_name(hint)} belongs")
        return message
    return SCALARS[hint](node, where) if hint in SCALARS else _refuse(where, node, hint)


def _unpack_union(
    node: Node, options: tuple[Any, ...], tensors: dict[str, Tensor], sizes: dict[str, int], where: str
) -> Any:
    if node is None and type(None) in options:
        return None
    (wanted,) = [option for option in options if option is not type(None)]
    return _unpack(node, wanted, tensors, sizes, where)


def _unpack_tuple(
    node: Node, items: tuple[Any, ...], tensors: dict[str, Tensor], sizes: dict[str, int], where: str
) -> tuple[Any, ...]:
    if not isinstance(node, list):
        _refuse(where, node, "tuple")
    hints = [items[0]] * len(node) if items[-1] is Ellipsis else list(items)
    if len(hints) != len(node):
        raise CodecError(f"{where}: {len(node)} items where {len(hints)} belong")
    return tuple(
        _unpack(child, item, tensors, {} if items[-1] is Ellipsis else sizes, f"{where}[{index}]")
        for index, (child, item) in enumerate(zip(node, hints, strict=True))
    )


def _unpack_tensor(node: Node, tensors: dict[str, Tensor], where: str) -> Tensor:
    if not isinstance(node, dict) or set(node) != {"tensor"}:
        _refuse(where, node, "tensor")
    tensor = tensors.pop(str(node["tensor"]), None)
    if tensor is None:
        raise CodecError(f"{where}: tensor {node['tensor']!r} is not in the payload, or was used before")
    return tensor


def _check_shape(value: Any, shape: Shape, sizes: dict[str, int], where: str) -> None:
    if value is None:
        return
    if value.dtype != shape.dtype or value.ndim != len(shape.dims):
        raise CodecError(
            f"{where}: {value.dtype} of shape {tuple(value.shape)} where {shape.dtype} {shape.dims} belongs"
        )
    for size, dim in zip(value.shape, shape.dims, strict=True):
        wanted = dim if isinstance(dim, int) else sizes.setdefault(dim, size)
        if size != wanted:
            raise CodecError(f"{where}: {size} {dim} where {wanted} belong")


def _scalar(kind: type) -> Callable[[Node, str], Any]:
    def check(node: Node, where: str) -> Any:
        if type(node) is not kind:
            _refuse(where, node, kind)
        return node

    return check


def _float(node: Node, where: str) -> float:
    if isinstance(node, dict) and set(node) == {"float"} and node["float"] in ("nan", "inf", "-inf"):
        return float(node["float"])
    if type(node) not in (float, int):
        _refuse(where, node, float)
    try:
        return float(node)
    except OverflowError:
        raise CodecError(f"{where}: an integer too large for a float") from None


SCALARS: dict[Any, Callable[[Node, str], Any]] = {
    int: _scalar(int),
    str: _scalar(str),
    bool: _scalar(bool),
    float: _float,
    type(None): _scalar(type(None)),
}
