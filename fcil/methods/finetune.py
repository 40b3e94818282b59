"""Plain federated averaging: binary cross-entropy on the current data, no memory, no teacher."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fcil.maths.losses import labelled_bce
from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.lesson import Lesson
from fcil.methods.rehearsal import RehearsalClient, RehearsalConfig
from fcil.methods.server import plain_server


class Classification(Lesson[RehearsalConfig]):
    """L_CE alone."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        return labelled_bce(self.problem.net(images), self.problem.targets[rows]).mean()


def build(config: RehearsalConfig, setting: Setting) -> Roles:
    """Return the roles of finetune."""
    forgetful = replace(setting, memory=0)
    return Roles(RehearsalClient(config, forgetful, Classification), plain_server(setting, teaches=False))


register(Method("finetune", "federated averaging without memory or distillation (lower bound)", RehearsalConfig, build))
