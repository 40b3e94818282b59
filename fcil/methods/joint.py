"""The upper bound of a federation: federated averaging whose clients keep all data that ever came to them."""

from __future__ import annotations

from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import FitConfig
from fcil.methods.local_objective import Classification
from fcil.methods.server import plain_server


def build(config: FitConfig, setting: Setting) -> Roles:
    """Return the roles of joint training."""
    return Roles(RehearsalClient(config, setting, Classification, keeps_all=True), plain_server())


register_method(
    Method("joint", "federated averaging on all data that ever came (upper bound)", FitConfig, build, is_bound=True)
)
