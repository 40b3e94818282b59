"""One place that builds a run from its configuration and its data: the parties, their seeds and the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fcil.core.errors import ConfigError
from fcil.core.messages import Stream, derive_seed
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.federation.engines import ENGINES, Recipe, Workplace, make_engine
from fcil.federation.proxy import ProxyParty
from fcil.federation.server import Server, ServerSeeds
from fcil.federation.simulated_clients import SimulatedClients
from fcil.federation.simulation import Engine, Simulation
from fcil.methods import Roles, Setting
from fcil.models.client_context import ClientContext
from fcil.models.trainer import Trainer

if TYPE_CHECKING:
    from fcil.data.datasets.dataset import Source
    from fcil.experiment.config import Config
    from fcil.models.config import ModelConfig

Maker = Callable[[Workplace], Engine]


@dataclass(frozen=True)
class Assembly:
    """A simulation and the parts of it that a caller may want to look at."""

    simulation: Simulation
    roles: Roles  # of those who know the secret
    local: ClientContext
    recipe: Recipe


def agreed_model(model: ModelConfig, source: Source) -> ModelConfig:
    """Return the network that all parties build, with the normalisation measured on the data unless it is given."""
    channels = source.image_shape[0]
    for key, given in (("mean", model.mean), ("deviation", model.deviation)):
        if given is not None and len(given) != channels:
            raise ConfigError(
                f"model.{key}: found {len(given)} values, should be {channels}, one per channel of the images"
            )
    mean = source.mean if model.mean is None else model.mean
    deviation = source.deviation if model.deviation is None else model.deviation
    return model.model_copy(update={"mean": mean, "deviation": deviation})


def make_recipe(config: Config, source: Source) -> Recipe:
    """Return how the clients' half of a run is built."""
    secret, shown = derive_seed(config.seed, "secret"), config.run.prototypes
    setting = Setting(config.scenario.memory, source.image_shape, secret, shown)
    return recipe_of(config, setting, agreed_model(config.model, source))


def recipe_of(config: Config, setting: Setting, model: ModelConfig) -> Recipe:
    """Return the recipe from which any party of a run builds its half."""
    return Recipe(
        method=config.method_name,
        config=config.method,
        setting=setting,
        model=model,
        train=config.train,
        federation=config.federation,
        device=config.run.device,
        threads=config.run.threads,
    )


def make_server(config: Config, recipe: Recipe, roles: Roles, machine: Trainer) -> Server:
    """Return the server of a simulation or of a real federation."""
    return Server(
        role=recipe.server(),
        aggregator=recipe.aggregator(),
        config=config.federation,
        machine=machine,
        participants=config.scenario.participants,
        teaches=roles.teaches,
        seeds=ServerSeeds.of(config.seed),
    )


def assemble(
    config: Config, source: Source, engine: str | Maker = "serial", scenario: Scenario | None = None
) -> Assembly:
    """Build a run; each party is given the streams of randomness that are its own, all derived from the seed.

    An engine that no name stands for is given by its maker.
    """
    recipe = make_recipe(config, source)
    roles, machine = recipe.roles(), recipe.machine()
    world = scenario or Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    samples = Samples.of(source)
    local = ClientContext.at(samples, machine)
    clients = SimulatedClients(roles.client, Stream(config.seed, "client"), world, samples)
    proxy = ProxyParty(roles.proxy, machine, Stream(config.seed, "proxy")) if roles.proxy else None
    server = make_server(config, recipe, roles, machine)
    place = Workplace(clients, local, recipe, config.run.workers, config.run.address)
    if isinstance(engine, str) and engine in ENGINES:
        own = config.run.own if engine == config.run.engine else ENGINES[engine].settings()
        place = replace(place, own=own)
    runner = make_engine(engine, place) if isinstance(engine, str) else engine(place)
    return Assembly(Simulation(server, proxy, clients, runner, world, source.test), roles, local, recipe)
