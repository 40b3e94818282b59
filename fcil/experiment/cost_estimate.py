"""The estimated cost of an experiment: samples, operations, bytes, memory, and hours on this machine."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fcil.core.errors import DataError
from fcil.core.messages import (
    Broadcast,
    Message,
    ModelParcel,
    Order,
    RoundContext,
    Teacher,
    Teachers,
    encoded_size,
    generator,
)
from fcil.data.columns import Kind
from fcil.data.datasets import DataConfig, at_hand, load_source
from fcil.data.datasets.dataset import Source, Split
from fcil.data.exemplar_memory import exemplars_per_class
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.build import make_recipe
from fcil.experiment.config import Config
from fcil.experiment.kinds import prepared
from fcil.experiment.limits import COPIES, check_memory, check_processor, held_models
from fcil.experiment.private_images import privacy_notes
from fcil.experiment.run import chosen_engine, device_is_there, foreseen
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.client import Job, run_job
from fcil.federation.engines import default_workers
from fcil.federation.server import FederationConfig
from fcil.methods.base import ClientRole
from fcil.methods.privacy import NOT_PRIVATE
from fcil.models.classifier import grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.cost import multiply_adds, training_adds
from fcil.models.frozen import BlockStore

PUBLISHED_SIZES = {  # classes, training and test images per class, channels, pixels per side
    "cifar100": (100, 500, 100, 3, 32),
    "tinyimagenet": (200, 500, 50, 3, 64),
    "imagenet-subset": (100, 500, 100, 3, 224),
}
CLASSES_MEASURED = 4
MEGABYTE = 1e6


@dataclass(frozen=True)
class Volume:
    """The volume of an experiment, counted on its scenario."""

    trained: int  # samples through forward and backward passes, epochs counted
    taught: int  # of these, samples that a teacher looks at too
    inferred: int  # samples that only pass forward: entropies once per sample and round, and evaluation
    bytes_up: int
    bytes_down: int
    data_bytes: int
    model_bytes: int
    rounds: int
    clients: int


@dataclass(frozen=True)
class Speed:
    """Samples per second on one worker, and the memory that measuring took."""

    trained: float  # without a teacher
    taught: float  # training with a teacher, with all that the method's loss then does
    inferred: float
    memory_bytes: int


@dataclass(frozen=True)
class CostEstimate:
    """The cost of an experiment on this machine."""

    volume: Volume
    speed: Speed
    workers: int
    operations: float  # multiply-adds
    hours: float
    memory_bytes: float
    notes: tuple[str, ...]

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines to print: quantity and amount."""
        volume = self.volume
        return [
            ("rounds", f"{volume.rounds:,}"),
            ("clients at the end", f"{volume.clients:,}"),
            ("training samples, epochs counted", f"{volume.trained:,}"),
            ("samples only looked at", f"{volume.inferred:,}"),
            ("multiply-adds", f"{self.operations:.2e}"),
            ("uploaded", _bytes(volume.bytes_up)),
            ("downloaded", _bytes(volume.bytes_down)),
            ("one model", _bytes(volume.model_bytes)),
            ("memory, about", _bytes(self.memory_bytes)),
            ("measured here", f"{self.speed.trained:.0f} training samples per second and worker"),
            (
                "time here if idle, about",
                f"{_duration(self.hours)} with {self.workers} worker{'s' * (self.workers > 1)}",
            ),
        ]


def make_plan(config: Config, seconds: float, load: Callable[[DataConfig], Source] = load_source) -> CostEstimate:
    """Count an experiment's work and measure this machine for about `seconds`, of CPU time where that is the cost."""
    source, notes = data_set(config, load)
    if not device_is_there(config.run.device):
        notes.append(f"there is no {config.run.device} here, so one thread of the processor was measured")
        config = config.model_copy(update={"run": config.run.model_copy(update={"device": "cpu"})})
    check_processor(config)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    source = prepared(config, source, scenario)
    check_memory(config, source, scenario)
    notes += foreseen(config, scenario)
    notes += privacy_notes(config, scenario, source.train.labels, everything=True)
    sample = _Sample(config, source)
    volume = count_volume(config, source, scenario, sample.role)
    speed = sample.measure(seconds)
    workers = 1
    if chosen_engine(config, source) != "serial":
        workers = config.run.workers or default_workers(config.run.device)
        workers = max(1, min(workers, config.scenario.participants))
    fitting = (volume.trained - volume.taught) / speed.trained + volume.taught / speed.taught
    hours = (fitting / workers + volume.inferred / speed.inferred) / 3600
    forward, step = (count(config.model, source.image_shape) for count in (multiply_adds, training_adds))
    operations = step * volume.trained + forward * (volume.taught + volume.inferred)
    models = COPIES + held_models(config, scenario)
    memory = volume.data_bytes + (workers + 1) * speed.memory_bytes + models * volume.model_bytes
    notes.append("bytes count the models only, not the additions of a method")
    if sample.recipe.roles().proxy is not None:
        notes.append(
            "rebuilding prototypes at the proxy is not counted; `make bench NAME=inversion` measures one image"
        )
    if sample.recipe.server().settles:
        notes.append("what the server trains at the end of a block is not counted, nor what clients then learn from it")
    if _hides(config) or config.privacy.on:
        notes.append("masks and noise are not counted")
    if sample.role.curates:
        notes.append("what clients train to choose their exemplars is not counted")
    return CostEstimate(volume, speed, workers, float(operations), hours, memory, tuple(notes))


def count_volume(config: Config, source: Source, scenario: Scenario, client: ClientRole[Any]) -> Volume:
    """Count samples and bytes on the scenario; memories are taken as full as their budget and the past allow."""
    train, past = config.train, _Past(source, client)
    has_teacher = client.teacher is not None
    trained = taught = inferred = up = down = 0
    widths = [sum(map(len, scenario.seen(number))) for number in range(scenario.rounds)]
    sizes = {width: _model_size(config, source, width) for width in sorted(set(widths))}
    untrained = _frozen_bytes(config, source)
    for number, width in enumerate(widths):
        clients, participants = scenario.clients(number), scenario.participants(number)
        watching = clients if config.federation.monitor == "all" else participants
        taught_now = has_teacher and width > widths[0]
        for participant in participants:
            samples = past.samples(scenario.holding(number, participant), participant)
            trained += samples * train.epochs
            taught += samples * train.epochs if taught_now else 0
        labels = torch.tensor(sorted(scenario.classes_held(number)))
        inferred += int(torch.isin(source.train.labels, labels).sum())
        up += len(participants) * (sizes[width] - untrained)
        down += len(watching) * sizes[width]
        if has_teacher and number + 1 < scenario.rounds and widths[number + 1] > width:
            down += len(participants) * sizes[width]  # this round's model will teach the classes to come
        if scenario.ends_task(number):
            seen = torch.tensor([label for classes in scenario.seen(number) for label in classes])
            inferred += int(torch.isin(source.test.labels, seen).sum())
            past.finish({who: scenario.holding(number, who) for who in clients})
    if config.model.freeze is True:
        inferred = len(source.train) + len(source.test)  # once in a run
    data = source.train.images.nbytes + source.test.images.nbytes
    return Volume(
        trained,
        taught,
        inferred,
        up,
        down,
        data,
        sizes[widths[-1]],
        scenario.rounds,
        len(scenario.clients(scenario.rounds - 1)),
    )


class _Past:
    """The old samples that each client would train on: of the classes it has had, each with its share of the budget."""

    def __init__(self, source: Source, client: ClientRole[Any]) -> None:
        self.client = client
        self.labels = source.train.labels
        self.counts: dict[int, dict[int, int]] = {}

    def samples(self, holding: Tensor, client: int) -> int:
        """Return the training samples of a client that holds these now."""
        known = self.counts.get(client, {})
        if self.client.keeps_all:
            return len(holding) + sum(known.values())
        share = exemplars_per_class(self.client.memory, len(known))
        return len(holding) + sum(min(share, count) for count in known.values())

    def finish(self, holdings: dict[int, Tensor]) -> None:
        """Let the data of a task become the past."""
        for client, holding in holdings.items():
            labels, counts = torch.unique(self.labels[holding], return_counts=True)
            self.counts.setdefault(client, {}).update(zip(labels.tolist(), counts.tolist(), strict=True))


class _Sample:
    """Rounds of the configured method's client on noise, to be timed."""

    def __init__(self, config: Config, source: Source) -> None:
        plain = {"train": config.train.model_copy(update={"epochs": 1}), "privacy": NOT_PRIVATE}
        if _hides(config):
            plain["federation"] = FederationConfig(averaging=config.federation.averaging)
        self.config = config.model_copy(update=plain)
        batch = max(config.train.batch_size, CLASSES_MEASURED)
        images = _noise((batch, *source.image_shape), source.kind)
        self.labels = torch.arange(batch) % CLASSES_MEASURED
        split = Split(images, self.labels)
        noise = Source("noise", split, split, tuple(map(str, range(CLASSES_MEASURED))), columns=source.columns)
        self.recipe = make_recipe(self.config, noise)
        self.role, self.aggregator = self.recipe.roles().client, self.recipe.aggregator()
        self.local = ClientContext.at(Samples.of(noise), self.recipe.machine(store=BlockStore()))
        start = initial_state(self.recipe.model, source.image_shape[0], 0)
        self.old_model, self.model = (grow(start, classes, 0) for classes in (CLASSES_MEASURED // 2, CLASSES_MEASURED))

    def measure(self, seconds: float) -> Speed:
        """Return the samples per second of training, of training with a teacher and of inference."""
        torch.set_num_threads(self.config.run.threads)
        now = partial(_clock, self.config.run.device, self.config.run.threads)
        shares = 3 if self.role.teacher is not None else 2
        every, old = torch.arange(len(self.labels)), self.labels < CLASSES_MEASURED // 2
        alone, _ = self._round(self.role.init(), every, taught=False)
        net = self.recipe.machine().fixed_net(self.model)

        def infer() -> int:
            with torch.inference_mode():
                net(self.local.images(every))
            return len(every)

        trained = taught = _rate(lambda: self._round(alone, every, taught=False)[1], seconds / shares, now)
        if self.role.teacher is not None:
            before, _ = self._round(self.role.init(), every[old], taught=False)
            noticed, _ = self._round(before, every[~old], taught=True)  # the alarm, which most rounds do not have
            taught = _rate(lambda: self._round(noticed, every[~old], taught=True)[1], seconds / shares, now)
        inferred = _rate(infer, seconds / shares, now)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Speed(trained, taught, inferred, peak)

    def _round(self, state: Message, held: Tensor, taught: bool) -> tuple[Message, int]:
        """Run a round of one local epoch; return the state that it leaves and the samples that were trained on."""
        ids, half = self.local.samples.ids, CLASSES_MEASURED // 2
        context = RoundContext(int(taught), ids, (half, len(ids)) if taught else (len(ids),), 0)
        teachers = Teachers(last=Teacher("old", half)) if taught else Teachers()
        server = self.recipe.server()
        extra = server.extra(server.init(), context)  # as in the first round: what a finished block adds is not counted
        broadcast = Broadcast(context, "new", teachers, extra.message, tuple(extra.pools))
        job = Job(Order(0, True), 0, state, held, None, None)
        models = {"new": self.model, "old": self.old_model, **extra.pools}
        done = run_job(self.role, self.aggregator, job, broadcast, models, self.local)
        if done.failure is not None:
            raise DataError(f"a plan of {self.config.method_name} is not possible: {done.failure.reason}")
        report = done.reply.report if done.reply else None
        return state if done.state is None else done.state, report.samples if report else len(held)


def _hides(config: Config) -> bool:
    return AGGREGATORS[config.federation.aggregator].build.hides


def _noise(shape: tuple[int, ...], kind: Kind) -> Tensor:
    """Return random samples of a kind."""
    if kind != "image":
        return torch.randn(shape, generator=generator(0))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(0))


def _rate(work: Callable[[], int], seconds: float, now: Callable[[], float]) -> float:
    """Return the samples per second of a piece of work that returns their number.

    The first time is not counted, unless it takes all the seconds there are.
    """
    began, samples = now(), work()
    if now() - began < seconds:
        began, samples = now(), 0
        while samples == 0 or now() - began < seconds:
            samples += work()
    return samples / (now() - began)


def _clock(device: str, threads: int) -> float:
    """Return the processor's seconds of one thread, so that other work on the machine does not count.

    Where a GPU or several threads work, their time is no sum of the processor's seconds.
    """
    return time.process_time() if (device, threads) == ("cpu", 1) else time.perf_counter()


def data_set(config: Config, load: Callable[[DataConfig], Source] = load_source) -> tuple[Source, list[str]]:
    """Return the data set, or one of the same size where it would first have to be downloaded or decoded."""
    name = config.data.source
    if name not in PUBLISHED_SIZES or at_hand(config.data):
        return load(config.data), []
    return _hollow(config), [f"{name} is not at hand, or not decoded yet, so its published size is taken"]


def _hollow(config: Config) -> Source:
    """Return a data set of the published size whose images take no memory."""
    classes, train, test, channels, side = PUBLISHED_SIZES[config.data.source]
    side, train = config.data.image_size or side, min(train, config.data.samples_per_class or train)
    image = torch.zeros(1, channels, side, side, dtype=torch.uint8)

    def split(each: int) -> Split:
        labels = torch.arange(classes).repeat_interleave(each)
        return Split(image.expand(len(labels), -1, -1, -1), labels)

    return Source(config.data.source, split(train), split(test), tuple(map(str, range(classes))))


def _model_size(config: Config, source: Source, classes: int) -> int:
    model = grow(initial_state(config.model.without_file(), source.image_shape[0], 0), classes, 0)
    return encoded_size(ModelParcel("0" * 32, model))


def _frozen_bytes(config: Config, source: Source) -> int:
    """Return the bytes of a model that no report carries."""
    model = initial_state(config.model.without_file(), source.image_shape[0], 0)
    return sum(tensor.nbytes for name, tensor in model.items() if not config.model.trains(name))


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / MEGABYTE:,.1f} MB"


def _duration(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.1f} minutes"
    return f"{hours:,.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"
