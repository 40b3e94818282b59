"""Detection of new classes in a client's data: by their labels, by the paper's rise in entropy, or by an oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fcil.core.messages import Broadcast, RoundContext, derive_seed, generator
from fcil.maths.entropy import official_entropy, relative_threshold, rises
from fcil.methods.base import Current, MethodConfig, by_edition
from fcil.models.optimiser import COSINE, GENTLE, PAPER, Clock, Optimiser

if TYPE_CHECKING:
    from fcil.models.client_context import ClientContext

WARM = "warm."  # begins the names of the sums of a warm start
PUBLISHED: Mapping[str, Optimiser] = {"paper": PAPER, "gentle": GENTLE, "cosine": COSINE}  # the same for all methods


class FitConfig(MethodConfig):
    """The optimiser; shared by all methods."""

    optimiser: Literal["train", "paper", "gentle", "cosine", "native"] = Field(
        "train",
        description="rate, momentum, decay and schedule; train: those of [train]; paper: those of GLFC's paper; "
        "gentle: the paper's at a tenth of the rate; cosine: mosaic's, a cosine from 0.05 to zero over each block; "
        "native: those of the method's own source",
    )
    warm_start: bool = Field(
        False,
        description="after the first round of a block, the new rows of the head point where ridge regression on sums "
        "of features does, as in analytic",
    )
    # growth: milestones hold for the rest of the block; round: only for the rest of their round
    learning_rate_clock: Clock = by_edition("growth")

    @field_validator("warm_start")
    @classmethod
    def _has_rows(cls, value: bool) -> bool:
        if value and cls.head == "proxies":
            raise ValueError("false: a class has several rows in the head of this method")
        return value

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": {},
        "paper": {},
        "official": {"learning_rate_clock": "round"},
    }

    def sends(self) -> dict[str, str]:
        sums = "in the first round of a block, sums of its features, of their products and of its samples, by class"
        return {WARM: sums} if self.warm_start else {}

    def chosen_optimiser(self, local: ClientContext) -> Optimiser:
        """Return the optimiser's settings; published schedules are scaled to the planned length of a block."""
        published = {**PUBLISHED, "native": self.native}
        train = local.machine.train
        if self.optimiser == "train":
            return train.optimiser()
        return published[self.optimiser].over(train.block_epochs)


class DetectionConfig(FitConfig):
    """Settings of the detection of new classes; shared by all methods that let old data go out of use."""

    detector: Literal["labels", "entropy", "oracle"] = Field(
        "labels",
        description="how a client notices new classes; labels: its data holds a class that it has not had before; "
        "entropy: the paper's rule; oracle: it is told",
    )
    entropy_threshold: Literal["absolute", "relative"] = Field(
        "absolute", description="unit of the rise that raises an alarm: nats, or a share of ln(outputs)"
    )
    entropy_jump: float = Field(1.2, gt=0, description="rise that raises an alarm, in nats (the paper's r_h)")
    entropy_fraction: float = Field(0.5, gt=0, lt=1, description="rise that raises an alarm, as a share of ln(outputs)")
    entropy_outputs: Literal["all", "old"] = Field("all", description="outputs that the entropy covers")
    entropy_rule: Literal["text", "code"] = Field(
        "text", description="text: the paper's; code: augmented images, strict comparison and ln(p + 1e-5), as released"
    )

    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": FitConfig.editions["fcil"],
        "paper": {**FitConfig.editions["paper"], "detector": "entropy"},
        "official": {**FitConfig.editions["official"], "detector": "entropy", "entropy_rule": "code"},
    }


def mean_entropy(
    config: DetectionConfig, latest: Tensor, broadcast: Broadcast, current: Current, local: ClientContext
) -> float | None:
    """Return the mean entropy of the received model over the newest arrival, if there is one."""
    if len(latest) == 0:
        return None
    outputs, model = _outputs(config, broadcast.context), current.models[broadcast.model]
    if config.entropy_rule == "text":
        return float(local.inference.entropies(broadcast.model, model, latest, outputs).mean())
    train = local.machine.train
    draw, net = generator(derive_seed(current.seed, "entropy")), local.machine.fixed_net(model)
    with torch.inference_mode():
        parts = torch.split(latest, train.batch_size)
        logits = torch.cat([net(local.batch(net, part, draw)) for part in parts])
    return float(official_entropy(logits[:, :outputs]).mean())


def raises_alarm(
    config: DetectionConfig, entropy: float | None, previous: float | None, new: bool, told: bool, context: RoundContext
) -> bool:
    """Decide whether new classes have arrived: `new` says the labels, `told` the oracle; no data means no alarm."""
    if entropy is None:
        return False
    if config.detector == "oracle":
        return told
    if config.detector == "labels":
        return new
    threshold = config.entropy_jump
    if config.entropy_threshold == "relative":
        threshold = relative_threshold(config.entropy_fraction, _outputs(config, context))
    return rises(entropy, previous or 0.0, threshold, strict=config.entropy_rule == "code")


def _outputs(config: DetectionConfig, context: RoundContext) -> int:
    """Return how many outputs, from the first on, the entropy is taken over."""
    return context.old_classes if config.entropy_outputs == "old" and context.old_classes > 1 else context.classes
