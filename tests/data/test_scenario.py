from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from support.scenarios import SAMPLES, build, build_from, facts, interleaved_labels, setups

import fcil.data.scenario.scenario as scenario_module
from fcil.core.errors import ConfigError
from fcil.data.scenario.population import Event
from fcil.data.scenario.scenario import Scenario, ScenarioConfig


def rounds_of(scenario: Scenario, task: int) -> range:
    return range(scenario.start(task), scenario.start(task + 1))


def received_in(scenario: Scenario, task: int) -> dict[int, list[int]]:
    """Return what each client receives from a task in any of its rounds; it must be the same in all of them."""
    received: dict[int, list[int]] = {}
    for number in rounds_of(scenario, task):
        for client in scenario.clients(number):
            if scenario.group(number, client) != "S_o":
                holding = scenario.holding(number, client).tolist()
                assert received.setdefault(client, holding) == holding
    return received


def samples_of(label: int, classes: int) -> list[int]:
    return list(range(label, classes * SAMPLES, classes))


@given(setups(split="disjoint"))
def test_a_disjoint_split_gives_each_sample_to_one_receiver(setup: tuple[ScenarioConfig, int, int]) -> None:
    config, classes, _ = setup
    scenario = build_from(setup)
    for task, labels in enumerate(scenario.tasks):
        received = received_in(scenario, task)
        given_out = sorted(chain.from_iterable(received.values()))
        assert len(given_out) == len(set(given_out))
        assert {sample % classes for sample in given_out} <= set(labels)
        someone_at_start = any(
            scenario.group(scenario.start(task), client) != "S_o" for client in scenario.clients(scenario.start(task))
        )
        if someone_at_start and (config.groups == "per-transition" or config.both_share == 1.0):
            assert given_out == sorted(chain.from_iterable(samples_of(label, classes) for label in labels))


@given(setups(split="shared"))
def test_a_shared_split_gives_every_owner_all_samples_of_its_classes(setup: tuple[ScenarioConfig, int, int]) -> None:
    _, classes, _ = setup
    scenario = build_from(setup)
    for task, labels in enumerate(scenario.tasks):
        for holding in received_in(scenario, task).values():
            owned = {sample % classes for sample in holding}
            assert owned <= set(labels)
            assert holding == sorted(chain.from_iterable(samples_of(label, classes) for label in owned))


@given(setups(concentration=None, groups="per-transition"))
def test_every_class_has_an_owner_in_the_first_round_of_its_task(setup: tuple[ScenarioConfig, int, int]) -> None:
    _, classes, _ = setup
    scenario = build_from(setup)
    for task, labels in enumerate(scenario.tasks):
        start = scenario.start(task)
        receivers = [client for client in scenario.clients(start) if scenario.group(start, client) != "S_o"]
        held = {sample % classes for client in receivers for sample in scenario.holding(start, client).tolist()}
        assert held == (set(labels) if receivers else set())


@pytest.mark.parametrize(("size", "owned"), [(10, 6), (5, 3), (2, 2)])
def test_sixty_percent_of_a_task_is_rounded_up(size: int, owned: int) -> None:
    scenario = build(size, tasks=1, class_fraction=0.6, initial_clients=30)
    counts = {len({sample % size for sample in scenario.holding(0, client).tolist()}) for client in range(30)}
    assert counts == {owned}


def test_a_fraction_that_floats_miss_by_a_hair_is_not_rounded_up_further() -> None:
    scenario = build(10, tasks=1, class_fraction=0.1 + 0.2, initial_clients=30)
    assert {len(scenario.holding(0, client)) for client in range(30)} == {3 * SAMPLES}


@given(setups())
def test_asking_for_a_round_directly_equals_walking_there(setup: tuple[ScenarioConfig, int, int]) -> None:
    walked_scenario = build_from(setup)
    walked = [facts(walked_scenario, number) for number in range(walked_scenario.rounds)]
    for number in reversed(range(walked_scenario.rounds)):
        assert facts(build_from(setup), number) == walked[number]


@given(setups())
def test_bounding_the_cache_of_holdings_changes_nothing(setup: tuple[ScenarioConfig, int, int]) -> None:
    wide = build_from(setup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario_module, "HOLDING_BYTES", 1)
        narrow = build_from(setup)
        for number in range(wide.rounds):
            assert facts(narrow, number) == facts(wide, number)


@pytest.mark.parametrize(
    ("tasks", "sizes"),
    [(3, [4, 3, 3]), (4, [3, 3, 2, 2]), (10, [1] * 10), ((5, 1, 1), [5, 1, 1]), ((7, 3), [7, 3])],
)
def test_tasks_are_a_count_or_a_list_of_sizes(tasks: int | tuple[int, ...], sizes: list[int]) -> None:
    order = (9, 1, 8, 2, 7, 3, 6, 4, 5, 0)
    scenario = build(10, tasks=tasks, class_order=order, rounds_per_task=4)
    assert [len(task) for task in scenario.tasks] == sizes
    assert tuple(chain.from_iterable(scenario.tasks)) == order[: sum(sizes)]
    assert scenario.rounds == 4 * len(sizes)
    assert [scenario.task(number) for number in range(scenario.rounds)] == [
        task for task in range(len(sizes)) for _ in range(4)
    ]
    assert [number for number in range(scenario.rounds) if scenario.ends_task(number)] == [
        4 * task + 3 for task in range(len(sizes))
    ]


def test_a_large_first_task_takes_the_first_classes_of_the_order() -> None:
    scenario = build(100, tasks=(50, 10, 10), class_order="icarl")
    assert [len(task) for task in scenario.tasks] == [50, 10, 10]
    assert scenario.tasks[0][:3] == (87, 0, 52)


def test_the_published_population_grows_by_ten_a_transition() -> None:
    scenario = build(100, tasks=10, class_order="icarl", rounds_per_task=10, initial_clients=30, joiners=10)
    counts = [len(scenario.clients(number)) for number in range(scenario.rounds)]
    assert counts == [30 + 10 * task for task in range(10) for _ in range(10)]


def test_joins_and_leaves_happen_at_the_start_of_their_rounds() -> None:
    scenario = build(
        4,
        tasks=2,
        rounds_per_task=4,
        initial_clients=5,
        joiners=1,
        leavers=2,
        joins=(Event(round=2, clients=3), Event(round=7, clients=1)),
        leaves=(Event(round=3, clients=4), Event(round=8, clients=1)),
    )
    assert [len(scenario.clients(number)) for number in range(8)] == [5, 8, 4, 4, 3, 3, 4, 3]
    assert scenario.clients(1) == list(range(8))
    assert set(scenario.clients(2)) <= set(range(8))
    assert 8 in scenario.clients(4), "who joins in a round cannot leave in it"
    assert 9 in scenario.clients(6)


@given(setups())
def test_who_left_does_not_come_back_and_who_joins_has_the_next_number(setup: tuple[ScenarioConfig, int, int]) -> None:
    config, _, _ = setup
    scenario = build_from(setup)
    seen: set[int] = set()
    before: set[int] = set()
    for number in range(scenario.rounds):
        now = set(scenario.clients(number))
        transition = number > 0 and scenario.start(scenario.task(number)) == number
        came = sum(event.clients for event in config.joins if event.index == number) + config.joiners * transition
        went = sum(event.clients for event in config.leaves if event.index == number) + config.leavers * transition
        came, went = (came + config.initial_clients, went) if number == 0 else (came, went)
        first = max(seen, default=-1) + 1
        if number == 0:
            assert now <= set(range(came))
            assert len(now) == came - went
            seen = set(range(came))
        else:
            assert now - before == set(range(first, first + came))
            assert len(before - now) == went
            seen |= now
        before = now


@pytest.mark.parametrize(("existing", "retired"), [(30, 3), (20, 2), (15, 1), (14, 1), (4, 0), (1, 0)])
def test_nine_tenths_of_the_existing_clients_get_new_data(existing: int, retired: int) -> None:
    scenario = build(4, tasks=2, rounds_per_task=2, initial_clients=existing, joiners=3, both_share=0.9)
    groups = [scenario.group(2, client) for client in scenario.clients(2)]
    assert {name: groups.count(name) for name in ("S_o", "S_b", "S_n")} == {
        "S_o": retired,
        "S_b": existing - retired,
        "S_n": 3,
    }


@given(setups())
def test_groups_follow_from_history(setup: tuple[ScenarioConfig, int, int]) -> None:
    config, _, _ = setup
    scenario = build_from(setup)
    for number in range(scenario.rounds):
        start = scenario.start(scenario.task(number))
        veterans = {client for earlier in range(start) for client in scenario.clients(earlier)}
        for client in scenario.clients(number):
            assert (scenario.group(number, client) == "S_n") == (client not in veterans)
            if config.groups == "per-transition" and client in scenario.clients(start):
                assert scenario.group(number, client) == scenario.group(start, client)


def test_groups_can_be_drawn_anew_each_round() -> None:
    fields = {"tasks": 2, "rounds_per_task": 5, "initial_clients": 20, "joiners": 0, "both_share": 0.5}

    def retired(groups: str) -> list[list[int]]:
        scenario = build(4, groups=groups, **fields)
        return [[client for client in range(20) if scenario.group(number, client) == "S_o"] for number in range(5, 10)]

    drawn = retired("each-round")
    assert all(len(clients) == 10 for clients in drawn)
    assert len({tuple(clients) for clients in drawn}) == 5
    assert len({tuple(clients) for clients in retired("per-transition")}) == 1


@given(setups(both_share=0.5))
def test_retired_clients_hold_nothing_or_their_former_data(setup: tuple[ScenarioConfig, int, int]) -> None:
    config, _, _ = setup
    scenario = build_from(setup)
    former: dict[int, list[int]] = {}
    for number in range(scenario.rounds):
        for client in scenario.clients(number):
            holding = scenario.holding(number, client).tolist()
            if scenario.group(number, client) != "S_o":
                former[client] = holding
            else:
                assert holding == (former[client] if config.retired_data == "keep" else [])


@given(setups())
def test_participants_are_some_of_the_clients_present(setup: tuple[ScenarioConfig, int, int]) -> None:
    config, _, _ = setup
    scenario = build_from(setup)
    for number in range(scenario.rounds):
        clients, participants = scenario.clients(number), scenario.participants(number)
        assert set(participants) <= set(clients)
        assert participants == sorted(set(participants))
        assert len(participants) == min(config.participants, len(clients))


def test_participants_change_from_round_to_round_and_reach_everybody() -> None:
    scenario = build(4, tasks=2, rounds_per_task=30, initial_clients=12, joiners=0, participants=3)
    drawn = [tuple(scenario.participants(number)) for number in range(60)]
    assert len(set(drawn)) > 30
    assert set(chain.from_iterable(drawn)) == set(range(12))


@given(setups())
def test_new_classes_are_those_never_held_before(setup: tuple[ScenarioConfig, int, int]) -> None:
    _, classes, _ = setup
    scenario = build_from(setup)
    held: dict[int, set[int]] = {}
    for number in range(scenario.rounds):
        for client in scenario.clients(number):
            now = {sample % classes for sample in scenario.holding(number, client).tolist()}
            assert scenario.new_classes(number, client) == bool(now - held.get(client, set()))
            held.setdefault(client, set()).update(now)


@pytest.mark.parametrize("what", ["participants", "groups", "holdings"])
@pytest.mark.parametrize("concentration", [None, 0.5])
def test_another_seed_gives_another_scenario(what: str, concentration: float | None) -> None:
    fields = {
        "tasks": 2,
        "rounds_per_task": 2,
        "initial_clients": 20,
        "split": "disjoint",
        "concentration": concentration,
        "both_share": 0.5,
    }
    one, same, other = (facts(build(10, seed=seed, **fields), 2)[what] for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_another_seed_lets_other_clients_leave() -> None:
    fields = {"tasks": 2, "rounds_per_task": 1, "initial_clients": 20, "joiners": 0, "leavers": 8}
    assert build(4, seed=1, **fields).clients(1) != build(4, seed=2, **fields).clients(1)


def test_a_dirichlet_split_is_uneven_and_an_equal_one_is_not() -> None:
    def shares(concentration: float | None) -> list[int]:
        scenario = build(
            2, tasks=1, class_fraction=1.0, initial_clients=4, split="disjoint", concentration=concentration
        )
        return [len(scenario.holding(0, client)) for client in range(4)]

    assert shares(None) == [6, 6, 6, 6]
    assert max(shares(0.1)) > 2 * min(shares(0.1))


def test_the_global_generators_stay_untouched() -> None:
    states: list[Callable[[], Any]] = [
        random.getstate,
        lambda: [np.asarray(part).tolist() for part in np.random.get_state(legacy=True)],
        lambda: torch.random.get_rng_state().tolist(),
    ]
    before = [state() for state in states]
    for order in ("shuffle-1993", "icarl"):
        scenario = build(100, tasks=5, rounds_per_task=2, class_order=order, leavers=1, split="disjoint")
        for number in range(scenario.rounds):
            facts(scenario, number)
    assert [state() for state in states] == before


@pytest.mark.parametrize(
    ("classes", "fields", "key"),
    [
        (4, {"tasks": 5}, "scenario.tasks"),
        (4, {"tasks": 0}, "scenario.tasks"),
        (4, {"tasks": (3, 2)}, "scenario.tasks"),
        (4, {"tasks": (3, 0)}, "scenario.tasks"),
        (4, {"tasks": ()}, "scenario.tasks"),
        (4, {"tasks": 2, "class_order": (0, 1, 2, 1)}, "scenario.class_order.*twice"),
        (4, {"tasks": 2, "class_order": (0, 1, 2, 4)}, "scenario.class_order.*4"),
        (4, {"tasks": 2, "class_order": (0, 1, 2, -1)}, "scenario.class_order.*-1"),
        (4, {"tasks": 2, "class_order": "icarl"}, "scenario.class_order.*100"),
        (4, {"tasks": 2, "class_order": "natrual"}, "scenario.class_order.*natrual"),
        (4, {"tasks": 2, "initial_clients": 3, "leaves": (Event(round=2, clients=4),)}, "scenario.leaves"),
        (4, {"tasks": 2, "initial_clients": 3, "leavers": 4}, "scenario.leavers"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_key(classes: int, fields: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(classes, **fields)


def test_two_thousand_clients_can_be_asked_for_any_round() -> None:
    scenario = build(
        100, tasks=10, rounds_per_task=10, initial_clients=1100, joiners=100, split="disjoint", participants=50
    )
    assert len(scenario.clients(99)) == 2000
    assert len(scenario.participants(99)) == 50
    held = np.concatenate([scenario.holding(99, client).numpy() for client in scenario.clients(99)])
    assert sorted(held.tolist()) == sorted(chain.from_iterable(samples_of(label, 100) for label in scenario.tasks[9]))


@given(setups())
def test_what_is_asked_for_all_clients_at_once_is_what_they_say_one_by_one(
    setup: tuple[ScenarioConfig, int, int],
) -> None:
    scenario = build_from(setup)
    labels = interleaved_labels(setup[1])
    announced: set[int] = set()
    for number in range(scenario.rounds):
        clients = scenario.clients(number)
        assert scenario.arrivals(number) == [client for client in clients if scenario.new_classes(number, client)]
        groups = [scenario.group(number, client) for client in clients]
        assert scenario.group_sizes(number) == {name: groups.count(name) for name in ("S_o", "S_b", "S_n")}
        held = {label for client in clients for label in labels[scenario.holding(number, client)].tolist()}
        assert scenario.classes_held(number) <= held
        announced |= scenario.classes_held(number)
        assert held <= announced  # what S_o keeps was announced when it came
