"""One place that builds a run from its configuration and its data: the parties, their seeds and the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fcil.core.errors import ConfigError
from fcil.core.messages import Stream, derive_seed
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.kinds import prepared
from fcil.federation.attacks.base import Hostility
from fcil.federation.client_privacy import ClientPrivacy
from fcil.federation.engines import ENGINES, Recipe, Workplace, make_engine
from fcil.federation.masking.simulated import SimulatedMasking
from fcil.federation.proxy import ProxyParty
from fcil.federation.server import Server, ServerSeeds, has_layout
from fcil.federation.simulated_clients import SimulatedClients
from fcil.federation.simulation import Engine, Simulation
from fcil.methods import Method, Roles, Setting
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
    """Return the network that all parties build; the normalisation may have to be measured on the data."""
    channels = source.image_shape[0]
    for key, given in (("mean", model.mean), ("deviation", model.deviation)):
        if given is not None and len(given) != channels:
            raise ConfigError(
                f"model.{key}: found {len(given)} values, should be {channels}, one per channel of the images"
            )
    return model.agreed(source.image_shape, source.mean, source.deviation)


def make_recipe(config: Config, source: Source) -> Recipe:
    """Return how the clients' half of a run is built."""
    secret = derive_seed(config.seed, "secret")
    shown = config.run.prototypes if source.kind == "image" else 0  # others are no pictures
    setting = Setting(config.scenario.memory, source.image_shape, secret, shown, source.columns)
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
        privacy=config.privacy,
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


def maskable(method: Method[Any]) -> bool:
    """Say whether masked sums can serve a method with its default settings."""
    roles = method.build(method.config(), Setting(0, (3, 32, 32), None))
    return roles.proxy is None and has_layout(roles.server)


def _masking(config: Config) -> SimulatedMasking:
    secret, participants = derive_seed(config.seed, "masking"), config.scenario.participants
    return SimulatedMasking(secret, participants, config.federation.min_participants)


def assemble(
    config: Config, source: Source, engine: str | Maker = "serial", scenario: Scenario | None = None
) -> Assembly:
    """Build a run; each party is given the streams of randomness that are its own, all derived from the seed.

    An engine that no name stands for is given by its maker.
    """
    world = scenario or Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    source = prepared(config, source, world)
    hostility = Hostility.of(config.attack, len(world.population.joined), config.seed)
    hidden = ClientPrivacy.of(config.privacy, config.scenario.participants, world)
    recipe = replace(make_recipe(config, source), hostility=hostility)
    if hidden is not None:
        recipe = replace(recipe, privacy=config.privacy.model_copy(update={"noise": hidden.noise}))
    roles, machine = recipe.roles(), recipe.machine()
    samples = Samples.of(source)
    local = ClientContext.at(samples, machine)
    clients = SimulatedClients(roles.client, Stream(config.seed, "client"), world, samples)
    proxy = ProxyParty(roles.proxy, machine, Stream(config.seed, "proxy")) if roles.proxy else None
    server = replace(make_server(config, recipe, roles, machine), hidden=hidden)
    place = Workplace(clients, local, recipe, config.run.workers, config.run.address)
    if isinstance(engine, str) and engine in ENGINES:
        own = config.run.own if engine == config.run.engine else ENGINES[engine].settings()
        place = replace(place, own=own)
    runner = make_engine(engine, place) if isinstance(engine, str) else engine(place)
    attack = hostility.attack() if hostility else None
    masking = _masking(config) if server.aggregator.hides else None
    simulation = Simulation(server, proxy, clients, runner, world, source.test, attack=attack, masking=masking)
    return Assembly(simulation, roles, local, recipe)
