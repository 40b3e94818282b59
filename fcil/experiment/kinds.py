"""The kind of a data set's samples: what does not fit it is refused, and raw samples are encoded."""

from __future__ import annotations

from collections.abc import Iterator

from fcil.core.errors import ConfigError
from fcil.data.columns import WORDS, Kind
from fcil.data.datasets.dataset import Source
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config
from fcil.federation.attacks.base import ATTACKS
from fcil.models.registry import networks


def prepared(config: Config, source: Source, scenario: Scenario) -> Source:
    """Return the data set as its clients agree to encode it, once the configuration fits its kind.

    The encoding follows from the sums of the clients in the first round, over the samples that they hold then. It is
    fixed from then on, since a model would otherwise be trained on one scale and used on another.
    """
    check_kind(config, source.kind)
    if source.raw is None:
        return source
    return source.standardised(scenario.holding(0, client) for client in scenario.clients(0))


def check_kind(config: Config, kind: Kind) -> None:
    """Refuse settings that do not fit the kind of the samples."""
    problems = list(_misfits(config, kind))
    if problems:
        raise ConfigError("; ".join(problems))


def _misfits(config: Config, kind: Kind) -> Iterator[str]:
    model, found = config.model, WORDS[kind]
    if kind not in model.network.kinds:
        fitting = " or ".join(sorted(name for name, network in networks().items() if kind in network.kinds))
        taken = " and ".join(WORDS[each] for each in sorted(model.network.kinds))
        yield f"model.name: found {model.name}, which takes {taken}, should be {fitting} for {found}"
    if kind == "image":
        return
    if config.train.augment.changes:
        yield f"train.augment: it changes images, and should be absent for {found}"
    for key in ("image_size", "mean", "deviation"):
        if getattr(model, key) is not None:
            yield f"model.{key}: it is for images, and should be absent for {found}, which are standardised"
    if config.method.images_only:
        yield f"method.name: {config.method_name} makes images, and cannot be used with {found}"
    if config.attack.on and getattr(ATTACKS[config.attack.name].build, "images_only", False):
        yield f"attack.name: {config.attack.name} changes images, and cannot be used with {found}"
