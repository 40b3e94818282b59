"""Types that a message's field may have, checked when the class is defined, so that every message decodes."""

from __future__ import annotations

import inspect
import sys
import types
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

SCALARS = (int, float, str, bool, types.NoneType)
ALLOWED = (
    "int, float, str, bool, None, a Tensor (or one Annotated with a Shape), a message, a tuple of these, "
    "a dict from str to these, or one of these or None"
)


@dataclass(frozen=True)
class Shape:
    """Dimensions and type that a tensor field must have; equal names within one message must have equal sizes."""

    dims: tuple[str | int, ...]
    dtype: torch.dtype


def field_hints(kind: type, base: type) -> dict[str, Any]:
    """Return the types of the fields that a class itself declares, given the base class of all messages.

    Raises a TypeError that names the class and the field if one of them could not be sent.
    """
    names = {**_local_names(kind.__module__), kind.__name__: kind}
    own = type(kind.__name__, (), {"__annotations__": inspect.get_annotations(kind), "__module__": kind.__module__})
    try:
        hints = get_type_hints(own, localns=names, include_extras=True)
    except NameError as error:
        raise TypeError(f"{kind.__name__}: {error}; define a type before the message that has a field of it") from error
    fields = {name: hint for name, hint in hints.items() if ClassVar not in (hint, get_origin(hint))}
    fields = {name: hint for name, hint in fields.items() if hint is not KW_ONLY}
    for name, hint in fields.items():
        if not _can_be_sent(hint, base):
            raise TypeError(f"{kind.__name__}.{name}: {_name(hint)} cannot be a field of a message; use {ALLOWED}")
    return fields


def _local_names(module: str) -> dict[str, Any]:
    """Return the names that the functions under way in a module have, for a class that is defined in one of them."""
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module and frame.f_locals is not frame.f_globals:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _can_be_sent(hint: Any, base: type) -> bool:
    origin, items = get_origin(hint), get_args(hint)
    if origin is Annotated:
        shaped = any(isinstance(extra, Shape) for extra in items[1:])
        return items[0] in (Tensor, Tensor | None) if shaped else _can_be_sent(items[0], base)
    if origin in (Union, types.UnionType):
        wanted = [item for item in items if item is not types.NoneType]
        return len(wanted) == 1 and _can_be_sent(wanted[0], base)
    if origin is tuple:
        several = items[:1] if items[1:] == (Ellipsis,) else items
        return bool(several) and all(_can_be_sent(item, base) for item in several)
    if origin is dict:
        return items[0] is str and _can_be_sent(items[1], base)
    return hint in (*SCALARS, Tensor) or (isinstance(hint, type) and origin is None and issubclass(hint, base))


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint).replace("typing.", "")
