"""SS-IL (ICCV 2021) in federated form: a softmax of its own for old and new classes, distillation task by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.maths.distillation import TEMPERATURE
from fcil.maths.separated import separated_cross_entropy, taskwise_distillation
from fcil.methods.base import Method, Roles, Setting, by_edition, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import UnclippedObjective
from fcil.methods.server import newest_older_model, plain_server
from fcil.models.optimiser import Optimiser, milestones
from fcil.models.trainer import shuffled


class SSILConfig(RehearsalConfig):
    """The share of replay in a batch and the temperature; exemplars are not herded in any edition."""

    herding: Literal["unique", "replacement", "first"] = by_edition("first")  # as in the source
    replay_share: float = Field(
        0.25, gt=0, le=1, description="exemplars added to each batch, as a share of train.batch_size"
    )
    temperature: float = Field(TEMPERATURE, gt=0, description="temperature of the distillation")

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {**fields, "herding": "first"} for name, fields in RehearsalConfig.editions.items()
    }
    native: ClassVar[Optimiser] = Optimiser(0.1, 0.9, 1e-4, milestones((40, 10), (80, 100)), epochs=100, by_block=True)


class SSIL(UnclippedObjective[SSILConfig]):
    """Cross-entropy among the old or among the new outputs, whichever a sample belongs to, + task-wise KD."""

    def epoch(self, draw: torch.Generator) -> list[Tensor]:
        """Return batches of new samples, each joined by a share of exemplars, which come round again and again."""
        newest = self.problem.newest.cpu()
        fresh, replay = newest.nonzero().squeeze(1), (~newest).nonzero().squeeze(1)
        if len(fresh) == 0 or len(replay) == 0:
            return super().epoch(draw)
        size = self.local.machine.train.batch_size
        batches = shuffled(fresh, size, draw)
        share = max(1, round(self.config.replay_share * size))
        rounds = -(-share * len(batches) // len(replay))
        order = torch.cat([replay[torch.randperm(len(replay), generator=draw)] for _ in range(rounds)])
        return [
            torch.cat([batch, order[number * share : (number + 1) * share]]) for number, batch in enumerate(batches)
        ]

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        teacher, context = self.problem.teacher_logits(images, rows), self.problem.context
        logits, labels = self.problem.net(images), self.problem.targets[rows]
        classified = separated_cross_entropy(logits, labels, context.old_classes).mean()
        if teacher is None:
            return classified
        return classified + taskwise_distillation(logits, teacher, context.blocks, self.config.temperature).mean()


def build(config: SSILConfig, setting: Setting) -> Roles:
    """Return the roles of SS-IL."""
    client = RehearsalClient(config, setting, SSIL, teacher=newest_older_model)
    return Roles(client, plain_server())


register_method(Method("ssil", "separated softmax and distillation task by task (ICCV 2021)", SSILConfig, build))
