"""Documents: the TOML of a preset or of a file, laid over the one that it extends."""

from __future__ import annotations

import difflib
import importlib.resources
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcil.core.errors import ConfigError, system_words
from fcil.core.settings_table import shown

NO_FILE = {"weights": "imagenet"}  # values of these keys that name no file


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    folder = importlib.resources.files("fcil.experiment.presets")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_document(name: str) -> dict[str, Any]:
    """Return the TOML document of a preset or of a file.

    With `extends = "BASE"`, a preset's name or a path relative to the file, its keys are laid over those of BASE; of
    these, `unset = ["key.path", ...]` leaves some out. `data.path` and `model.weights` in a file are relative to it.
    """
    return _read(name, ())


def _read(name: str, readers: tuple[str, ...]) -> dict[str, Any]:
    """Return the whole document; the readers are the documents that extend it, the outermost first."""
    names = preset_names()
    place = name if name in names or "\0" in name else os.path.realpath(name)  # which lets loops of links be
    if place in readers:
        raise ConfigError(f"extends: {' extends '.join((*readers, place))}; a document cannot extend itself")
    try:
        document = tomllib.loads(_text(name, names))
    except (ValueError, RecursionError) as error:  # what tomllib says, bytes that are no text, a number of 5,000 digits
        raise ConfigError(f"{name} is not TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"extends in {readers[-1]}: {error}" if readers else str(error)) from error
    if not document:
        raise ConfigError(f'{name} is empty; begin it with extends = "digits", or another name of `fcil list presets`')
    if name not in names:
        _anchor(document, Path(name).absolute().parent)
    base, unset = document.pop("extends", None), document.pop("unset", [])
    if not isinstance(unset, list) or not all(isinstance(key, str) for key in unset):
        raise ConfigError(f"unset in {name}: found {shown(unset)}, should be a list of keys like ['scenario.joins']")
    if base is None and unset:
        raise ConfigError(f"unset in {name}: without extends there is nothing to unset")
    if base is None:
        return document
    if not isinstance(base, str):
        raise ConfigError(f"extends in {name}: found {shown(base)}, should be a preset's name or a path")
    if name not in names and base not in names:
        base = str(Path(name).parent / base)
    below = _read(base, (*readers, place))
    for key in unset:
        _remove(key, below, f"unset in {name}: {base} does not set {key}")
    return _laid_over(below, document)


def _text(name: str, names: list[str]) -> str:
    if name in names:
        return importlib.resources.files("fcil.experiment.presets").joinpath(f"{name}.toml").read_text("utf-8")
    path = Path(name)
    try:
        if not name or "\0" in name:
            raise FileNotFoundError
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        hint = difflib.get_close_matches(path.name, names, 1)
        known = f"did you mean {hint[0]}?" if hint else f"the presets are {', '.join(names)}"
        written = name if name.isprintable() and name else repr(name)
        raise ConfigError(f"{written} is neither a file nor a preset; {known}") from error
    except OSError as error:
        raise ConfigError(f"{system_words(error)}; it should be a TOML file or a preset") from error


def _anchor(document: dict[str, Any], folder: Path) -> None:
    """Make a relative path of data or weights one that is seen from the folder of the file that names it."""
    for name, key in (("data", "path"), ("model", "weights")):
        table = document.get(name)
        path = table.get(key) if isinstance(table, dict) else None
        if isinstance(path, str) and path not in ("", NO_FILE.get(key)) and not path.startswith("~"):
            document[name][key] = str(folder / path)  # not shortened: a .. after a link leads elsewhere


def _remove(key: str, document: dict[str, Any], problem: str) -> None:
    """Take a dotted key out of a document."""
    *tables, last = key.split(".")
    table: Any = document
    for name in tables:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last not in table:
        raise ConfigError(problem)
    del table[last]


def _laid_over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with the document's own keys; tables are merged, lists and values replaced."""
    merged = dict(base)
    for key, value in own.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _laid_over(below, value)
        else:
            merged[key] = value
    return merged
