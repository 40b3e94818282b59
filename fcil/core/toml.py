"""Documents and values as TOML, which Python reads and does not write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def as_toml(document: Mapping[str, Any]) -> str:
    """Return a document of tables, lists and plain values as TOML; what is absent is left out.

    >>> print(as_toml({"seed": 1, "data": {"path": None, "source": "digits"}}))
    seed = 1
    <BLANKLINE>
    [data]
    source = "digits"
    """
    plain = {key: value for key, value in document.items() if not isinstance(value, Mapping) and value is not None}
    parts = ["\n".join(f"{_key(key)} = {literal(value)}" for key, value in plain.items())]
    parts += [
        part for key, table in document.items() if isinstance(table, Mapping) for part in _tables(_key(key), table)
    ]
    return "\n\n".join(part for part in parts if part)


def _tables(name: str, table: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and value is not None}
    own = "\n".join([f"[{name}]", *(f"{_key(key)} = {literal(value)}" for key, value in plain.items())])
    inner = [(f"{name}.{_key(key)}", value) for key, value in table.items() if isinstance(value, Mapping)]
    return [own, *(part for key, value in inner for part in _tables(key, value))]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _quoted(key)


def literal(value: Any) -> str:
    """Return a value as TOML, on one line.

    >>> print(literal({"rounds": [1, 2], "name": "\N{HONEYBEE}"}))
    { rounds = [1, 2], name = "\N{HONEYBEE}" }
    """
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if item is not None}
        return "{ " + ", ".join(f"{_key(key)} = {literal(item)}" for key, item in known.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    """Return text, a number or a truth value; escaped, JSON has two halves of some characters, which TOML forbids."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
