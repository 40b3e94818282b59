"""Classes that the server's operators have withdrawn or merged into others; their outputs stay and mean nothing.

A retired class is an entry from its id to the id of the class that it became part of, or to nothing. Every request of a
round has all entries, so that parties keep none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fcil.core.errors import ConfigError, DamagedError
from fcil.core.files import exists, read_json, write_json
from fcil.core.messages import ModelState
from fcil.deployment.keys.files import held
from fcil.deployment.server import audit_log
from fcil.deployment.transport.messages import Retired
from fcil.models.classifier import HEAD_ROWS

FILE = "classes.json"
SHORTEST = 4  # characters of an id that a person may give in its place


def read_retired(keys: Path) -> Retired:
    """Return the retired classes in a server's folder of keys."""
    path = keys / FILE
    if not exists(path):
        return {}
    found = read_json(path).get("retired")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise DamagedError(f"{path} is damaged: it should have a table of class ids under `retired`")
    return found


def retire(keys: Path, catalogue: Sequence[str], given: str, target: str | None = None) -> tuple[str, str]:
    """Withdraw a class, or merge it into another one; return both ids, the second one empty for a withdrawal."""
    with held(keys):
        retired = read_retired(keys)
        open_ids = [name for name in catalogue if name not in retired]
        gone, into = _the_one(given, open_ids), "" if target is None else _the_one(target, open_ids)
        if gone == into:
            raise ConfigError(f"{given} and {target} are the same class")
        event = {"class_id": gone, "into": into} if into else {"class_id": gone}
        audit_log.note(keys, "class merged" if into else "class withdrawn", **event)
        moved = {name: into if former == gone else former for name, former in retired.items()}
        write_json(keys / FILE, {"retired": {**moved, gone: into}})
    return gone, into


def _the_one(given: str, ids: Sequence[str]) -> str:
    """Return the id that begins as given, or refuse what fits none or several."""
    found = [name for name in ids if name == given or (len(given) >= SHORTEST and name.startswith(given))]
    if len(found) != 1:
        what = f"{len(found)} classes begin with it" if found else "the federation has no such class"
        raise ConfigError(f"{given}: {what}; a site finds the id of a name with `fcil federation classes id`")
    return found[0]


def present(ids: Sequence[str], retired: Mapping[str, str]) -> list[int]:
    """Return the outputs that are not retired.

    >>> present(["a", "b", "c"], {"b": "a"})
    [0, 2]
    """
    return [output for output, name in enumerate(ids) if name not in retired]


def without_rows(model: ModelState, ids: Sequence[str], retired: Mapping[str, str]) -> tuple[ModelState, list[str]]:
    """Return a model without the outputs of retired classes, and the ids of the others."""
    kept = present(ids, retired)
    rows = {name: model[name][kept] for name in HEAD_ROWS if name in model}
    return {**model, **rows}, [ids[output] for output in kept]
