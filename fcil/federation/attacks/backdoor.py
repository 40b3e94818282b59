"""Backdoor: images with a small patch are trained as one class, and the update is sent boosted.

Bagdasaryan et al., 2020. Evaluation counts how many test images of other classes the patch turns into that class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.core.messages import ModelState, Report, RoundContext, derive_seed, generator
from fcil.core.registry import Member
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.federation.attacks.base import TARGET, Attack, moved, register_attack

BOOST = 5.0  # by which the update is multiplied
SHARE = 0.5  # of a hostile client's images that carry the trigger
PATCH, WHITE = 4, 255  # the trigger is a white square in the lower right corner, a fourth of the image wide


class Backdoor(Attack):
    """Trains part of the images with the trigger and the target's label, and sends the update times a factor."""

    images_only = True

    def triggered(self, images: Tensor) -> Tensor:
        found, side = images.clone(), max(images.shape[-1] // PATCH, 1)
        found[..., -side:, -side:] = WHITE
        return found

    def samples(self, samples: Samples, context: RoundContext) -> Samples:
        """Return the samples once the target has an output; before that nothing is poisoned."""
        if context.classes == 0 or context.catalogue[TARGET] not in samples.ids:
            return samples
        images, labels = samples.split.images, samples.split.labels
        known = samples.outputs(torch.arange(len(samples)), context) >= 0  # others stay out of training
        draw = torch.rand(len(samples), generator=generator(derive_seed(self.seed, "trigger")))
        chosen = (draw < SHARE) & known
        label = torch.tensor(samples.ids.index(context.catalogue[TARGET]))
        patched = torch.where(chosen[:, None, None, None], self.triggered(images), images)
        return Samples(Split(patched, torch.where(chosen, label, labels)), samples.ids)

    def report(self, report: Report, sent: ModelState, seed: int) -> Report:
        return moved(report, sent, BOOST)


register_attack(Member("backdoor", "a patch that turns images into one class, boosted", Backdoor))
