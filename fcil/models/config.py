"""The settings of the network: which one, its shape, what it starts from and whether all of it is trained."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.files import with_home
from fcil.core.member_table import MemberTable
from fcil.core.registry import Registry
from fcil.core.settings_table import internal
from fcil.models.registry import NETWORKS, Blueprint, Network, Norm, Stem, networks

PUBLISHED = "resnet18"
Head = Literal["linear", "proxies", "cosine"]


class ModelConfig(MemberTable):
    """The backbone and its head."""

    members: ClassVar[Registry[Any]] = NETWORKS
    chooser: ClassVar[str] = "name"
    within: ClassVar[str] = "model"

    name: str = Field(PUBLISHED, description="the network, see `fcil list networks` and docs/networks.md")
    width: int = Field(64, ge=1, description="channels of the first stage; 64 is the published ResNet-18")
    norm: Norm = Field("batch", description="normalisation by batch, as published, or by groups of an image's channels")
    stem: Stem = Field("cifar", description="cifar: one 3 x 3 convolution; imagenet: 7 x 7 with pooling")
    last_relu: bool = Field(True, description="activation after the last block; PODNet has none")
    head: Head = internal("linear")  # the method decides it: PODNet has several proxies per class, Mosaic cosines
    head_scale: float = Field(
        8.0,
        gt=0,
        description="factor from cosines to logits (Mosaic alone)",
    )
    weights: str | None = Field(
        None, description="file with the backbone's initial weights (safetensors or torch.save); absent: random"
    )
    weights_digest: str | None = Field(
        None, description="SHA-256 of that file; absent: taken from the file when the run begins"
    )
    freeze: bool = Field(False, description="the backbone stays as it is, and only the head is trained")
    mean: tuple[float, ...] | None = Field(
        None, description="mean per channel, in [0, 1], for normalisation; absent: measured on the training images"
    )
    deviation: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="deviation per channel, for normalisation; absent: measured on the training images"
    )

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in networks():
            raise ValueError(NETWORKS.one_of(name))
        return name

    @field_validator("width", "norm", "stem", "last_relu")
    @classmethod
    def _is_read(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a setting that the network does not look at, unless it has its default."""
        name, key = info.data.get("name", PUBLISHED), str(info.field_name)
        default = cls.model_fields[key].default
        if name != PUBLISHED and value != default and key not in networks()[name].reads:
            raise ValueError(f"{_written(default)}, its default: model.name {name} has no such setting")
        return value

    @field_validator("weights", "weights_digest")
    @classmethod
    def _is_a_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.field_name == "weights" and value is not None and (not value or "\0" in value):
            raise ValueError("the name of a file")
        if info.field_name == "weights" and value is not None:
            with_home(value)
        if info.field_name == "weights_digest" and value is not None and not re.fullmatch("[0-9a-f]{64}", value):
            raise ValueError("64 hexadecimal digits, as sha256sum prints them")
        return value

    @property
    def network(self) -> Network:
        """Return the network that is named."""
        return networks()[self.name]

    def blueprint(self, channels: int) -> Blueprint:
        """Return what the network's factory is given."""
        return Blueprint(channels, self.width, self.norm, self.stem, self.last_relu, self.own)

    def without_file(self) -> ModelConfig:
        """Return the settings for those who are sent the weights and need no file: all but who starts the model."""
        return self.model_copy(update={"weights": None})

    def bare(self) -> ModelConfig:
        """Return what it takes to use a finished model, whatever it started from and however it was trained."""
        return self.model_copy(update={"weights": None, "weights_digest": None, "freeze": False})


NETWORKS.reserve(ModelConfig.model_fields)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
