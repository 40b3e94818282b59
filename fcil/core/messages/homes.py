"""The modules of fcil that define messages, so that decoding does not depend on which of them are loaded already."""

from __future__ import annotations

import importlib
import sys
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
    "fcil.federation.server",
    "fcil.federation.simulated_clients",
    "fcil.methods.bic",
    "fcil.methods.client",
    "fcil.methods.dde",
    "fcil.methods.ewc",
    "fcil.methods.fedcbdr",
    "fcil.methods.icarl",
    "fcil.methods.lga",
    "fcil.methods.podnet",
    "fcil.methods.prototypes",
    "fcil.methods.proxy_role",
    "fcil.methods.server",
    "fcil.methods.target",
    "fcil.methods.teacher_votes",
    "fcil.methods.teachers",
)


def message_type(name: str) -> type[Message] | None:
    """Return the class of messages that a name on the wire stands for, or None.

    An unknown name without a package is looked up once more when all of HOMES are loaded. A message never decides what
    is imported: the list is fixed, and packages of others are loaded by their entry points alone.
    """
    if name not in Message.registry and ":" not in name:
        _load_homes()
    return Message.registry.get(name)


@cache
def _load_homes() -> None:
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    for module in HOMES:
        if started is None or started.name != module:  # a module that runs by `python -m` is loaded already
            importlib.import_module(module)
