"""The settings of the network: its name, shape, initial weights and trained part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from fcil.core.errors import ConfigError
from fcil.core.files import with_home
from fcil.core.member_table import MemberTable
from fcil.core.registry import Registry
from fcil.core.settings_table import internal
from fcil.models.registry import NETWORKS, Blueprint, Network, Norm, Pretrained, Stem, networks

if TYPE_CHECKING:
    from fcil.core.messages import ModelState

PUBLISHED = "resnet18"
BACKBONE = "backbone."  # before the name of a tensor
STAGES = "stages:[1-9][0-9]?"
IMAGENET = "imagenet"  # in the place of a file: the weights of the network's own package
Head = Literal["linear", "proxies", "cosine", "projected", "mapped"]
ImageShape = tuple[int, int, int]  # channels, height, width


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
    projection: int = internal(0, ge=0)  # numbers that a projected or mapped head makes of the features
    head_scale: float = Field(
        8.0,
        gt=0,
        description="factor from cosines to logits (Mosaic alone)",
    )
    weights: str | None = Field(
        None,
        description="the backbone's initial weights: a file, or imagenet (extra `pretrained`); absent: random",
    )
    weights_digest: str | None = Field(
        None, description="SHA-256 of that file; absent: taken from the file when the run begins"
    )
    freeze: bool | str = Field(
        False,
        description="only the head is trained; stages:N: all but the first N stages",
    )
    image_size: int | None = Field(
        None,
        ge=8,
        le=1024,
        description="shorter side, in pixels, to which the network scales images; absent: as they are, or as suits "
        "weights `imagenet`",
    )
    mean: tuple[float, ...] | None = Field(
        None,
        description="mean per channel, in [0, 1], for normalisation; absent: of weights `imagenet`, or measured",
    )
    deviation: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="deviation per channel, for normalisation; absent: as for the mean"
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

    @field_validator("freeze", mode="before")
    @classmethod
    def _names_stages(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a value that is neither a boolean nor a number of stages of a network with stages."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or not re.fullmatch(STAGES, value):
            raise ValueError("true, false or stages:N, the number of stages that stay as they are")
        name = info.data.get("name", PUBLISHED)
        if not networks()[name].stages:
            raise ValueError(f"true or false: model.name {name} has no stages")
        return value

    @field_validator("weights", "weights_digest")
    @classmethod
    def _is_a_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.field_name == "weights" and value is not None and (not value or "\0" in value):
            raise ValueError("the name of a file")
        if info.field_name == "weights" and value == IMAGENET:
            _check_released(info.data.get("name", PUBLISHED))
        elif info.field_name == "weights" and value is not None:
            with_home(value)
        if info.field_name == "weights_digest" and value is not None and not re.fullmatch("[0-9a-f]{64}", value):
            raise ValueError("64 hexadecimal digits, as sha256sum prints them")
        return value

    @property
    def network(self) -> Network:
        """Return the network that is named."""
        return networks()[self.name]

    @property
    def frozen_stages(self) -> int:
        """Return the number of stages that stay as they are, where not all of the backbone does."""
        return int(self.freeze.removeprefix("stages:")) if isinstance(self.freeze, str) else 0

    def trains(self, name: str) -> bool:
        """Say whether a tensor of the model is one that training may change."""
        if self.freeze is True:
            return not name.startswith(BACKBONE)
        stages = tuple(f"{BACKBONE}stages.{stage}." for stage in range(self.frozen_stages))
        return not self.freeze or not name.startswith((f"{BACKBONE}stem.", *stages))

    def trained(self, model: ModelState) -> ModelState:
        """Return the tensors of a model that training may change, the only ones that a report carries."""
        return {name: tensor for name, tensor in model.items() if self.trains(name)} if self.freeze else model

    @property
    def released(self) -> Pretrained | None:
        """Return the weights of the network's own package, if the model starts or has started from them."""
        known = self.network.pretrained
        chosen = self.weights == IMAGENET or (known is not None and self.weights_digest == known.sha256)
        return known if chosen else None

    def seen(self, image_shape: ImageShape) -> ImageShape:
        """Return the shape in which the backbone sees images of this one."""
        channels, *size = image_shape
        return (self.network.channels or channels, *scaled((size[0], size[1]), self._side(size)))

    def agreed(self, image_shape: ImageShape, mean: Sequence[float], deviation: Sequence[float]) -> ModelConfig:
        """Return the settings with the values that all parties share: how the network scales and normalises images.

        Unset values follow from the released weights, or else from the measured ones.
        """
        channels, *size = image_shape
        if self.released is not None:
            mean, deviation = [self.released.mean] * channels, [self.released.deviation] * channels
        update = {"mean": self.mean or tuple(mean), "deviation": self.deviation or tuple(deviation)}
        return self.model_copy(update={**update, "image_size": self._side(size)})

    def _side(self, size: Sequence[int]) -> int | None:
        """Return the pixels of the shorter side: between the size that released weights know and half of it."""
        if self.image_size is not None or self.released is None:
            return self.image_size
        return min(max(min(size), self.released.side // 2), self.released.side)

    def blueprint(self, channels: int) -> Blueprint:
        """Return the arguments of the network's factory; grey images get as many channels as it needs."""
        wanted = self.network.channels or channels
        if channels not in (1, wanted):
            raise ConfigError(f"model.name: {self.name} takes images of 1 or {wanted} channels, found {channels}")
        return Blueprint(wanted, self.width, self.norm, self.stem, self.last_relu, self.own)

    def without_file(self) -> ModelConfig:
        """Return the settings for parties that are sent the weights, and so need no file."""
        return self.model_copy(update={"weights": None})

    def bare(self) -> ModelConfig:
        """Return the settings needed to use a finished model; its initial weights and training do not matter."""
        return self.model_copy(update={"weights": None, "weights_digest": None, "freeze": False})


NETWORKS.reserve(ModelConfig.model_fields)


def scaled(size: tuple[int, int], side: int | None) -> tuple[int, int]:
    """Return height and width once the shorter one is `side`.

    >>> scaled((32, 48), 112), scaled((32, 48), None)
    ((112, 168), (32, 48))
    """
    if side is None:
        return size
    shorter = min(size)
    return round(size[0] * side / shorter), round(size[1] * side / shorter)


def _check_released(name: str) -> None:
    """Refuse `imagenet` where no package brings such weights."""
    known = [other for other, network in networks().items() if network.pretrained is not None]
    if name not in known:
        raise ValueError(f"the name of a file: only {', '.join(known)} have weights of that name, model.name is {name}")


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
