"""iCaRL in federated form: exemplars by herding, and the old outputs distilled from the model before the growth."""

from __future__ import annotations

from torch import Tensor

from fcil.local import Loss
from fcil.maths.losses import binary_cross_entropy, one_hot
from fcil.maths.relation import relation_target
from fcil.methods.base import Method, Roles, Setting, register
from fcil.methods.rehearsal import Problem, RehearsalClient, RehearsalConfig
from fcil.methods.server import AveragingServer, newest_older_model


def distilling_loss(problem: Problem) -> Loss:
    """Return iCaRL's loss: one binary cross-entropy whose target is the teacher's sigmoid for every old output."""

    def loss(images: Tensor, rows: Tensor) -> Tensor:
        labels, teacher = problem.targets[rows], problem.teacher_logits(images)
        logits = problem.net(images)
        classes = logits.shape[1]
        target = one_hot(labels, classes, logits) if teacher is None else relation_target(labels, teacher, classes)
        return binary_cross_entropy(logits, target).mean()

    return loss


def build(config: RehearsalConfig, setting: Setting) -> Roles:
    """Return the roles of iCaRL."""
    client = RehearsalClient(config, setting, distilling_loss, teacher=newest_older_model)
    return Roles(client, AveragingServer(setting, teaches=True))


register(
    Method("icarl", "exemplars by herding and distillation of the old outputs (CVPR 2017)", RehearsalConfig, build)
)
