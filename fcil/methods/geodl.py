"""GeoDL + iCaRL (CVPR 2021) in federated form: features distilled along the geodesic from the old to the new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.stopwatch import timed
from fcil.maths.geodesic import LAMBDA, geodesic_loss, geodesic_weight, pooled_features
from fcil.maths.relation import distilled_bce
from fcil.methods.base import Method, Roles, Setting, by_edition, register_method, staged
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import UnclippedObjective
from fcil.methods.server import newest_older_model, plain_server
from fcil.models.classifier import Classifier
from fcil.models.config import ModelConfig
from fcil.models.optimiser import Optimiser, milestones

SMALLEST_BATCH = 4  # samples that span no subspace to speak of


class GeoDLConfig(RehearsalConfig):
    """The weight and the form of L_geo."""

    geodesic_weight: float = Field(LAMBDA, ge=0, description="L_geo's weight before its factor sqrt(C_old / C_new)")
    # L_geo as in the paper, or the quadratic form of the released training
    geodesic_form: Literal["cosine", "released"] = by_edition("cosine")

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **RehearsalConfig.editions,
        "released": {"geodesic_form": "released"},
    }
    native: ClassVar[Optimiser] = Optimiser(0.1, 0.9, 1e-4, milestones((30, 10), (60, 100)), epochs=90)

    def network(self, model: ModelConfig) -> ModelConfig:
        return staged(super().network(model))


class GeoDL(UnclippedObjective[GeoDLConfig]):
    """iCaRL's loss + lambda L_geo."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher, context = self.problem.fixed_teacher, self.problem.context
        if teacher is None:
            return distilled_bce(self.problem.net(images), self.problem.targets[rows], None).mean()
        with timed("teacher"), torch.no_grad():
            old_logits, old_features = outputs(teacher, images)
        logits, features = outputs(self.problem.net, images)
        distilled = distilled_bce(logits, self.problem.targets[rows], old_logits).mean()
        if len(rows) < SMALLEST_BATCH:
            return distilled
        new = context.classes - context.old_classes
        weight = geodesic_weight(context.old_classes, new, self.config.geodesic_weight)
        return distilled + weight * geodesic_loss(features, old_features, self.config.geodesic_form).mean()


def outputs(net: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, and the last map's features as L_geo takes them."""
    maps = net.maps(images)
    return net.head(net.pool(maps)), pooled_features(net.last_map(maps))


def build(config: GeoDLConfig, setting: Setting) -> Roles:
    """Return the roles of GeoDL + iCaRL."""
    client = RehearsalClient(config, setting, GeoDL, teacher=newest_older_model)
    return Roles(client, plain_server())


register_method(Method("geodl", "iCaRL with features distilled along geodesics (CVPR 2021)", GeoDLConfig, build))
