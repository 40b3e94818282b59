"""Settings that cannot go with `privacy.epsilon`, each refused in a sentence that names both keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from fcil.core.errors import ConfigError
from fcil.methods import Roles, Setting, methods
from fcil.methods.detection import DetectionConfig, FitConfig
from fcil.models.classifier import Classifier

if TYPE_CHECKING:
    from fcil.experiment.config import Config

HIGHEST = 10.0  # epsilon of sums
Wrong = tuple[str, object, str, str]  # a key, what was found, what would be right, and why


def check_privacy(config: Config) -> None:
    """Refuse settings under which a guarantee would not hold."""
    if not config.privacy.on:
        return
    found = _of_sums(config) if config.method.private == "sums" else _of_training(config)
    for key, value, wanted, reason in found:
        raise ConfigError(f"{key}: found {value}, should be {wanted}, with privacy.epsilon: {reason}")


def _of_sums(config: Config) -> Iterator[Wrong]:
    privacy, name = config.privacy, config.method_name
    if privacy.unit != "image":
        yield "privacy.unit", privacy.unit, "image", f"the noise of method.name {name} hides single images"
    if privacy.epsilon is not None and privacy.epsilon > HIGHEST:
        yield "privacy.epsilon", f"{privacy.epsilon:g}", f"at most {HIGHEST:g}", f"{name} adds noise in whole numbers"


def _of_training(config: Config) -> Iterator[Wrong]:
    """Yield the settings that no method that trains can have."""
    yield from _of_clients(config) if config.privacy.unit == "client" else _of_images(config)
    if _has_batch_norm(config):
        yield "model.norm", config.model.norm, "group (or model.freeze true)", "batch norm mixes the images of a batch"
    if isinstance(config.method, FitConfig) and config.method.warm_start:
        yield "method.warm_start", "true", "false", "its sums have no noise"
    if config.federation.averaging != "uniform":
        yield "federation.averaging", config.federation.averaging, "uniform", "reports tell no number of images"
    if config.privacy.releases != 1:
        yield "privacy.releases", config.privacy.releases, "1", f"method.name {config.method_name} sends no sums"


def _of_clients(config: Config) -> Iterator[Wrong]:
    name, roles = config.method_name, _roles(config)
    if roles.proxy is not None or roles.server.needs or not roles.server.averages:
        plain = "a method whose reports are a model alone, for instance finetune"
        yield "method.name", name, plain, "whatever else a report has would need noise of its own"


def _of_images(config: Config) -> Iterator[Wrong]:
    settings, name = config.method, config.method_name
    if settings.private is None:
        known = sorted(key for key, method in methods().items() if method.config.private)
        mixed = "a sample may change what its method makes of other samples"
        yield "method.name", name, " or ".join(known), mixed
    elif _roles(config).client.memory:
        yield "scenario.memory", config.scenario.memory, "0", "which images are kept depends on the others"
    if isinstance(settings, DetectionConfig) and settings.detector == "entropy":
        yield "method.detector", "entropy", "labels", "an alarm would tell of single images"
    for key in ("compile", "mixed_precision"):
        if getattr(config.train, key):
            yield f"train.{key}", "true", "false", "gradients are computed image by image"


def _roles(config: Config) -> Roles:
    return methods()[config.method_name].build(config.method, Setting(config.scenario.memory, (3, 32, 32), None))


def _has_batch_norm(config: Config) -> bool:
    """Say whether a part of the network that is trained has batch norm."""
    channels = config.model.network.channels or 3
    with torch.device("meta"):
        net = Classifier(config.model.without_file(), [0.0] * channels, [1.0] * channels, classes=1).train()
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in net.modules())
