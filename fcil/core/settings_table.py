"""The base class of configuration tables, and error sentences for values that are wrong."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fcil.core.errors import ConfigError

LARGEST = 2**63 - 1  # what tensors are indexed and generators seeded with
LARGEST_FLOAT = 3.4e38  # what a network's numbers, in single precision, can be
LONGEST = 80  # characters of a value that are shown
WORDS = {  # what would be right, by the kind of error
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_type": "a table",
    "string_type": "text",
    "tuple_type": "a list",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "a list of at least {min_length}",
    "value_error": "{error}",
}
INTERNAL = "internal"  # mark of a field
KEY = re.compile(r"\w+(-\w+)*")
TYPES = ("int", "float", "str", "bool")  # parts of an error's place that name a member of a union


class SettingsTable(BaseModel):
    """A table of the configuration: frozen, without unknown keys, and every value of the type it is declared with.

    So `true` is no number, `"5"` and `5.0` are no whole ones, and `1` is not `true`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def table(cls, key: str) -> type[BaseModel] | None:
        """Return the kind of the table, or of the list of tables, under a key, if there is one."""
        annotation = cls.model_fields[key].annotation if key in cls.model_fields else None
        if get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None

    @classmethod
    def settings(cls) -> list[str]:
        """Return the fields that a user can set, unlike those declared as `internal`."""
        return [key for key, field in cls.model_fields.items() if not _is_internal(field)]

    @classmethod
    def keys(cls) -> list[str]:
        """Return all keys that the table may have."""
        return cls.settings()

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """Take a list for a tuple, since TOML has nothing else, and refuse a number too large to count by."""
        items = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(item, int) and abs(item) > LARGEST for item in items):
            raise ValueError("a number that fits into 64 bits")
        return tuple(value) if isinstance(value, list) else value

    @field_validator("*")
    @classmethod
    def _single(cls, value: Any) -> Any:
        """Refuse a number that becomes infinite in a network."""
        if isinstance(value, float) and abs(value) > LARGEST_FLOAT:
            raise ValueError(f"a number of single precision, at most {LARGEST_FLOAT:g}")
        return value


class NoSettings(SettingsTable):
    """The table of a member without settings of its own."""


def internal(default: Any, **limits: Any) -> Any:
    """Declare a value of a table that is no setting, because something else in the configuration decides it."""
    return Field(default, json_schema_extra={INTERNAL: True}, **limits)


def _is_internal(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and INTERNAL in field.json_schema_extra


def shown(value: Any) -> str:
    """Return a value as in TOML, shortened to fit a sentence.

    >>> shown({"flip": True, "sizes": [1, 2.5], "name": "x"})
    "{flip = true, sizes = [1, 2.5], name = 'x'}"
    """
    text = _written(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "absent", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value[:LONGEST]))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_written(item)}' for key, item in list(value.items())[:LONGEST])}}}"
    return repr(value)


def chosen_from(option: str, value: str, choices: Sequence[str]) -> str:
    """Return the value of an option that has only a few.

    >>> chosen_from("--format", "json", ["table", "json"])
    'json'
    """
    if value not in choices:
        raise ConfigError(f"{option} {value}: it should be {', '.join(choices[:-1])} or {choices[-1]}")
    return value


def explain(
    error: ValidationError, model: type[BaseModel], prefix: str, elsewhere: Callable[[str], str | None] = lambda _: None
) -> list[str]:
    """Return a sentence for each wrong key, with the value found and the allowed ones.

    `elsewhere` says of a key that is unknown here where it belongs, if it belongs anywhere.
    """
    unknown: list[str] = []
    wrong: dict[str, tuple[str, list[str]]] = {}  # key -> what was found, and what each member of a union asks for
    for detail in error.errors():
        if detail["type"] == "extra_forbidden":
            last = str(detail["loc"][-1])  # any text can be a key
            path = _keys(detail["loc"][:-1])
            key = prefix + ".".join([*path, last if last.isidentifier() else shown(last)])
            options = _fields_at(model, path)
            hint = difflib.get_close_matches(last, options, 1)
            known = "".join(filter(None, [elsewhere(last), f"known here: {', '.join(options)}"]))
            unknown.append(f"{key}: unknown key; {f'did you mean {hint[0]}?' if hint else known}")
            continue
        key = prefix + ".".join(_keys(detail["loc"]))
        if detail["type"] == "missing":
            unknown.append(f"{key}: missing; it must be given")
        else:
            found = "absent" if detail["input"] is None else f"found {shown(detail['input'])}"
            wrong.setdefault(key, (found, []))[1].append(_right(detail))
    inner = {key for key in wrong if any(other.startswith(f"{key}.") for other in wrong)}  # an item of it is wrong
    outer = {key: wrong[key] for key in wrong if key not in inner}
    return unknown + [f"{key}: {found}, should be {' or '.join(right)}" for key, (found, right) in outer.items()]


def _keys(place: Iterable[int | str]) -> list[str]:
    """Return the keys and indices of an error's place, without the names of a union's members."""
    return [str(part) for part in place if isinstance(part, int) or _is_key(part)]


def _is_key(part: str) -> bool:
    """Say whether a part of a place is a key; a member's name, which may have hyphens, is one."""
    return KEY.fullmatch(part) is not None and part not in TYPES and not part.startswith("constrained-")


def _right(detail: ErrorDetails) -> str:
    """Return a description of the values that would be right."""
    if detail["type"] in WORDS:
        context = detail.get("ctx", {})
        return WORDS[detail["type"]].format(**{key: _bound(value) for key, value in context.items()})
    return detail["msg"].removeprefix("Input should be ")


def _bound(value: Any) -> Any:
    """Return what a sentence calls a bound: 1 for 1.0, and `true` as TOML has it."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return {"True": "true", "False": "false"}.get(value, value) if isinstance(value, str) else value


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for key in path:
        if key.isdigit():  # a place in a list of tables, whose type is the one already found
            continue
        inner = model.table(key) if issubclass(model, SettingsTable) else None
        if inner is None:
            return []
        model = inner
    names = model.keys() if issubclass(model, SettingsTable) else list(model.model_fields)
    return sorted(name for name in names if name not in ("method_name", "method_edition"))
