"""An experiment that fits a folder of images and this machine, as a TOML file with a reason for every choice."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fcil.core.toml import literal
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source, Split
from fcil.data.datasets.survey import TEST_FRACTION, Survey
from fcil.experiment.config import Config, parse_config
from fcil.experiment.cost_estimate import make_plan
from fcil.models.config import IMAGENET
from fcil.models.cost import multiply_adds
from fcil.models.registry import networks
from fcil.models.weights import INSTALL, installed_file

SIZES = (224, 128, 96, 64, 48, 32, 24, 16)  # pixels per side that are proposed
LARGEST, SMALLEST = 64, 4
PRETRAINED, PRETRAINED_METHOD, LARGEST_PRETRAINED = "efficientnet-lite0", "analytic", 128
FEW, SHARP = 300, 32  # fewer images per class, of so many pixels, are better seen with pre-trained features
WIDTHS = (64, 32, 16, 8)  # of the network, the published one first
IMAGES = {64: 20_000, 32: 5_000, 16: 500, 8: 0}  # training images from which a width is worth its time
ROUNDS, EPOCHS = 10, 4  # where time allows
FEWEST_ROUNDS = 3
WANTED = 10  # images per class and client; with fewer than half of it, clients share them
MEMORY_SHARE = 0.04  # of the training images, like 2,000 of CIFAR-100's 50,000


@dataclass(frozen=True)
class Choices:
    """The settings that depend on the folder and the machine."""

    image_size: int
    tasks: tuple[int, ...]
    class_fraction: float
    disjoint: bool
    clients: int
    joiners: int
    participants: int
    memory: int
    batch_size: int
    rounds: int = ROUNDS
    epochs: int = EPOCHS
    width: int = WIDTHS[-1]
    pretrained: bool = False


@dataclass(frozen=True)
class Proposal:
    """An experiment as text, and its cost on this machine."""

    text: str
    hours: float  # at most, about
    notes: tuple[str, ...]


def propose(survey: Survey, name: str, path: str, hours: float, seconds: float) -> Proposal:
    """Return an experiment on a surveyed folder that takes so many hours here or fewer, measured for `seconds`.

    `path` is where the file will find the folder.
    """
    fitting = _fitting(survey)
    plan = make_plan(_config(fitting, survey), seconds, lambda data: _hollow(survey, data))
    choices, needed = _sized(fitting, survey, hours, plan.hours)
    text = _written(choices, survey, name, path, hours, needed)
    parse_config(tomllib.loads(text))  # a proposal that is refused would be a mistake of ours
    measured = f"measured with a network of width {fitting.width} on {_workers(plan.workers)}"
    assumed = () if choices.pretrained else (f"{measured}; a wider one takes longer by its multiply-adds at most",)
    return Proposal(text, needed, (*assumed, *plan.notes))


# --- what fits the folder -----------------------------------------------------------------------------------------


def _fitting(survey: Survey) -> Choices:
    classes, fewest = len(survey.class_names), min(survey.train)
    tasks = divided_tasks(classes)
    fraction = 1.0 if min(tasks) < 3 else 0.6
    clients = min(10, max(3, int(fewest / (WANTED * fraction))))
    joiners = max(1, clients // 5)
    at_the_end = clients + joiners * (len(tasks) - 1)
    pretrained = _suits_pretraining(survey) and _has_weights()
    return Choices(
        image_size=_image_size(survey.sides[1], LARGEST_PRETRAINED if pretrained else LARGEST),
        pretrained=pretrained,
        tasks=tasks,
        class_fraction=fraction,
        disjoint=fewest >= WANTED / 2 * fraction * at_the_end,
        clients=clients,
        joiners=joiners,
        participants=max(2, math.ceil(0.4 * clients)),
        memory=max(2 * classes, round(MEMORY_SHARE * sum(survey.train))),
        batch_size=64 if sum(survey.train) > 5000 else 32,
    )


def divided_tasks(classes: int) -> tuple[int, ...]:
    """Return sizes of tasks: up to five, of two classes at least where there are four.

    >>> divided_tasks(2), divided_tasks(7), divided_tasks(100)
    ((1, 1), (3, 2, 2), (20, 20, 20, 20, 20))
    """
    count = min(5, max(2, classes // 2))
    return tuple(len(part) for part in np.array_split(np.arange(classes), count))


def _suits_pretraining(survey: Survey) -> bool:
    """Say whether the images are few, and large enough for a pre-trained network."""
    return min(survey.train) < FEW and survey.sides[1] >= SHARP


def _has_weights() -> bool:
    """Say whether the pre-trained weights are installed here."""
    released = networks()[PRETRAINED].pretrained
    return released is not None and installed_file(released) is not None


def _image_size(side: int, largest: int = LARGEST) -> int:
    """Return the largest usual size that does not enlarge most images.

    >>> _image_size(8), _image_size(50), _image_size(3000)
    (8, 48, 64)
    """
    usual = (size for size in SIZES if size <= min(side, largest))
    return next(usual, max(side, SMALLEST))


# --- what fits the machine ----------------------------------------------------------------------------------------


def _sized(choices: Choices, survey: Survey, hours: float, measured: float) -> tuple[Choices, float]:
    """Return the choices with the widest network that time and images allow, or with fewer rounds of the narrowest.

    `measured` is the time that the narrowest takes; how much longer wider ones take is bounded by their multiply-adds.
    The second value is the time that follows.
    """
    if choices.pretrained:
        return _shortened(choices, hours, measured)
    narrow, shape = _config(choices, survey).model, (3, choices.image_size, choices.image_size)
    for width in (width for width in WIDTHS if sum(survey.train) >= IMAGES[width]):
        wider = narrow.model_copy(update={"width": width})
        bound = measured * multiply_adds(wider, shape) / multiply_adds(narrow, shape)
        if bound <= hours:
            return replace(choices, width=width), bound
    return _shortened(choices, hours, measured)


def _shortened(choices: Choices, hours: float, measured: float) -> tuple[Choices, float]:
    """Return the choices with as many rounds as there is time for, and the time that follows."""
    rounds = min(choices.rounds, max(FEWEST_ROUNDS, int(choices.rounds * hours / max(measured, 1e-9))))
    return replace(choices, rounds=rounds), measured * rounds / choices.rounds


def _config(choices: Choices, survey: Survey) -> Config:
    """Return the configuration as far as its cost depends on it."""
    fraction = {} if survey.divided else {"test_fraction": TEST_FRACTION}
    data = {"source": "imagefolder", "path": str(survey.root), "image_size": choices.image_size, **fraction}
    scenario = {
        "tasks": choices.tasks,
        "rounds_per_task": choices.rounds,
        "class_fraction": choices.class_fraction,
        "split": "disjoint" if choices.disjoint else "shared",
        "initial_clients": choices.clients,
        "joiners": choices.joiners,
        "participants": choices.participants,
        "memory": choices.memory,
    }
    train = {
        "epochs": choices.epochs,
        "batch_size": choices.batch_size,
        "block_epochs": choices.rounds * choices.epochs,
    }
    return parse_config({"data": data, "scenario": scenario, **_network(choices), "train": train})


def _network(choices: Choices) -> dict[str, Any]:
    """Return the tables of the network and the method."""
    if not choices.pretrained:
        return {"model": {"width": choices.width}}
    model = {"name": PRETRAINED, "weights": IMAGENET, "freeze": True}
    return {"model": model, "method": {"name": PRETRAINED_METHOD}}


def _hollow(survey: Survey, data: DataConfig) -> Source:
    """Return a data set with as many images as the folder has, which take no memory."""
    assert data.image_size is not None
    image = torch.zeros(1, 3, data.image_size, data.image_size, dtype=torch.uint8)

    def split(counts: Sequence[int]) -> Split:
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return Split(image.expand(len(labels), -1, -1, -1), labels)

    return Source("imagefolder", split(survey.train), split(survey.test), survey.class_names)


# --- the file -----------------------------------------------------------------------------------------------------


Row = tuple[str, Any, str]  # key, value, why


def _written(choices: Choices, survey: Survey, name: str, path: str, hours: float, needed: float) -> str:
    target = "an hour" if hours == 1 else f"{hours:g} hours"
    found = f"at most about {duration(needed)}, the proxy not counted"
    tables: dict[str, list[Row]] = {
        "": [
            ("description", f"{name}: {len(survey.class_names)} classes", "one line about it"),
            ("seed", 2021, "of all random draws; compare methods over several seeds"),
        ],
        "data": _data_rows(choices, survey, path),
        "scenario": _scenario_rows(choices, survey),
        "model": _model_rows(choices, survey, f"for {sum(survey.train):,} images in {target} here: {found}"),
        "train": _train_rows(choices),
        **_method_rows(choices),
    }
    lines = [f"# Proposed by `fcil new` after a look at {survey.looked:,} images; every line may be changed."]
    if not choices.pretrained and _suits_pretraining(survey):
        lines += [f"# With so few images, ImageNet pre-training helps: `{INSTALL}`, then `fcil new` again."]
    return with_reasons(lines, tables)


def with_reasons(head: Sequence[str], tables: Mapping[str, Sequence[Row]]) -> str:
    """Return tables as TOML below some lines, with the reason for each value behind it."""
    lines = list(head)
    for table, rows in tables.items():
        lines += ["", f"[{table}]"] if table else []
        lines += [f"{key} = {literal(value)}  # {why}" for key, value, why in rows]
    return "\n".join([*lines, ""])


def _model_rows(choices: Choices, survey: Survey, cost: str) -> list[Row]:
    if not choices.pretrained:
        return [("width", choices.width, f"channels of a ResNet-18's first stage, published: 64; {cost}")]
    few = f"the smallest class has {min(survey.train)} images, which are too few to learn features from"
    return [
        ("name", PRETRAINED, f"{few}; {cost}"),
        ("weights", IMAGENET, "ImageNet pre-training; from the extra `pretrained`"),
        ("freeze", True, "only the head is trained, on features that are computed once"),
    ]


def _method_rows(choices: Choices) -> dict[str, list[Row]]:
    others = "`fcil list methods` lists the others; `fcil run ... --method NAME` tries one"
    if choices.pretrained:
        return {"method": [("name", PRETRAINED_METHOD, f"in closed form, in seconds; {others}")]}
    evaluations = 300 if choices.image_size <= 16 else 100
    row = ("rebuild_evaluations", evaluations, "published: 4,000, which takes longer")
    return {"method": [("name", "glfc", others)], "method.glfc": [row]}


def _data_rows(choices: Choices, survey: Survey, path: str) -> list[Row]:
    smallest, median, largest = survey.sides
    return [
        ("source", "imagefolder", "one folder per class"),
        ("path", path, "relative paths begin at this file"),
        (
            "image_size",
            choices.image_size,
            f"pixels per side; the images' shorter sides have {smallest} to {largest}, median {median}",
        ),
        *_test_part(survey),
        ("broken", *_broken(survey)),
    ]


def _scenario_rows(choices: Choices, survey: Survey) -> list[Row]:
    classes, total = len(survey.class_names), sum(survey.train)
    divided = "every client has images of its own, as real sites do"
    shared = "there are too few images to divide, so all owners of a class hold the same ones"
    all_of_them = "every client gets all classes of a task, which are few"
    some = "share of a task's classes that a client gets, as published"
    return [
        ("tasks", list(choices.tasks), f"classes that arrive together: {classes} in {len(choices.tasks)} tasks"),
        ("class_order", "natural", "by folder name; a list of class numbers, from 0, gives another order"),
        ("rounds_per_task", choices.rounds, "a list sets each task's rounds"),
        ("class_fraction", choices.class_fraction, all_of_them if choices.class_fraction == 1 else some),
        ("split", "disjoint" if choices.disjoint else "shared", divided if choices.disjoint else shared),
        ("initial_clients", choices.clients, f"the smallest class has {min(survey.train)} training images"),
        ("joiners", choices.joiners, "new clients at each task"),
        ("participants", choices.participants, "clients that train in a round"),
        ("memory", choices.memory, f"old images that a client may keep: 4 % of {total:,}, at least two per class"),
    ]


def _train_rows(choices: Choices) -> list[Row]:
    block = choices.rounds * choices.epochs
    steps = [(block // 2, 5), (block * 3 // 4, 25), (block * 9 // 10, 125)]
    milestones = [{"epoch": epoch, "divisor": divisor} for epoch, divisor in steps]
    return [
        ("epochs", choices.epochs, "local epochs per round"),
        ("block_epochs", block, "rounds_per_task x epochs; published schedules shrink to it"),
        ("batch_size", choices.batch_size, "small, because a client has few images"),
        ("learning_rate", 0.1, "as in our small presets; lower it if a run warns that its loss is not finite"),
        ("milestones", milestones, "at 1/2, 3/4 and 9/10 of a block, as published"),
    ]


def _test_part(survey: Survey) -> list[Row]:
    return (
        []
        if survey.divided
        else [("test_fraction", TEST_FRACTION, "there is no test/, so a fifth of each class is held out")]
    )


def _broken(survey: Survey) -> tuple[str, str]:
    if survey.broken:
        return "skip", f"{len(survey.broken)} broken file{'s' * (len(survey.broken) > 1)} found; each start says so"
    unseen = survey.images - survey.looked
    return "refuse", f"no broken image was found{f', but {unseen:,} were not looked at' if unseen else ''}"


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


def duration(hours: float) -> str:
    """Return a time in words."""
    minutes = round(max(hours * 60, 1))
    return f"{minutes} minute{'' if minutes == 1 else 's'}" if hours < 1.5 else f"{hours:.1f} hours"
