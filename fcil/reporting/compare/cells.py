"""The rows of a comparison: a method each, or a value of the setting that a sweep goes over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fcil.core.errors import ConfigError

GIVEN = ("seed", "method.name")  # settings that belong to the rows and columns of a grid


@dataclass(frozen=True)
class Case:
    """One row of the table: its label, and the settings that make it what it is."""

    label: str
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the label as a part of a file's name."""
        return re.sub(r"[^A-Za-z0-9._=-]+", "-", self.label).strip("-")


def cases_of_methods(names: Sequence[str]) -> list[Case]:
    """Return a row for each method."""
    return [Case(name, (f"method.name={name}",)) for name in names]


def cases_of_sweep(over: str, names: Sequence[str]) -> list[Case]:
    """Return a row for each value in `key.path=value,value,...`, and for each of the methods if there are several."""
    key, equals, text = over.partition("=")
    values = split_values(text)
    if not equals or not key.strip() or not values:
        raise ConfigError(f"--sweep {over}: write it as key.path=value,value, for instance scenario.memory=500,1000")
    check_free(over)
    if key.strip().startswith("run."):
        raise ConfigError(f"--sweep {over}: where it runs does not change its figures; `make bench` times it")
    short = key.rsplit(".", 1)[-1].strip()
    return [
        Case(
            f"{short}={value}" if len(names) < 2 else f"{name} {short}={value}",
            (*([f"method.name={name}"] if name else []), f"{key.strip()}={value}"),
        )
        for name in (names or [""])
        for value in values
    ]


def split_values(text: str) -> list[str]:
    """Return the values between commas; commas inside brackets or braces belong to a value.

    >>> split_values("500, [2, 3], {a = 1, b = 2}")
    ['500', '[2, 3]', '{a = 1, b = 2}']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def check_free(setting: str) -> None:
    """Refuse a setting that belongs to the rows and columns of a grid."""
    if setting.partition("=")[0].strip() in GIVEN:
        raise ConfigError(f"setting {setting}: methods and seeds are given by `methods` and `seeds`")
