"""The table `[privacy]`: differential privacy of every image, and the uploads that it does not cover."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.settings_table import SettingsTable

NOT_COVERED = (
    "ids of new classes",
    "when and how often a client answers",
    "right hold-out images of each class",
    "means and deviations of pixels or columns that are measured on the data",
)


class PrivacyConfig(SettingsTable):
    """Differential privacy of images: the table `[privacy]`."""

    epsilon: float | None = Field(
        None, gt=0, le=10, description="what anybody may learn of one image; absent: no guarantee"
    )
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
        description="largest epsilon of an image, which grows where sums are sent again; absent: privacy.epsilon",
    )

    @field_validator("budget")
    @classmethod
    def _holds_one_release(cls, budget: float | None, info: ValidationInfo) -> float | None:
        epsilon = info.data.get("epsilon")
        if budget is not None and (epsilon is None or budget < epsilon):
            raise ValueError("at least privacy.epsilon, and absent without it")
        return budget

    @property
    def on(self) -> bool:
        """Say whether there is a guarantee."""
        return self.epsilon is not None


NOT_PRIVATE = PrivacyConfig()
