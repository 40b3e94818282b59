"""Plain federated averaging: binary cross-entropy on the current data, no memory, no teacher."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fcil.local import Loss
from fcil.maths.losses import binary_cross_entropy, one_hot
from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.rehearsal import Problem, RehearsalClient, RehearsalConfig
from fcil.methods.server import AveragingServer


def classification_loss(problem: Problem) -> Loss:
    """Return L_CE: the mean binary cross-entropy with the labels."""

    def loss(images: Tensor, rows: Tensor) -> Tensor:
        logits = problem.net(images)
        return binary_cross_entropy(logits, one_hot(problem.targets[rows], logits.shape[1], logits)).mean()

    return loss


def build(config: RehearsalConfig, setting: Setting) -> Roles:
    """Return the roles of finetune."""
    forgetful = replace(setting, memory=0)
    return Roles(RehearsalClient(config, forgetful, classification_loss), AveragingServer(setting, teaches=False))


register(Method("finetune", "federated averaging without memory or distillation (lower bound)", RehearsalConfig, build))
