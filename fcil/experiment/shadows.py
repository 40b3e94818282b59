"""Stronger attackers on membership, who run the experiment again: shadow models, and canaries that bound epsilon.

Shadow models (Carlini et al., 2022) show how sure a model is of an image that it was trained on, and how sure if it was
not. Canaries (Steinke, Nasr and Jagielski, 2023) are images with a wrong label, of which a coin decides whether each
is there; how many of these coins an attacker guesses bounds epsilon from below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fcil.core.messages import derive_seed, generator
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.build import assemble
from fcil.experiment.config import Config
from fcil.federation.simulation import Simulation, SimulationState
from fcil.maths.leakage import least_epsilon, log_odds, ratio_of_likelihoods

BATCH = 512
MOST_CANARIES = 500
CONFIDENCE = 0.05  # probability of a bound that is too high


class Watcher:
    """How sure the model is of each image when the task of its class ends, as every site can see."""

    def __init__(self, images: Split) -> None:
        self.images = images
        self.sure = torch.full((len(images),), torch.nan, dtype=torch.float64)

    def look(self, simulation: Simulation, state: SimulationState, task: int) -> None:
        """Take in the model at the end of a task."""
        rows = torch.isin(self.images.labels, torch.tensor(simulation.scenario.tasks[task])).nonzero().squeeze(1)
        machine, catalogue = simulation.server.machine, state.server.catalogue.classes
        net, ids = machine.net(simulation.server.predictor(state.server)), simulation.clients.samples.ids
        outputs = torch.tensor([catalogue.index(name) if name in catalogue else -1 for name in ids])
        known = rows[outputs[self.images.labels[rows]] >= 0]
        for part in torch.split(known, BATCH):
            logits = machine.logits(net, Samples(self.images, ids), part).cpu().double()
            self.sure[part] = log_odds(logits, outputs[self.images.labels[part]])


@dataclass(frozen=True)
class Shadows:
    """Runs without some of the images: how sure each was of every image, and which it was trained on."""

    sure: Tensor  # (runs, images)
    trained: Tensor  # (runs, images)

    def scores(self, target: Tensor) -> Tensor:
        """Return how much likelier it is that the model was trained on each image than not; NaN where unknown."""
        return ratio_of_likelihoods(target, self.sure, self.trained)


def shadows(config: Config, source: Source, pairs: int) -> Shadows:
    """Run an experiment twice for each pair, on either half of the images."""
    sure, trained = [], []
    for number in range(2 * pairs):
        half = _half(source, derive_seed(config.seed, "shadow", number // 2))
        kept = (half if number % 2 else ~half).nonzero().squeeze(1)
        watcher, seen = _played(config, source, source.train, kept, derive_seed(config.seed, "shadow run", number))
        sure.append(watcher.sure)
        trained.append(seen)
    return Shadows(torch.stack(sure), torch.stack(trained))


def _half(source: Source, seed: int) -> Tensor:
    """Return half of the images of each class."""
    order, chosen = torch.randperm(len(source.train), generator=generator(seed)), torch.zeros(len(source.train)).bool()
    for label in range(source.classes):
        rows = order[source.train.labels[order] == label]
        chosen[rows[: len(rows) // 2]] = True
    return chosen


def canaries(config: Config, source: Source, share: int) -> float:
    """Return a lower bound of the epsilon of an image, from one run with one image in `share` as a canary."""
    seed = derive_seed(config.seed, "canaries")
    draw = generator(seed)
    whole = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    chosen = torch.randperm(len(source.train), generator=draw)[: min(len(source.train) // share, MOST_CANARIES)]
    labels = source.train.labels.clone()
    labels[chosen] = _wrong(labels[chosen], whole.tasks, draw)
    there = torch.rand(len(chosen), generator=draw) < 0.5
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[chosen[~there]] = False
    marked = Split(source.train.images, labels)
    watcher, _ = _played(config, replace(source, train=marked), marked, kept.nonzero().squeeze(1), seed)
    scores = torch.nan_to_num(watcher.sure[chosen], nan=0.0)
    order = scores.argsort()
    quarter = len(order) // 4  # of the guesses, those that an attacker is surest of
    right = int((~there[order[:quarter]]).sum()) + int(there[order[len(order) - quarter :]].sum())
    return least_epsilon(
        len(chosen), 2 * quarter, right, config.privacy.delta if config.privacy.on else 0.0, CONFIDENCE
    )


def _wrong(labels: Tensor, tasks: tuple[tuple[int, ...], ...], draw: torch.Generator) -> Tensor:
    """Return for each label another one of its task, or any other one where a task has a single class."""
    everything = [label for task in tasks for label in task]
    found = []
    for label in labels.tolist():
        task = next(task for task in tasks if label in task)
        others = [other for other in (task if len(task) > 1 else everything) if other != label]
        found.append(others[int(torch.randint(len(others), (1,), generator=draw))])
    return torch.tensor(found, dtype=labels.dtype)


def _played(config: Config, source: Source, images: Split, kept: Tensor, seed: int) -> tuple[Watcher, Tensor]:
    """Run the experiment on the kept images with other random numbers; return what it tells, and who was trained on."""
    part = replace(source, train=source.train.select(kept), raw=None)
    scenario = Scenario(config.scenario, part.train.labels, part.classes, config.seed)
    simulation = assemble(config.model_copy(update={"seed": seed}), part, "serial", scenario).simulation
    watcher, trained = Watcher(images), torch.zeros(len(images), dtype=torch.bool)
    try:
        for state, record in simulation.rounds(simulation.start()):
            for client in record.participants:
                trained[kept[scenario.holding(record.round - 1, client)]] = True
            if record.ends_task:
                watcher.look(simulation, state, record.task)
    finally:
        simulation.engine.close()
    return watcher, trained
