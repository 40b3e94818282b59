"""Label flip: hostile clients train every image with the label of another class."""

from __future__ import annotations

import torch

from fcil.core.messages import RoundContext
from fcil.core.registry import Member
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.federation.attacks.base import Attack, register_attack


class LabelFlip(Attack):
    """Gives each class of the catalogue the label of the next one, and the last class that of the first."""

    def samples(self, samples: Samples, context: RoundContext) -> Samples:
        places = {name: label for label, name in enumerate(samples.ids)}
        known = [places[name] for name in context.catalogue if name in places]
        table = torch.arange(len(samples.ids))
        table[known] = torch.tensor([*known[1:], *known[:1]], dtype=torch.int64)
        return Samples(Split(samples.split.images, table[samples.split.labels]), samples.ids)


register_attack(Member("label-flip", "training with the label of the next class", LabelFlip))
