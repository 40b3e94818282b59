"""The parts of an engine, and the messages between it and its workers."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Broadcast, Message, Shape
from fcil.core.registry import SCRIPT, Member, Registry
from fcil.core.settings_table import NoSettings, SettingsTable
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.federation.aggregation import AGGREGATORS, Aggregator
from fcil.federation.client import Done, Job, run_job
from fcil.federation.server import FederationConfig, make_aggregator
from fcil.methods import MethodConfig, PluginWarning, Roles, Setting, get_method
from fcil.models.client_context import ClientContext
from fcil.models.config import ModelConfig
from fcil.models.registry import networks
from fcil.models.trainer import TrainConfig, Trainer

if TYPE_CHECKING:
    from fcil.federation.simulated_clients import SimulatedClients
    from fcil.federation.simulation import Engine
    from fcil.methods.base import ServerRole


@dataclass(frozen=True)
class Recipe:
    """How a worker builds the clients' half of a run for itself; as text it can be sent anywhere."""

    method: str
    config: MethodConfig
    setting: Setting
    model: ModelConfig  # with its normalisation
    train: TrainConfig
    federation: FederationConfig
    device: str = "cpu"
    threads: int = 1

    def roles(self) -> Roles:
        """Return the method's roles, as those get them who know the secret."""
        return get_method(self.method).build(self.config, self.setting)

    def server(self) -> ServerRole[Any]:
        """Return the server's role, built without the secret."""
        return get_method(self.method).build(self.config, replace(self.setting, secret=None)).server

    def aggregator(self) -> Aggregator:
        """Return the aggregator, both its halves."""
        return make_aggregator(self.federation, self.server(), self.method)

    def machine(self, worker: int = 0) -> Trainer:
        """Return what the worker's machine offers; with several GPUs each worker has its own."""
        device = self.device
        if device == "cuda" and torch.cuda.device_count() > 1:
            device = f"cuda:{worker % torch.cuda.device_count()}"
        return Trainer(self.model, self.train, device)

    def text(self) -> str:
        """Return the recipe as JSON, with the modules that register the method, the aggregator and the network.

        The file of initial weights is left out: whoever reads a recipe is sent the models.
        """
        modules = {
            f"method.name: {self.method}": get_method(self.method).module,
            f"federation.aggregator: {self.federation.aggregator}": AGGREGATORS[self.federation.aggregator].module,
            f"model.name: {self.model.name}": self.model.network.module,
        }
        for what, module in modules.items():
            if module == SCRIPT:
                raise ConfigError(
                    f"{what} is defined in a script, which workers cannot import; "
                    "put it into a module, or set run.engine=serial"
                )
        plain = {
            "method": self.method,
            "modules": list(modules.values()),
            "config": self.config.model_dump(mode="json"),
            "setting": asdict(self.setting),
            "model": self.model.without_file().model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            "federation": self.federation.model_dump(mode="json"),
            "device": self.device,
            "threads": self.threads,
        }
        return json.dumps(plain)

    @classmethod
    def read(cls, text: str, import_modules: bool = True) -> Recipe:
        """Return the recipe in a text; its modules are imported first, unless it comes from somebody else's machine."""
        plain: dict[str, Any] = json.loads(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # whoever sent the recipe has said it
            for module in plain["modules"] if import_modules else ():
                importlib.import_module(module)
            method = get_method(plain["method"])
            if plain["model"]["name"] not in networks():
                raise ValueError(f"the network {plain['model']['name']} is not installed here")
        setting = {**plain["setting"], "image_shape": tuple(plain["setting"]["image_shape"])}
        if not import_modules:
            setting["shown"] = 0  # nobody else's machine decides what a site shows
        return cls(
            method=plain["method"],
            config=method.config(**plain["config"]),
            setting=Setting(**setting),
            model=ModelConfig(**plain["model"]),
            train=TrainConfig(**plain["train"]),
            federation=FederationConfig(**plain["federation"]),
            device=plain["device"],
            threads=plain["threads"],
        )


@dataclass(frozen=True)
class Workplace:
    """All that an engine needs to carry out a simulation's orders."""

    clients: SimulatedClients
    local: ClientContext
    recipe: Recipe
    workers: int = 0  # 0: as many as there are cores, or GPUs where networks run on them
    address: str | None = None  # of a cluster
    own: SettingsTable = field(default_factory=NoSettings)  # the engine's own table, `[run.NAME]`


ENGINES: Registry[Member[Callable[[Workplace], Engine]]] = Registry("engine", "fcil.federation.engines", "fcil.engines")


def register_engine(member: Member[Callable[[Workplace], Engine]]) -> None:
    """Make an engine known, under a name that no other one has; its file calls this once, at its end."""
    ENGINES.register(member)


def default_workers(device: str) -> int:
    """Return one worker per core that this process may use, or one per GPU if networks run on them."""
    if device == "cuda":
        return max(torch.cuda.device_count(), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class SharedSamples(Message):
    """A worker's view of the data: the training images, their labels, and the class id of each label."""

    images: Annotated[Tensor, Shape(("samples", "channels", "height", "width"), torch.uint8)]
    labels: Annotated[Tensor, Shape(("samples",), torch.int64)]
    ids: tuple[str, ...]

    @classmethod
    def of(cls, samples: Samples) -> SharedSamples:
        """Return the samples as a message."""
        return cls(samples.split.images, samples.split.labels, samples.ids)

    def samples(self) -> Samples:
        """Return the samples in the message."""
        return Samples(Split(self.images, self.labels), self.ids)


@dataclass(frozen=True)
class Publication(Message):
    """A round's broadcast with the models that it names."""

    broadcast: Broadcast
    models: dict[str, dict[str, Tensor]]


class Worker:
    """Carries out jobs one after the other, wherever it runs."""

    def __init__(self, recipe: Recipe, samples: Samples, number: int) -> None:
        torch.set_num_threads(recipe.threads)
        self.role = recipe.roles().client
        self.aggregator = recipe.aggregator()
        self.local = ClientContext.at(samples, recipe.machine(number))
        self.published: Publication | None = None

    def run(self, job: Job) -> Done:
        """Return the answer to a job under the broadcast that was set."""
        assert self.published is not None
        return run_job(self.role, self.aggregator, job, self.published.broadcast, self.published.models, self.local)
