from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fcil.data.scenario import Scenario, ScenarioConfig
from fcil.data.source import Source, Split
from fcil.engines import SerialEngine
from fcil.federation.client import ClientStore
from fcil.federation.rounds import Engine, Federation, FederationConfig
from fcil.local import Local, TrainConfig
from fcil.methods import Setting, get_method
from fcil.methods.base import method_config
from fcil.models import ModelConfig
from fcil.wire import generator

CLASSES, SIDE = 4, 8
SCENARIO = {"tasks": 2, "rounds_per_task": 2, "initial_clients": 4, "joiners": 1, "participants": 3, "memory": 12}


def patterned_split(samples: int, seed: int) -> Split:
    """Return images of which each class lights up a quarter of its own."""
    labels = torch.arange(CLASSES).repeat(samples)
    images = torch.randint(0, 60, (len(labels), 1, SIDE, SIDE), generator=generator(seed))
    for label in range(CLASSES):
        row, column = 4 * (label // 2), 4 * (label % 2)
        images[labels == label, :, row : row + 4, column : column + 4] += 150
    return Split(images.to(torch.uint8), labels)


@pytest.fixture(scope="session")
def patterns() -> Source:
    return Source("patterns", patterned_split(12, 1), patterned_split(5, 2), ("north", "east", "south", "west"))


@pytest.fixture
def make_local(patterns: Source) -> Callable[[], Local]:
    def make() -> Local:
        train = TrainConfig(epochs=1, batch_size=24, learning_rate=0.1, milestones=())
        return Local(patterns, ModelConfig(width=2), train)

    return make


@pytest.fixture
def make_federation(patterns: Source, make_local: Callable[[], Local]) -> Callable[..., Federation]:
    def make(
        method: str = "finetune",
        wrap: Callable[[Engine], Engine] = lambda engine: engine,
        scenario: dict[str, Any] | None = None,
        hyper: dict[str, Any] | None = None,
        seed: int = 3,
        **federation: Any,
    ) -> Federation:
        config = FederationConfig(**federation)
        local = make_local()
        plan = Scenario(ScenarioConfig(**{**SCENARIO, **(scenario or {})}), patterns.train.labels, CLASSES, seed)
        chosen = get_method(method)
        setting = Setting(plan.config.memory, patterns.image_shape, config.averaging, secret=9)
        roles = chosen.build(method_config(chosen, "fcil", hyper or {}), setting)
        engine = SerialEngine(ClientStore(roles.client), plan.holding, local)
        return Federation(roles, plan, wrap(engine), local, config, seed)

    return make
