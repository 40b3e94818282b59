"""Rounds with a frozen EfficientNet-Lite0: its features kept, compared with a network that runs at every step.

Two federations of each method begin alike, with features kept; images of 32 x 32 are enlarged to 112 x 112. In the
last round one of them runs the network at every step. A round ends with the test images. The details say how far the
two models end apart, and what a round costs in which a class is new: GLFC's clients then perturb images, which takes
the whole network.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.common import cpu_seconds, patterns
from benchmarks.measure import Measurement
from fcil.data.augment import AugmentConfig
from fcil.federation.simulation import SimulationState
from fcil.models.frozen import BlockStore, FrozenOutputs
from fcil.models.trainer import Trainer
from fcil.testing.trial import Trial, trial

METHODS = ("mosaic", "glfc", "dde", "icarl")
BOUND = 50
ROUNDS = 3  # of a task
SCENARIO = {"tasks": 2, "rounds_per_task": ROUNDS, "initial_clients": 2, "joiners": 0, "participants": 2, "memory": 12}


class Side:
    """A federation under way, and the processor time of each round."""

    def __init__(self, method: str, frozen: FrozenOutputs) -> None:
        self.made: Trial = trial(
            method,
            source=patterns(6, 40, 32, test_per_class=10),
            scenario=SCENARIO,
            model={"name": "efficientnet-lite0", "width": 64, "freeze": True, "image_size": 112},
            train={"epochs": 10, "learning_rate": 0.1, "augment": AugmentConfig()},
        )
        self.made.local.machine.frozen = frozen
        self.state: SimulationState = self.made.simulation.start()
        self.seconds: list[float] = []

    def round(self) -> None:
        """Go on by one round, and predict the test images."""
        self.seconds.append(cpu_seconds(self._round))

    def _round(self) -> None:
        self.state, _ = next(iter(self.made.simulation.rounds(self.state)))
        self.made.simulation.evaluate(self.state)


def measure() -> Iterator[Measurement]:
    """Yield the processor time of a round, method by method."""
    torch.set_num_threads(1)
    for method in METHODS:
        frozen = FrozenOutputs(torch.device("cpu"), BlockStore())
        ours, reference = Side(method, frozen), Side(method, frozen)
        for side in (ours, reference):
            for _ in range(2 * ROUNDS - 1):
                side.round()
        without_cache(reference.made.local.machine)
        for side in (ours, reference):
            side.round()
        spent = [side.seconds[-1] for side in (ours, reference)]
        details = {"round_with_new_classes": ours.seconds[ROUNDS], "largest_difference": apart(ours, reference)}
        unit = "CPU s per round"
        yield Measurement(f"frozen-{method}", *spent, spent[1] / spent[0], BOUND, unit=unit, details=details)


def apart(one: Side, other: Side) -> float:
    """Return the largest difference between the two models."""
    pairs = zip(one.state.model.values(), other.state.model.values(), strict=True)
    return max(float((left.double() - right.double()).abs().max()) for left, right in pairs)


def without_cache(machine: Trainer) -> None:
    """Let networks be called with images, whatever part of them is frozen."""
    machine.inputs = lambda net, samples, indices, flipped=False: machine.images(samples, indices)  # type: ignore[method-assign]
    machine.batch = lambda net, samples, indices, draw: machine.images(samples, indices)  # type: ignore[method-assign]
