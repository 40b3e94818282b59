"""A small federation on separable patterns, built from the same parts as a real run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fcil.data.scenario import Scenario, ScenarioConfig
from fcil.data.source import Source, Split
from fcil.data.transforms import AugmentConfig
from fcil.engines import Recipe, Workplace, make_engine
from fcil.federation.client import ClientStore
from fcil.federation.rounds import Federation, FederationConfig, FederationState, RoundRecord
from fcil.local import TrainConfig
from fcil.methods import Roles, Setting, get_method, method_config
from fcil.models import ModelConfig
from fcil.wire import generator

CLASSES = 6
CHEAP = {"rebuild_evaluations": 40, "rebuild_restarts": 0, "perturb_steps": 5}
SCENARIO: dict[str, Any] = {
    "tasks": 3,
    "rounds_per_task": 2,
    "initial_clients": 4,
    "joiners": 1,
    "participants": 3,
    "memory": 12,
    "both_share": 0.75,
}


def blobs(per_class: int = 20, test_per_class: int = 10, size: int = 8, channels: int = 1) -> Source:
    """Return images of one fixed random pattern per class under noise."""
    draw = generator(7)
    patterns = torch.rand(CLASSES, channels, size, size, generator=draw)

    def split(count: int) -> Split:
        labels = torch.arange(CLASSES).repeat(count)
        noise = 0.15 * torch.randn(len(labels), channels, size, size, generator=draw)
        return Split(((patterns[labels] + noise).clamp(0, 1) * 255).to(torch.uint8), labels)

    return Source("blobs", split(per_class), split(test_per_class), tuple(f"blob {label}" for label in range(CLASSES)))


@dataclass
class Trial:
    """A federation and the parts a test may want to look at or tamper with."""

    federation: Federation
    store: ClientStore
    roles: Roles

    def play(self, state: FederationState | None = None) -> tuple[FederationState, list[RoundRecord]]:
        """Return the final state and all records."""
        played = list(self.federation.rounds(state if state is not None else self.federation.start()))
        return played[-1][0], [record for _, record in played]


def trial(
    method: str,
    preset: str = "fcil",
    *,
    seed: int = 5,
    engine: str = "serial",
    workers: int = 2,
    width: int = 2,
    block_epochs: int = 200,
    source: Source | None = None,
    scenario: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    federation: Mapping[str, Any] | None = None,
) -> Trial:
    """Return a small federation of a method on blobs; every part can be changed by name."""
    source = source or blobs(per_class=10)
    world = Scenario(ScenarioConfig(**{**SCENARIO, **(scenario or {})}), source.train.labels, source.classes, seed)
    settings = {"epochs": 1, "batch_size": 16, "learning_rate": 0.5, "augment": AugmentConfig(crop_padding=1)}
    chosen = get_method(method)
    cheap = {key: value for key, value in CHEAP.items() if key in chosen.config.model_fields}
    config = method_config(chosen, preset, {**cheap, **(fields or {})})
    setting = Setting(world.config.memory, source.image_shape, "uniform", secret=99, block_epochs=block_epochs)
    network = config.network(ModelConfig(width=width))
    recipe = Recipe(method, config, setting, network, TrainConfig(**{**settings, **(train or {})}))
    roles, local = recipe.roles(), recipe.local(source)
    store = ClientStore(roles.client)
    runner = make_engine(engine, Workplace(store, world.holding, local, recipe, workers))
    rules = FederationConfig(**(federation or {}))
    return Trial(Federation(roles, world, runner, local, rules, seed), store, roles)
