"""Scenarios for tests: drawn at random or made by hand, and what can be asked of them."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fcil.data.scenario.late_classes import Arrival
from fcil.data.scenario.population import Event
from fcil.data.scenario.scenario import Scenario, ScenarioConfig
from fcil.data.scenario.tasks import task_starts

Setup = tuple[ScenarioConfig, int, int]
SAMPLES = 12
PARTITIONS: list[dict[str, Any]] = [
    {"partition": "dirichlet", "concentration": 0.3, "class_fraction": 0.6},
    {"partition": "dirichlet", "concentration": 0.3, "class_fraction": 0.6, "shares": "fixed"},
    {"partition": "quantity", "concentration": 0.3, "class_fraction": 0.6},
    {"partition": "shards", "concentration": None, "class_fraction": 0.6, "shards": 1},
    {"partition": "iid", "concentration": None, "class_fraction": 0.6},
]


def interleaved_labels(classes: int, samples: int = SAMPLES) -> Tensor:
    """Return labels of that many samples per class, class after class in turn."""
    return torch.arange(classes).repeat(samples)


def build(classes: int, seed: int = 5, **fields: Any) -> Scenario:
    """Return a scenario with these settings."""
    return Scenario(ScenarioConfig(**fields), interleaved_labels(classes), classes, seed)


@st.composite
def setups(draw: st.DrawFn, late: bool = False, **fixed: Any) -> Setup:
    """Draw a configuration, a number of classes and a seed; as many clients join as leave, so some are always there.

    With `late`, some classes belong to no task and come in a round of their own.
    """
    classes = draw(st.integers(3 if late else 1, 8))
    order = draw(st.permutations(range(classes)))
    coming, order = (order[:cut], order[cut:]) if (cut := draw(st.integers(1, 2)) if late else 0) else ([], order)
    tasks: int | tuple[int, ...] = draw(st.integers(1, min(len(order), 4)))
    if draw(st.booleans()):
        first = draw(st.integers(1, len(order)))
        tasks = (first, *[1] * min(2, len(order) - first))
    count = tasks if isinstance(tasks, int) else len(tasks)
    rounds_per_task: int | tuple[int, ...] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        rounds_per_task = tuple(draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)))
    last = task_starts(rounds_per_task, count)[-1]
    joiners = draw(st.integers(0, 2))
    rounds = st.integers(1, last)
    fields = {
        "tasks": tasks,
        "class_order": tuple(order),
        "rounds_per_task": rounds_per_task,
        "class_fraction": draw(st.sampled_from([0.05, 0.34, 0.6, 1.0])),
        "split": draw(st.sampled_from(["shared", "disjoint"])),
        "concentration": draw(st.sampled_from([None, 0.1, 2.0])),
        "initial_clients": draw(st.integers(4, 7)),
        "joiners": joiners,
        "leavers": draw(st.integers(0, joiners)),
        "joins": tuple(draw(st.lists(st.builds(Event, round=rounds, clients=st.integers(1, 2)), max_size=2))),
        "leaves": tuple(draw(st.lists(st.builds(Event, round=rounds, clients=st.just(1)), max_size=2))),
        "both_share": draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        "groups": draw(st.sampled_from(["per-transition", "each-round"])),
        "retired_data": draw(st.sampled_from(["memory", "keep"])),
        "participants": draw(st.integers(1, 9)),
    }
    if not {"split", "concentration"} & fixed.keys():
        fields |= draw(st.sampled_from([*PARTITIONS, *[{}] * len(PARTITIONS)]))
    chosen = {**fields, **fixed}
    if chosen["split"] == "shared" and "partition" not in chosen:
        chosen["concentration"] = None
    seed = draw(st.integers(0, 1000))
    config = ScenarioConfig(**chosen)
    if late:
        present = Scenario(config, interleaved_labels(classes), classes, seed).clients
        arrivals = []
        for label in coming:
            context = draw(rounds)
            some = st.lists(st.sampled_from(present(context - 1)), min_size=1, max_size=3).map(tuple)
            arrivals.append(Arrival(round=context, classes=(label,), clients=draw(st.none() | some)))
        config = config.model_copy(update={"arrivals": tuple(arrivals)})
    return config, classes, seed


def build_from(setup: Setup) -> Scenario:
    """Return the scenario of a setup, made anew."""
    config, classes, seed = setup
    return Scenario(config, interleaved_labels(classes), classes, seed)


def facts(scenario: Scenario, number: int) -> dict[str, Any]:
    """Return all that a scenario says of the clients of a round."""
    clients = scenario.clients(number)
    return {
        "clients": clients,
        "participants": scenario.participants(number),
        "groups": [scenario.group(number, client) for client in clients],
        "holdings": [scenario.holding(number, client).tolist() for client in clients],
        "new_classes": [scenario.new_classes(number, client) for client in clients],
    }
