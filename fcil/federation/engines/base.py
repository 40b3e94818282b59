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
from fcil.data.columns import Columns
from fcil.data.datasets.dataset import Split
from fcil.data.datasets.search_path import cache_folder
from fcil.data.samples import Samples
from fcil.federation.aggregation import AGGREGATORS, Aggregator
from fcil.federation.attacks.base import ATTACKS, HostileRole, Hostility, UnstagedAggregator
from fcil.federation.client import Done, Job, run_job
from fcil.federation.client_privacy import ClippedReports
from fcil.federation.server import FederationConfig, make_aggregator
from fcil.methods import MethodConfig, PluginWarning, Roles, Setting, get_method
from fcil.methods.privacy import NOT_PRIVATE, PrivacyConfig
from fcil.methods.warm_start import warmed
from fcil.models.client_context import ClientContext
from fcil.models.config import ModelConfig
from fcil.models.frozen import BlockStore
from fcil.models.registry import networks
from fcil.models.trainer import TrainConfig, Trainer

if TYPE_CHECKING:
    from fcil.federation.simulated_clients import SimulatedClients
    from fcil.federation.simulation import Engine
    from fcil.methods.base import ServerRole


FEATURES = "features"  # folder in the user's cache


@dataclass(frozen=True)
class Recipe:
    """Builds the clients' half of a run at a worker; as text it can be sent anywhere."""

    method: str
    config: MethodConfig
    setting: Setting
    model: ModelConfig  # with its normalisation
    train: TrainConfig
    federation: FederationConfig
    device: str = "cpu"
    threads: int = 1
    hostility: Hostility | None = None  # of some clients, in a simulation
    privacy: PrivacyConfig = NOT_PRIVATE

    def roles(self) -> Roles:
        """Return the method's roles, built with the secret."""
        roles = self._built(self.setting)
        return replace(roles, client=HostileRole(roles.client, self.hostility)) if self.hostility else roles

    def server(self) -> ServerRole[Any]:
        """Return the server's role, built without the secret."""
        return self._built(replace(self.setting, secret=None)).server

    def _built(self, setting: Setting) -> Roles:
        setting = replace(setting, privacy=self.privacy)
        roles = warmed(get_method(self.method).build(self.config, setting), self.config)
        if not self.privacy.on or self.config.private != "training":
            return roles
        from fcil.methods.noisy_training import noised  # noqa: PLC0415 (only private runs need it)

        return noised(roles, self.privacy)

    def aggregator(self) -> Aggregator:
        """Return the aggregator, both its halves."""
        roles = self._built(replace(self.setting, secret=None))
        aggregator = make_aggregator(self.federation, roles.server, self.method, roles.proxy is not None)
        if self.privacy.on and self.privacy.unit == "client":
            aggregator = ClippedReports(aggregator, self.privacy)
        return UnstagedAggregator(aggregator, self.hostility) if self.hostility else aggregator

    def machine(self, worker: int = 0, store: BlockStore | None = None) -> Trainer:
        """Return the worker's trainer; with several GPUs each worker has its own.

        Features of a frozen network are kept in the user's cache, unless another store is given.
        """
        device = self.device
        if device == "cuda" and torch.cuda.device_count() > 1:
            device = f"cuda:{worker % torch.cuda.device_count()}"
        return Trainer(self.model, self.train, device, store or BlockStore(cache_folder() / FEATURES))

    def text(self) -> str:
        """Return the recipe as JSON, with the modules that register the method, the aggregator and the network.

        The file of initial weights is left out: a reader of the recipe is sent the models.
        """
        modules = {
            f"method.name: {self.method}": get_method(self.method).module,
            f"federation.aggregator: {self.federation.aggregator}": AGGREGATORS[self.federation.aggregator].module,
            f"model.name: {self.model.name}": self.model.network.module,
        }
        if self.hostility is not None:
            name = self.hostility.config.name
            modules[f"attack.name: {name}"] = ATTACKS[name].module
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
            "setting": {**_plain(self.setting), **_written(self.setting.columns)},
            "model": self.model.without_file().model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            "federation": self.federation.model_dump(mode="json"),
            "device": self.device,
            "threads": self.threads,
        }
        if self.hostility is not None:
            plain["hostility"] = self.hostility.written()
        if self.privacy.on:
            plain["privacy"] = self.privacy.model_dump(mode="json")
        return json.dumps(plain)

    @classmethod
    def read(cls, text: str, import_modules: bool = True) -> Recipe:
        """Return the recipe in a text; its modules are imported first, unless it comes from somebody else's machine."""
        plain: dict[str, Any] = json.loads(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # the sender of the recipe has said it
            for module in plain["modules"] if import_modules else ():
                importlib.import_module(module)
            method = get_method(plain["method"])
            if plain["model"]["name"] not in networks():
                raise ValueError(f"the network {plain['model']['name']} is not installed here")
        setting = {**plain["setting"], "image_shape": tuple(plain["setting"]["image_shape"])}
        columns = setting.pop("columns", None)
        if columns is not None:
            setting["columns"] = Columns(**columns)
            if setting["columns"].shape != setting["image_shape"]:
                raise ValueError("the columns do not have the shape of the samples")
        hostility = plain.get("hostility")
        if not import_modules:
            setting["shown"] = 0  # nobody else's machine decides what a site shows
            hostility = None  # nor what it sends
        return cls(
            method=plain["method"],
            config=method.config(**plain["config"]),
            setting=Setting(**setting),
            model=ModelConfig(**plain["model"]),
            train=TrainConfig(**plain["train"]),
            federation=FederationConfig(**plain["federation"]),
            device=plain["device"],
            threads=plain["threads"],
            hostility=Hostility.read(hostility) if hostility else None,
            privacy=PrivacyConfig(**plain.get("privacy", {})),
        )


def _plain(setting: Setting) -> dict[str, Any]:
    """Return a setting without the tables that a recipe holds beside it."""
    found = asdict(replace(setting, columns=None))
    del found["privacy"]
    return found


def _written(columns: Columns | None) -> dict[str, Any]:
    """Return the columns as a key of a recipe; a recipe for images has none."""
    return {"columns": None} if columns is None else {"columns": columns.model_dump(mode="json")}


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

    images: Tensor  # (samples, channels, height, width): uint8 pixels, or float32 values of other samples
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
