"""Plain federated averaging: binary cross-entropy on the current data, no memory, no teacher."""

from __future__ import annotations

from typing import ClassVar

from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Classification
from fcil.methods.privacy import Kind
from fcil.methods.server import plain_server


class FinetuneConfig(DetectionConfig):
    """No settings of its own."""

    private: ClassVar[Kind | None] = "training"


def build(config: FinetuneConfig, setting: Setting) -> Roles:
    """Return the roles of finetune."""
    return Roles(RehearsalClient(config, setting, Classification), plain_server())


register_method(
    Method("finetune", "federated averaging without memory or distillation (lower bound)", FinetuneConfig, build)
)
