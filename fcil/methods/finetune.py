"""Plain federated averaging: binary cross-entropy on the current data, no memory, no teacher."""

from __future__ import annotations

from dataclasses import replace

from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.lesson import Classification
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import plain_server


def build(config: RehearsalConfig, setting: Setting) -> Roles:
    """Return the roles of finetune."""
    forgetful = replace(setting, memory=0)
    return Roles(RehearsalClient(config, forgetful, Classification), plain_server(setting, teaches=False))


register(Method("finetune", "federated averaging without memory or distillation (lower bound)", RehearsalConfig, build))
