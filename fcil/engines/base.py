"""What an engine is made from, and what travels between it and its workers."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fcil.data.source import Source, Split
from fcil.errors import ConfigError
from fcil.federation.client import ClientStore, run_client
from fcil.local import Local, TrainConfig
from fcil.methods import MethodConfig, PluginWarning, Roles, Setting, get_method
from fcil.methods.base import Current
from fcil.models import ModelConfig
from fcil.wire import Broadcast, Failure, Message, Order, Reply, Shape


@dataclass(frozen=True)
class Recipe:
    """How a worker builds a run's roles and its `Local` for itself; as text it can be sent anywhere."""

    method: str
    config: MethodConfig
    setting: Setting
    model: ModelConfig
    train: TrainConfig
    device: str = "cpu"
    threads: int = 1

    def roles(self) -> Roles:
        """Return the method's roles."""
        return get_method(self.method).build(self.config, self.setting)

    def local(self, source: Source, worker: int = 0) -> Local:
        """Return what the worker's machine offers; with several GPUs each worker has its own."""
        device = self.device
        if device == "cuda" and torch.cuda.device_count() > 1:
            device = f"cuda:{worker % torch.cuda.device_count()}"
        return Local(source, self.model, self.train, device)

    def text(self) -> str:
        """Return the recipe as JSON, with the module that registers the method."""
        module = get_method(self.method).build.__module__
        if module == "__main__":
            raise ConfigError(
                f"method.name: {self.method} is defined in a script, which workers cannot import; "
                "put it into a module or use `--engine serial`"
            )
        plain = {
            "method": self.method,
            "module": module,
            "config": self.config.model_dump(mode="json"),
            "setting": asdict(self.setting),
            "model": self.model.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            "device": self.device,
            "threads": self.threads,
        }
        return json.dumps(plain)

    @classmethod
    def read(cls, text: str) -> Recipe:
        """Return the recipe in a text, once the method's module is imported."""
        plain: dict[str, Any] = json.loads(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # whoever sent the recipe has said it
            importlib.import_module(plain["module"])
            method = get_method(plain["method"])
        setting = {**plain["setting"], "image_shape": tuple(plain["setting"]["image_shape"])}
        return cls(
            method=plain["method"],
            config=method.config(**plain["config"]),
            setting=Setting(**setting),
            model=ModelConfig(**plain["model"]),
            train=TrainConfig(**plain["train"]),
            device=plain["device"],
            threads=plain["threads"],
        )


@dataclass(frozen=True)
class Workplace:
    """All that an engine needs to play a federation's clients."""

    store: ClientStore
    holding: Callable[[int, int], Tensor]  # (round, client) -> the samples it holds
    local: Local
    recipe: Recipe
    workers: int = 0  # 0: as many as there are cores, or GPUs where networks run on them
    address: str | None = None  # of a cluster


@dataclass(frozen=True)
class Samples(Message):
    """What a worker sees of the data: the training images."""

    name: str
    images: Annotated[Tensor, Shape(("samples", "channels", "height", "width"), torch.uint8)]
    labels: Annotated[Tensor, Shape(("samples",), torch.int64)]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, source: Source) -> Samples:
        """Return the training images of a source."""
        train = source.train
        return cls(source.name, train.images, train.labels, source.class_names, source.mean, source.deviation)

    def source(self) -> Source:
        """Return a source that has no test images."""
        train = Split(self.images, self.labels)
        source = Source(self.name, train, train.select(torch.empty(0, dtype=torch.int64)), self.class_names)
        source.__dict__.update(mean=self.mean, deviation=self.deviation)  # computed once, by the sender
        return source


@dataclass(frozen=True)
class Job(Message):
    """One order for a worker, with all it needs in addition to the round's broadcast."""

    order: Order
    state: Message
    samples: Annotated[Tensor, Shape(("samples",), torch.int64)]
    entropy: float | None


@dataclass(frozen=True)
class Done(Message):
    """A worker's answer to a job; no state means that it did not change."""

    state: Message | None
    reply: Reply | None
    failure: Failure | None

    @property
    def answer(self) -> Reply | Failure:
        """Return the reply, or else the failure."""
        answer = self.reply or self.failure
        assert answer is not None
        return answer


class Worker:
    """Plays jobs one after the other, wherever it runs."""

    def __init__(self, recipe: Recipe, source: Source, number: int) -> None:
        torch.set_num_threads(recipe.threads)
        self.role = recipe.roles().client
        self.local = recipe.local(source, number)
        self.broadcast: Broadcast | None = None

    def play(self, job: Job) -> Done:
        """Return the answer to a job under the broadcast that was set."""
        assert self.broadcast is not None
        current = Current(job.samples, job.entropy)
        state, answer = run_client(self.role, job.state, self.broadcast, job.order, current, self.local)
        changed = state if state is not job.state else None
        if isinstance(answer, Reply):
            return Done(changed, answer, None)
        return Done(changed, None, answer)
