"""A method: softmax cross-entropy on new data and exemplars, with smoothed labels."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import LocalObjective
from fcil.methods.server import plain_server


class SoftmaxConfig(RehearsalConfig):
    """The settings of every method with exemplars, and one of its own."""

    smoothing: float = Field(0.0, ge=0, lt=1, description="share of a label that goes to all classes alike")


class Softmax(LocalObjective[SoftmaxConfig]):
    """The loss of one client's local training."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the loss of a batch; `rows` are its rows among the client's training samples."""
        logits = self.problem.net(images)
        return F.cross_entropy(logits, self.problem.targets[rows], label_smoothing=self.config.smoothing)


def build(config: SoftmaxConfig, setting: Setting) -> Roles:
    """Return the roles: clients rehearse with the loss above, and the server averages."""
    return Roles(RehearsalClient(config, setting, Softmax), plain_server())


register_method(Method("softmax-replay", "softmax cross-entropy with exemplars", SoftmaxConfig, build))
