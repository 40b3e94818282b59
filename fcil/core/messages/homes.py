"""The modules of fcil that define messages, so that decoding does not depend on which of them are loaded already."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache

from fcil.core.messages.types import Message

HOMES = (
    "fcil.data.exemplar_memory",
    "fcil.deployment.client.sample_store",
    "fcil.deployment.party_store",
    "fcil.deployment.server.state",
    "fcil.deployment.transport.messages",
    "fcil.experiment.checkpoint",
    "fcil.federation.class_catalogue",
    "fcil.federation.client",
    "fcil.federation.diagnostics",
    "fcil.federation.engines.base",
    "fcil.federation.engines.processes",
    "fcil.federation.last_good",
    "fcil.federation.masking.messages",
    "fcil.federation.server",
    "fcil.federation.simulated_clients",
)
FOLDERS = ("fcil.methods",)  # with all their modules, so that a new method is one file


def homes() -> Iterator[str]:
    """Yield the names of all modules that may define messages."""
    yield from HOMES
    for folder in FOLDERS:
        for module in pkgutil.iter_modules(importlib.import_module(folder).__path__):
            yield f"{folder}.{module.name}"


def message_type(name: str) -> type[Message] | None:
    """Return the class of messages that a name on the wire stands for, or None.

    An unknown name without a package is looked up once more when all homes are loaded. A message never decides which
    modules are imported: the list is fixed, and packages of others are loaded by their entry points alone.
    """
    if name not in Message.registry and ":" not in name:
        _load_homes()
    return Message.registry.get(name)


@cache
def _load_homes() -> None:
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    for module in homes():
        if started is None or started.name != module:  # a module that runs by `python -m` is loaded already
            importlib.import_module(module)
