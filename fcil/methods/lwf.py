"""LwF (ECCV 2016) in federated form: the old outputs are distilled on new data alone, without any memory."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fcil.maths.distillation import TEMPERATURE, distillation
from fcil.maths.losses import cross_entropy
from fcil.methods.base import Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import UnclippedObjective
from fcil.methods.privacy import Kind
from fcil.methods.server import newest_older_model, plain_server


class LwFConfig(DetectionConfig):
    """The weight and the temperature of the distillation."""

    private: ClassVar[Kind | None] = "training"

    distillation_weight: float = Field(1.0, ge=0, description="lambda, weight of the distillation")
    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")


class LwF(UnclippedObjective[LwFConfig]):
    """Softmax cross-entropy + lambda KL(teacher || student) over the old outputs, both at temperature 2."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher = self.problem.teacher_logits(images, rows)
        logits = self.problem.net(images)
        classified = cross_entropy(logits, self.problem.targets[rows]).mean()
        if teacher is None:
            return classified
        distilled = distillation(logits, teacher, self.config.temperature).mean()
        return classified + self.config.distillation_weight * distilled


def build(config: LwFConfig, setting: Setting) -> Roles:
    """Return the roles of LwF."""
    client = RehearsalClient(config, setting, LwF, teacher=newest_older_model)
    return Roles(client, plain_server())


register_method(Method("lwf", "distillation of the old outputs without any memory (ECCV 2016)", LwFConfig, build))
