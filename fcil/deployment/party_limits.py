"""Limits that the owner of a site or of the proxy sets, and that no server can raise."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fcil.core.errors import ConfigError, FederationError, reason
from fcil.core.files import read_bytes
from fcil.core.settings_table import SettingsTable, explain, shown
from fcil.deployment.transport.messages import Terms
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.engines.base import Recipe
from fcil.federation.masking.fixed_point import MOST_PARTICIPANTS
from fcil.federation.masking.messages import LEAST, least_in_sum
from fcil.models.cost import parameter_bytes

LARGEST_NUMBER = 1_000_000  # of any setting in the terms
OWN = "federation.max_update"  # of the server alone, and any number
COLUMNS = "setting.columns."  # means and deviations of any size
LONGEST_RECIPE = 1 << 16  # characters
SMALLEST_IMAGE = 4  # pixels per side


class PartyLimits(SettingsTable):
    """Limits on the server's requests to this party; a TOML file given with `--limits` changes the defaults."""

    epochs: int = Field(100, ge=1, description="train.epochs: local epochs per round")
    seconds: float = Field(3600.0, gt=0, description="seconds that a round's work may take")
    rounds: int = Field(10_000, ge=1, description="rounds of a federation in which this party takes part")
    restores: int = Field(20, ge=0, description="times that the server may go back to a backup")
    memory: int = Field(10_000, ge=0, description="scenario.memory: exemplars that a site keeps")
    image_size: int = Field(512, ge=SMALLEST_IMAGE, description="deployment.image_size: pixels per side")
    width: int = Field(256, ge=1, description="model.width: channels of the network's first stage")
    upload_bytes: int = Field(1 << 29, ge=1, description="bytes of an answer")
    methods: tuple[str, ...] = Field((), description="methods that are allowed; empty: all that are installed")
    aggregators: tuple[str, ...] = Field((), description="aggregators that are allowed; empty: all that are installed")
    epsilon: float = Field(
        0.0, ge=0, description="largest epsilon of an image; 0: terms without differential privacy are taken, too"
    )
    participants: int = Field(1, ge=1, description="least federation.min_participants: reports in every average")
    least: int = Field(LEAST, ge=LEAST, le=MOST_PARTICIPANTS, description="sites in every masked sum")
    new_classes: int = Field(100, ge=0, description="classes of others by which the catalogue may grow between rounds")
    step: float = Field(50.0, gt=0, description="largest change of a tensor between rounds, by its own size")
    loss: float = Field(30.0, gt=0, description="largest loss of a received model, by the loss of a guess")
    hold_out_images: int = Field(10, ge=1, description="least hold-out images of a class whose accuracy is told")
    evaluations: int = Field(500, ge=0, description="evaluations in all, one per round at most")

    @classmethod
    def load(cls, path: Path | None) -> PartyLimits:
        """Return the limits in a file, or the defaults without one."""
        if path is None:
            return cls()
        try:
            return cls.model_validate(tomllib.loads(read_bytes(path).decode()))
        except ValidationError as error:
            raise ConfigError(f"{path}: {'; '.join(explain(error, cls, ''))}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is no TOML file: {reason(error)}") from error


def agreeable(terms: Terms, limits: PartyLimits) -> Recipe:
    """Return the recipe of terms that a server offers, or refuse terms that are no recipe or beyond a limit."""
    check_length(terms.recipe)
    try:
        recipe = Recipe.read(terms.recipe, import_modules=False)
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise FederationError(f"the server's terms cannot be used here: {reason(error)}") from error
    check_terms(terms.recipe, recipe, limits)
    if bool(recipe.model.freeze) != bool(terms.backbone):
        raise FederationError("the server's terms are refused: model.freeze and a backbone's digest go together")
    return recipe


def check_length(text: str) -> None:
    """Refuse terms that are too long to be settings, before they are read."""
    if len(text) > LONGEST_RECIPE:
        raise FederationError(f"the server's terms have {len(text)} characters; {LONGEST_RECIPE} are the most")


def check_terms(text: str, recipe: Recipe, limits: PartyLimits) -> None:
    """Refuse terms with a value that makes no sense or is beyond a limit; the sentence names the setting."""
    _check_numbers(json.loads(text))
    _check_images(recipe, limits)
    for key, found, most in (
        ("train.epochs", recipe.train.epochs, limits.epochs),
        ("scenario.memory", recipe.setting.memory, limits.memory),
        ("model.width", recipe.model.width, limits.width),
    ):
        if not 0 <= found <= most:
            raise _beyond(key, found, f"from 0 to {most}")
    for key, name, allowed in (
        ("method.name", recipe.method, limits.methods),
        ("federation.aggregator", recipe.federation.aggregator, limits.aggregators),
    ):
        if allowed and name not in allowed:
            raise _beyond(key, name, " or ".join(allowed))
    spent = recipe.privacy.most if recipe.privacy.on else None
    if limits.epsilon and (spent is None or spent > limits.epsilon):
        raise _beyond("privacy.epsilon", spent, f"terms that spend at most {limits.epsilon:g}")
    if recipe.federation.min_participants < limits.participants:
        raise _beyond(
            "federation.min_participants", recipe.federation.min_participants, f"at least {limits.participants}"
        )
    fewest = recipe.federation.min_participants
    if AGGREGATORS[recipe.federation.aggregator].build.hides and least_in_sum(fewest) < limits.least:
        raise _beyond("federation.min_participants", fewest, f"masked sums over at least {limits.least} sites")
    size = parameter_bytes(recipe.model, recipe.setting.image_shape[0])
    if size > limits.upload_bytes:
        raise _beyond("model.name", recipe.model.name, f"a network of at most {limits.upload_bytes} bytes, not {size}")


def _check_images(recipe: Recipe, limits: PartyLimits) -> None:
    channels, height, width = recipe.setting.image_shape
    if recipe.setting.columns is not None:
        return
    if channels not in (1, 3):
        raise _beyond("deployment.channels", channels, "1 or 3")
    if height != width or not SMALLEST_IMAGE <= height <= limits.image_size:
        raise _beyond("deployment.image_size", f"{height} x {width}", f"from {SMALLEST_IMAGE} to {limits.image_size}")
    for key, values in (("model.mean", recipe.model.mean), ("model.deviation", recipe.model.deviation)):
        if values is None or len(values) != channels:
            raise _beyond(key, values, f"{channels} values")


def _check_numbers(plain: Mapping[str, Any]) -> None:
    """Refuse a number of any setting that is out of all proportion."""
    for key, value in _numbers(plain, ""):
        if key == OWN:
            continue
        most = math.inf if key.startswith(COLUMNS) else LARGEST_NUMBER
        if not math.isfinite(value) or abs(value) > most:
            raise _beyond(key, value, f"a number of at most {LARGEST_NUMBER}")


def _numbers(value: Any, key: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON value with their keys."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(inner, f"{key}.{place}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value


def _beyond(key: str, found: Any, right: str) -> FederationError:
    for inner, outer in (("config.", "method."), ("setting.memory", "scenario.memory")):
        key = outer + key.removeprefix(inner) if key.startswith(inner) else key
    return FederationError(f"the server's terms are refused: {key}: found {shown(found)}, this party takes {right}")
