"""A small federation on separable patterns, built from the same parts as a real run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fcil.core.messages import generator
from fcil.data.augment import AugmentConfig
from fcil.data.columns import Kind, RawColumn, RawTable
from fcil.data.datasets.dataset import Source, Split, raw_source
from fcil.data.scenario.scenario import Scenario, ScenarioConfig
from fcil.experiment.build import Assembly, Maker, assemble
from fcil.experiment.config import Config, RunConfig
from fcil.federation.attacks.base import AttackConfig
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import FederationConfig
from fcil.federation.simulated_clients import SimulatedClients
from fcil.federation.simulation import Simulation, SimulationState
from fcil.methods import Roles, get_method, method_config
from fcil.methods.base import MethodConfig
from fcil.methods.privacy import PrivacyConfig
from fcil.models.client_context import ClientContext
from fcil.models.config import ModelConfig
from fcil.models.trainer import TrainConfig
from fcil.testing.lies import LyingScenario

CLASSES = 6
CHEAP = {  # settings of methods that would take minutes, where a method has them
    "rebuild_evaluations": 40,
    "rebuild_restarts": 0,
    "perturb_steps": 5,
    "images": 40,
    "calls": 3,
    "warm_up": 1,
    "synthesis_batch": 16,
    "generator_steps": 2,
    "adversarial_from": 1,
    "student_steps": 2,
}
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


def waves(kind: Literal["vector", "series"], per_class: int = 20, test_per_class: int = 10) -> Source:
    """Return raw vectors of 100 numbers, or series of two channels, of one fixed pattern per class under noise.

    With fewer numbers, patterns are not near enough to orthogonal: an old model is then sure of one of its classes for
    samples of a new one, and a method that distils over all samples (iCaRL) cannot learn the new class.
    """
    draw, shape = generator(8), (100, 1) if kind == "vector" else (2, 16)
    patterns = 3 * torch.randn(CLASSES, *shape, generator=draw) + 100
    labels = torch.arange(CLASSES).repeat(per_class + test_per_class)
    values = (patterns[labels] + 0.5 * torch.randn(len(labels), *shape, generator=draw)).double().numpy()
    columns = tuple(RawColumn(f"column {place}", values[:, place]) for place in range(shape[0]))
    held_out = [row >= CLASSES * per_class for row in range(len(labels))]
    names = tuple(f"wave {label}" for label in range(CLASSES))
    return raw_source("waves", RawTable(columns), kind, labels.tolist(), held_out, names)


def of_kind(kind: Kind, per_class: int, test_per_class: int = 10) -> Source:
    """Return a small data set of a kind."""
    return blobs(per_class, test_per_class) if kind == "image" else waves(kind, per_class, test_per_class)


NETWORK: dict[Kind, dict[str, Any]] = {  # the quickest of each kind
    "image": {"name": "cnn"},
    "vector": {"name": "mlp", "width": 32},
    "series": {"name": "cnn1d", "width": 4},
}
STAGED = "resnet18"  # for images


def _model(hyper: MethodConfig, settings: Mapping[str, Any], named: bool) -> ModelConfig:
    """Return the network with these settings; if none is named, a method that looks at stages has one with stages."""
    try:
        return hyper.network(ModelConfig(**settings))
    except ValueError:
        if named:
            raise
        return hyper.network(ModelConfig(**{**settings, "name": STAGED}))


@dataclass
class Trial:
    """A simulation and the parts a test may want to look at or tamper with."""

    simulation: Simulation
    roles: Roles  # of clients and proxy
    local: ClientContext

    @classmethod
    def of(cls, assembly: Assembly) -> Trial:
        """Return a trial of a run as it was assembled."""
        return cls(assembly.simulation, assembly.roles, assembly.local)

    @property
    def clients(self) -> SimulatedClients:
        """Return the clients' stores."""
        return self.simulation.clients

    def run(self, state: SimulationState | None = None) -> tuple[SimulationState, list[RoundRecord]]:
        """Return the final state and all records."""
        found = list(self.simulation.rounds(state if state is not None else self.simulation.start()))
        return found[-1][0], [record for _, record in found]


def trial(
    method: str,
    edition: str = "fcil",
    *,
    seed: int = 5,
    engine: str | Maker = "serial",
    workers: int = 2,
    width: int = 2,
    model: Mapping[str, Any] | None = None,
    lie: Mapping[str, Any] | None = None,
    source: Source | None = None,
    kind: Kind = "image",
    scenario: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    federation: Mapping[str, Any] | None = None,
    attack: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
) -> Trial:
    """Return a small federation of a method on blobs; every part can be changed by name.

    With `lie` it is built from a configuration whose scenario has these settings changed, and is told a false story
    about tasks and groups, while the samples come as before.
    """
    source = source or of_kind(kind, per_class=10)
    augmented = AugmentConfig(crop_padding=1 if kind == "image" else 0)
    settings = {"epochs": 1, "batch_size": 16, "learning_rate": 0.5, "augment": augmented}
    chosen = get_method(method)
    cheap = {key: value for key, value in CHEAP.items() if key in chosen.config.model_fields}
    hyper = method_config(chosen, edition, {**cheap, **(fields or {})})
    wanted = ScenarioConfig(**{**SCENARIO, **(scenario or {})})
    config = Config(
        seed=seed,
        scenario=wanted.model_copy(update=dict(lie or {})),
        model=_model(hyper, {"width": width, **NETWORK[kind], **(model or {})}, named="name" in (model or {})),
        train=TrainConfig(**{**settings, **(train or {})}),
        federation=FederationConfig(**(federation or {})),
        attack=AttackConfig(**(attack or {})),
        privacy=PrivacyConfig(**(privacy or {})),
        run=RunConfig(workers=workers),
        method_name=method,
        method_edition=edition,
        method=hyper,
    )
    made = Trial.of(
        assemble(config, source, engine, world := Scenario(wanted, source.train.labels, source.classes, seed))
    )
    if lie is not None:
        lying: Any = LyingScenario(world)
        made.simulation = replace(made.simulation, scenario=lying)
    return made
