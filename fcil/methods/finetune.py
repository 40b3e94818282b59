"""Plain federated averaging: binary cross-entropy on the current data, no memory, no teacher."""

from __future__ import annotations

from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Classification
from fcil.methods.server import plain_server


def build(config: DetectionConfig, setting: Setting) -> Roles:
    """Return the roles of finetune."""
    return Roles(RehearsalClient(config, setting, Classification), plain_server())


register_method(
    Method("finetune", "federated averaging without memory or distillation (lower bound)", DetectionConfig, build)
)
