"""The table `[privacy]`: differential privacy of every image or client, and the uploads that it does not cover."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.settings_table import SettingsTable, internal

NOT_COVERED = (
    "ids of new classes",
    "when and how often a client answers",
    "right hold-out images of each class",
    "means and deviations of pixels or columns that are measured on the data",
)
NOT_COVERED_IN_TRAINING = ("the classes of a client", "its number of images, which noise follows from")
Kind = Literal["sums", "training"]  # how a method's reports can have differential privacy


class PrivacyConfig(SettingsTable):
    """Differential privacy of images or of clients: the table `[privacy]`."""

    epsilon: float | None = Field(
        None,
        gt=0,
        le=100,
        description="what anybody may learn of one image, in the one release of `analytic` or in train.block_epochs "
        "epochs of training; absent: no guarantee",
    )
    unit: Literal["image", "client"] = Field(
        "image", description="what is hidden; client: the whole of a client, in a simulation of hundreds"
    )
    clip: float = Field(1.0, gt=0, description="training: largest gradient of an image, or largest update of a client")
    delta: float = Field(1e-5, ge=1e-9, le=1e-2, description="probability with which the guarantee may fail")
    noiseless: float = Field(
        0.5, ge=0, lt=1, description="share of a masked sum's participants that may add no noise, or drop out"
    )
    releases: int = Field(
        1, ge=1, le=1000, description="rounds of a block in which clients send sums, each with noise of its own"
    )
    budget: float | None = Field(
        None,
        gt=0,
        le=100,
        description="largest epsilon of an image, which grows where sums are sent again or an image is trained on for "
        "longer; absent: privacy.epsilon",
    )

    @field_validator("budget")
    @classmethod
    def _holds_one_release(cls, budget: float | None, info: ValidationInfo) -> float | None:
        epsilon = info.data.get("epsilon")
        if budget is not None and (epsilon is None or budget < epsilon):
            raise ValueError("at least privacy.epsilon, and absent without it")
        return budget

    noise: float = internal(0.0)  # of a round, where clients are hidden: it follows from all rounds of the run

    @property
    def on(self) -> bool:
        """Say whether there is a guarantee."""
        return self.epsilon is not None

    @property
    def most(self) -> float:
        """Return the largest epsilon that anything may spend."""
        assert self.epsilon is not None
        return self.budget or self.epsilon

    def honest(self, participants: int) -> int:
        """Return how many participants of a masked sum are counted on to add noise."""
        return max(participants - math.floor(self.noiseless * participants), 1)


def not_covered(unit: str, kind: Kind | None) -> tuple[str, ...]:
    """Return all that is told beside the guarantee, which a method keeps in its own kind of way."""
    if unit == "client":
        return (*NOT_COVERED, "updates, which the server sees unless federation.aggregator is masked")
    return (*NOT_COVERED, *NOT_COVERED_IN_TRAINING) if kind == "training" else NOT_COVERED


NOT_PRIVATE = PrivacyConfig()
