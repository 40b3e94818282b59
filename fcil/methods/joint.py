"""The upper bound of a federation: federated averaging whose clients keep all data that ever came to them."""

from __future__ import annotations

from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.lesson import Classification
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import plain_server


class JointClient(RehearsalClient):
    """Nothing ever goes out of use, so there is no need of a memory either."""

    keeps_all = True


def build(config: RehearsalConfig, setting: Setting) -> Roles:
    """Return the roles of joint training."""
    return Roles(JointClient(config, setting, Classification), plain_server(setting, teaches=False))


register(Method("joint", "federated averaging on all data that ever came (upper bound)", RehearsalConfig, build))
