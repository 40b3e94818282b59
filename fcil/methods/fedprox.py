"""FedProx (MLSys 2020) with iCaRL's memory: each client's weights are held near those it received."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fcil.maths.penalties import MU, proximal_term
from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import Classification, Problem
from fcil.methods.privacy import Kind
from fcil.methods.server import plain_server
from fcil.models.client_context import ClientContext


class FedProxConfig(RehearsalConfig):
    """The strength of the pull."""

    private: ClassVar[Kind | None] = "training"

    mu: float = Field(MU, ge=0, description="weight of the squared distance to the received model")


class FedProx(Classification[FedProxConfig]):
    """L_CE + mu / 2 || w - w_global ||^2."""

    def __init__(self, config: FedProxConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.received = {name: value.detach().clone() for name, value in problem.net.named_parameters()}

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        near = proximal_term(dict(self.problem.net.named_parameters()), self.received, self.config.mu)
        return super().loss(images, rows) + near


def build(config: FedProxConfig, setting: Setting) -> Roles:
    """Return the roles of FedProx."""
    return Roles(RehearsalClient(config, setting, FedProx), plain_server())


register_method(Method("fedprox", "exemplars and a pull towards the received model (MLSys 2020)", FedProxConfig, build))
