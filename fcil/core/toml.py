"""TOML text of documents and of single values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tomli_w

ARRAY = re.compile(r"\[\n((?: +.*\n)+)\]")  # over several lines; no text within has a line break of its own


def as_toml(document: Mapping[str, Any]) -> str:
    """Return a document of tables, lists and plain values as TOML, without the values that are None.

    >>> print(as_toml({"seed": 1, "data": {"path": None, "source": "digits"}, "tasks": [2, 3]}))
    seed = 1
    tasks = [2, 3]
    <BLANKLINE>
    [data]
    source = "digits"
    """
    return ARRAY.sub(_one_line, tomli_w.dumps(_given(document))).strip()


def literal(value: Any) -> str:
    """Return a value as TOML, on one line.

    >>> print(literal({"rounds": [1, 2], "name": "\N{HONEYBEE}"}))
    { rounds = [1, 2], name = "\N{HONEYBEE}" }
    """
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {literal(item)}" for key, item in value.items() if item is not None]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _given(value: Any) -> Any:
    """Return a value without the entries of tables that are None, which TOML cannot express."""
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def _one_line(array: re.Match[str]) -> str:
    return f"[{' '.join(line.strip() for line in array[1].splitlines()).removesuffix(',')}]"
