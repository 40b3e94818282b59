"""What an experiment would cost before it is run: samples, operations, bytes, memory, and hours on this machine."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcil.config import Config
from fcil.data.memory import exemplars_per_class
from fcil.data.scenario import Scenario
from fcil.data.source import Source, Split
from fcil.data.sources import load_source
from fcil.engines import default_workers
from fcil.errors import DataError
from fcil.experiment import device_is_there
from fcil.local import Local
from fcil.methods import Setting, get_method
from fcil.methods.lesson import Lesson, Problem
from fcil.methods.rehearsal import RehearsalClient
from fcil.models import grow, initial_state, multiply_adds
from fcil.wire import ModelParcel, Moment, encoded_size, generator

PUBLISHED_SIZES = {  # classes, training and test images a class, channels, pixels a side
    "cifar100": (100, 500, 100, 3, 32),
    "tinyimagenet": (200, 500, 50, 3, 64),
    "imagenet-subset": (100, 500, 100, 3, 224),
}
BACKWARD = 2  # a backward pass is two forward ones
CLASSES_MEASURED = 4
MEGABYTE = 1e6


@dataclass(frozen=True)
class Volume:
    """What an experiment does, counted on its scenario."""

    trained: int  # samples through forward and backward passes, epochs counted
    taught: int  # of these, samples that a teacher looks at too
    inferred: int  # samples that only pass forward: entropies once a sample and round, and evaluation
    bytes_up: int
    bytes_down: int
    data_bytes: int
    model_bytes: int
    rounds: int
    clients: int


@dataclass(frozen=True)
class Speed:
    """Samples a second on one worker, and the memory that measuring took."""

    trained: float
    taught: float  # of a teacher's forward pass alone
    inferred: float
    memory_bytes: int


@dataclass(frozen=True)
class Plan:
    """The cost of an experiment on this machine."""

    volume: Volume
    speed: Speed
    workers: int
    operations: float  # multiply-adds
    hours: float
    memory_bytes: float
    notes: tuple[str, ...]

    def lines(self) -> list[tuple[str, str]]:
        """Return what to print: what it is, and how much."""
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
            ("measured here", f"{self.speed.trained:.0f} training images a second and worker"),
            ("time here, about", f"{_duration(self.hours)} with {self.workers} workers"),
        ]


def make_plan(config: Config, seconds: float) -> Plan:
    """Count an experiment's work and measure this machine for about `seconds`."""
    source, notes = _labels(config)
    if not device_is_there(config.run.device):
        notes.append(f"there is no {config.run.device} here, so one thread of the processor was measured")
        config = config.model_copy(update={"run": config.run.model_copy(update={"device": "cpu"})})
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    lesson = _Sample(config, source)
    volume = count_volume(config, source, scenario, lesson.has_teacher)
    speed = lesson.measure(seconds)
    workers = config.run.workers or default_workers(config.run.device)
    workers = max(1, min(workers, config.scenario.participants))
    fitting = volume.trained / speed.trained + volume.taught / speed.taught
    hours = (fitting / workers + volume.inferred / speed.inferred) / 3600
    each = multiply_adds(config.model, source.image_shape)
    operations = each * ((1 + BACKWARD) * volume.trained + volume.taught + volume.inferred)
    memory = volume.data_bytes + (workers + 1) * speed.memory_bytes + 4 * volume.model_bytes
    if get_method(config.method_name).build(config.method, _setting(config, source)).proxy is not None:
        notes.append("rebuilding prototypes at the proxy is not counted: `fcil bench inversion` measures it an image")
    return Plan(volume, speed, workers, float(operations), hours, memory, tuple(notes))


def count_volume(config: Config, source: Source, scenario: Scenario, has_teacher: bool) -> Volume:
    """Count samples and bytes on the scenario; memories are taken as full as their budget and the past allow."""
    train, past = config.train, _Past(config, source)
    trained = taught = inferred = up = down = 0
    sizes = [_model_size(config, source, sum(map(len, scenario.tasks[: t + 1]))) for t in range(len(scenario.tasks))]
    for number in range(scenario.rounds):
        task, clients = scenario.task(number), scenario.clients(number)
        participants = scenario.participants(number)
        watching = clients if config.federation.monitor == "all" else participants
        taught_now = has_teacher and task > 0
        for client in participants:
            samples = past.samples(scenario.holding(number, client), client)
            trained += samples * train.epochs
            taught += samples * train.epochs if taught_now else 0
        labels = torch.tensor(sorted(scenario.classes_held(number)))
        inferred += int(torch.isin(source.train.labels, labels).sum())
        up += len(participants) * sizes[task]
        down += len(watching) * sizes[task]
        if scenario.ends_task(number):
            seen = torch.tensor([label for classes in scenario.tasks[: task + 1] for label in classes])
            inferred += int(torch.isin(source.test.labels, seen).sum())
            down += len(participants) * sizes[task] if has_teacher and task + 1 < len(scenario.tasks) else 0
            past.finish({client: scenario.holding(number, client) for client in clients})
    data = source.train.images.nbytes + source.test.images.nbytes
    return Volume(
        trained,
        taught,
        inferred,
        up,
        down,
        data,
        sizes[-1],
        scenario.rounds,
        len(scenario.clients(scenario.rounds - 1)),
    )


class _Past:
    """How many exemplars each client would keep: the classes it has had, each with its share of the budget."""

    def __init__(self, config: Config, source: Source) -> None:
        self.budget = config.scenario.memory
        self.labels = source.train.labels
        self.counts: dict[int, dict[int, int]] = {}

    def samples(self, holding: Tensor, client: int) -> int:
        """Return the training samples of a client that holds these now."""
        known = self.counts.get(client, {})
        share = exemplars_per_class(self.budget, len(known))
        return len(holding) + sum(min(share, count) for count in known.values())

    def finish(self, holdings: dict[int, Tensor]) -> None:
        """Let the data of a task become the past."""
        for client, holding in holdings.items():
            labels, counts = torch.unique(self.labels[holding], return_counts=True)
            self.counts.setdefault(client, {}).update(zip(labels.tolist(), counts.tolist(), strict=True))


class _Sample:
    """A lesson of the configured method on noise, to be timed."""

    def __init__(self, config: Config, source: Source) -> None:
        self.config = config
        batch = config.train.batch_size
        images = torch.randint(0, 256, (batch, *source.image_shape), dtype=torch.uint8, generator=generator(0))
        split = Split(images, torch.arange(batch) % CLASSES_MEASURED)
        names = tuple(map(str, range(CLASSES_MEASURED)))
        self.local = Local(Source("noise", split, split, names), config.model, config.train, config.run.device)
        client = get_method(config.method_name).build(config.method, _setting(config, source)).client
        if not isinstance(client, RehearsalClient):
            raise DataError(f"a plan of {config.method_name} is not possible: it does not use the common client")
        self.client = client
        self.has_teacher = client.teacher is not None

    def measure(self, seconds: float) -> Speed:
        """Return the samples a second of training alone, of a teacher and of inference, a third of the time each."""
        torch.set_num_threads(self.config.run.threads)
        batch, rates = self.config.train.batch_size, [1e-3]
        lesson = self._lesson()

        def train() -> None:
            net = lesson.problem.net
            self.local.fit(net, lesson.problem.samples, lesson.loss, rates, 1, None, lesson.epoch)

        def infer() -> None:
            with torch.inference_mode():
                lesson.problem.net.eval()(self.local.images(lesson.problem.samples))

        trained = _rate(train, batch, seconds / 2)
        inferred = _rate(infer, batch, seconds / 2)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Speed(trained, inferred, inferred, peak)

    def _lesson(self) -> Lesson[Any]:
        channels = self.local.source.image_shape[0]
        model = grow(initial_state(self.config.model, channels, 0), CLASSES_MEASURED, 0)
        problem = Problem(
            net=self.local.net(model),
            teacher=None,
            targets=self.local.source.train.labels,
            old=torch.zeros(self.config.train.batch_size, dtype=torch.bool),
            has_history=False,
            moment=Moment(0, tuple(range(CLASSES_MEASURED)), (CLASSES_MEASURED,), 0),
            samples=torch.arange(self.config.train.batch_size),
            optimiser=self.config.train.optimiser(),
        )
        return self.client.lesson(self.config.method, problem, self.local)


def _rate(work: Callable[[], None], samples: int, seconds: float) -> float:
    """Return the samples a second of a piece of work, after a first time that is not counted."""
    work()
    began, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - began < seconds:
        work()
        times += 1
    return times * samples / (time.perf_counter() - began)


def _labels(config: Config) -> tuple[Source, list[str]]:
    """Return the data set, or one of the same size where it is not at hand."""
    try:
        return load_source(config.data), []
    except DataError as error:
        if config.data.source not in PUBLISHED_SIZES:
            raise
        return _hollow(config), [f"the data set is not here, so its published size is taken ({error})"]


def _hollow(config: Config) -> Source:
    """Return a data set of the published size whose images take no memory."""
    classes, train, test, channels, side = PUBLISHED_SIZES[config.data.source]
    side, train = config.data.image_size or side, min(train, config.data.samples_per_class or train)
    image = torch.zeros(1, channels, side, side, dtype=torch.uint8)

    def split(each: int) -> Split:
        labels = torch.arange(classes).repeat_interleave(each)
        return Split(image.expand(len(labels), -1, -1, -1), labels)

    return Source(config.data.source, split(train), split(test), tuple(map(str, range(classes))))


def _setting(config: Config, source: Source) -> Setting:
    return Setting(config.scenario.memory, source.image_shape, config.federation.averaging, secret=0)


def _model_size(config: Config, source: Source, classes: int) -> int:
    model = grow(initial_state(config.model, source.image_shape[0], 0), classes, 0)
    return encoded_size(ModelParcel("0" * 32, model))


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / MEGABYTE:,.1f} MB"


def _duration(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.1f} minutes"
    return f"{hours:,.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"
