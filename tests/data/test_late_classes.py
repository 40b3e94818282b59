"""Classes that come in a round of their own, and tasks of different lengths."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from support.examples import examples
from support.scenarios import SAMPLES, Setup, build, build_from, facts, interleaved_labels, setups

from fcil.core.errors import ConfigError
from fcil.data.scenario.checks import foresee, other_blocks
from fcil.data.scenario.late_classes import Arrival
from fcil.data.scenario.population import Event
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import differing_settings, load_config
from fcil.experiment.cost_estimate import PUBLISHED_SIZES
from fcil.experiment.presets import preset_names

HOSPITALS: dict[str, Any] = {
    "tasks": (2, 2),
    "rounds_per_task": (3, 5),
    "class_fraction": 1.0,
    "initial_clients": 6,
    "joiners": 0,
    "both_share": 1.0,
    "participants": 2,
    "arrivals": (Arrival(round=6, classes=(4,), clients=(1, 3)),),
}


def labels_held(scenario: Scenario, number: int, client: int, classes: int) -> set[int]:
    return {sample % classes for sample in scenario.holding(number, client).tolist()}


def late_samples(label: int, classes: int) -> set[int]:
    return set(range(label, classes * SAMPLES, classes))


# --- the late class at two hospitals, by hand --------------------------------------------------------------------


def test_a_late_class_comes_to_the_named_clients_in_its_round_and_stays_until_the_task_ends() -> None:
    scenario = build(5, **HOSPITALS)
    assert scenario.tasks == ((0, 1), (2, 3))
    for number in range(8):
        for client in range(6):
            regular = {0, 1} if number < 3 else {2, 3}
            late = {4} if number >= 5 and client in (1, 3) else set()
            assert labels_held(scenario, number, client, 5) == regular | late
    assert [scenario.arrivals(number) for number in range(8)] == [
        [0, 1, 2, 3, 4, 5], [], [], [0, 1, 2, 3, 4, 5], [], [1, 3], [], [],
    ]  # fmt: skip
    assert scenario.announcers(5) == [1, 3]
    assert [sorted(scenario.classes_held(number)) for number in (4, 5)] == [[2, 3], [2, 3, 4]]


def test_a_late_class_counts_in_the_task_during_which_it_comes_from_its_round_on() -> None:
    scenario = build(5, **HOSPITALS)
    assert scenario.seen(0) == [(0, 1)]
    assert scenario.seen(4) == [(0, 1), (2, 3)]
    assert scenario.seen(5) == scenario.seen(7) == [(0, 1), (2, 3, 4)]
    early = build(5, **{**HOSPITALS, "arrivals": (Arrival(round=1, classes=(4,)),)})
    assert early.seen(0) == [(0, 1, 4)]
    assert early.seen(7) == [(0, 1, 4), (2, 3)]


def test_without_named_clients_all_that_are_present_get_it_and_who_joins_later_does_not() -> None:
    arrivals = (Arrival(round=5, classes=(4,)),)
    fields = {**HOSPITALS, "joins": (Event(round=7, clients=1),), "leaves": (Event(round=5, clients=2),)}
    scenario = build(5, **{**fields, "arrivals": arrivals})
    present = scenario.clients(4)
    assert len(present) == 4
    assert scenario.arrivals(4) == present
    assert [4 in labels_held(scenario, 7, client, 5) for client in scenario.clients(7)] == [True] * 4 + [False]


def test_a_disjoint_split_divides_a_late_class_among_its_receivers() -> None:
    scenario = build(5, split="disjoint", **HOSPITALS)
    parts = [set(scenario.holding(5, client).tolist()) & late_samples(4, 5) for client in (1, 3)]
    assert [len(part) for part in parts] == [SAMPLES // 2] * 2
    assert parts[0] | parts[1] == late_samples(4, 5)


@pytest.mark.parametrize("retired_data", ["memory", "keep"])
def test_a_client_without_new_data_moves_to_s_b_when_a_late_class_reaches_it(retired_data: str) -> None:
    arrivals = (Arrival(round=6, classes=(4,), clients=(0,)),)
    fields = {**HOSPITALS, "both_share": 0.0, "retired_data": retired_data, "arrivals": arrivals}
    scenario = build(5, **fields)
    assert [scenario.group(number, 0) for number in (0, 3, 4, 5, 7)] == ["S_n", "S_o", "S_o", "S_b", "S_b"]
    assert scenario.group_sizes(4) == {"S_o": 6, "S_b": 0, "S_n": 0}
    assert scenario.group_sizes(5) == {"S_o": 5, "S_b": 1, "S_n": 0}
    assert set(scenario.holding(5, 0).tolist()) == late_samples(4, 5)
    assert labels_held(scenario, 5, 1, 5) == ({0, 1} if retired_data == "keep" else set())


def test_what_a_retired_client_keeps_includes_its_late_class() -> None:
    arrivals = (Arrival(round=2, classes=(4,), clients=(0,)),)
    scenario = build(5, **{**HOSPITALS, "both_share": 0.0, "retired_data": "keep", "arrivals": arrivals})
    assert labels_held(scenario, 3, 0, 5) == {0, 1, 4}
    assert labels_held(scenario, 3, 1, 5) == {0, 1}


def test_several_classes_can_come_at_once_and_named_orders_leave_them_out() -> None:
    arrivals = (Arrival(round=6, classes=(7, 2)), Arrival(round=2, classes=(0,)))
    scenario = build(10, **{**HOSPITALS, "tasks": 3, "rounds_per_task": 2, "arrivals": arrivals})
    assert scenario.tasks == ((1, 3, 4), (5, 6), (8, 9))
    assert scenario.seen(5) == [(1, 3, 4, 0), (5, 6), (8, 9, 7, 2)]


# --- properties --------------------------------------------------------------------------------------------------


@given(setups(late=True))
def test_asking_for_a_round_directly_equals_walking_there(setup: Setup) -> None:
    walked_scenario = build_from(setup)
    walked = [facts(walked_scenario, number) for number in range(walked_scenario.rounds)]
    for number in reversed(range(walked_scenario.rounds)):
        assert facts(build_from(setup), number) == walked[number]


@given(setups(late=True))
def test_every_late_sample_is_held_by_who_should_hold_it_until_the_task_ends(setup: Setup) -> None:
    config, classes, _ = setup
    scenario = build_from(setup)
    for arrival in config.arrivals:
        (label,) = arrival.classes
        wanted = set(arrival.clients or scenario.clients(arrival.index))
        end = scenario.start(scenario.task(arrival.index) + 1)
        for number in range(scenario.rounds):
            held = {
                client: set(scenario.holding(number, client).tolist()) & late_samples(label, classes)
                for client in scenario.clients(number)
                if scenario.group(number, client) != "S_o"
            }
            if not arrival.index <= number < end:
                assert not any(held.values())
                continue
            assert {client for client in held if held[client]} <= wanted
            still = wanted & held.keys()
            if config.is_shared:
                assert all(held[client] == late_samples(label, classes) for client in still)
            elif still == wanted:  # nobody has left: each sample is with one of them
                assert sum(map(len, held.values())) == SAMPLES
                assert set().union(*held.values()) == late_samples(label, classes)


@given(setups(late=True))
def test_new_classes_are_those_never_held_before(setup: Setup) -> None:
    _, classes, _ = setup
    scenario = build_from(setup)
    held: dict[int, set[int]] = {}
    for number in range(scenario.rounds):
        for client in scenario.clients(number):
            now = labels_held(scenario, number, client, classes)
            assert scenario.new_classes(number, client) == bool(now - held.get(client, set()))
            held.setdefault(client, set()).update(now)


@given(setups(late=True))
def test_what_is_asked_for_all_clients_at_once_is_what_they_say_one_by_one(setup: Setup) -> None:
    scenario, labels = build_from(setup), interleaved_labels(setup[1])
    announced: set[int] = set()
    for number in range(scenario.rounds):
        clients = scenario.clients(number)
        assert scenario.arrivals(number) == [client for client in clients if scenario.new_classes(number, client)]
        groups = [scenario.group(number, client) for client in clients]
        assert scenario.group_sizes(number) == {name: groups.count(name) for name in ("S_o", "S_b", "S_n")}
        held = {label for client in clients for label in labels[scenario.holding(number, client)].tolist()}
        assert scenario.classes_held(number) <= held
        announced |= scenario.classes_held(number)
        assert held <= announced
        for client, group in zip(clients, groups, strict=True):
            if group != "S_o" and setup[0].groups == "per-transition":
                assert bool(scenario.holders(number, [client])[0]) == bool(len(scenario.holding(number, client)))


@given(setups(late=True))
def test_no_class_is_lost_and_none_is_counted_twice(setup: Setup) -> None:
    config, classes, _ = setup
    scenario = build_from(setup)
    late = {label for arrival in config.arrivals for label in arrival.classes}
    counted = [label for labels in scenario.seen(scenario.rounds - 1) for label in labels]
    assert len(counted) == len(set(counted))
    assert late <= set(counted)
    assert set(counted) - late == {label for task in scenario.tasks for label in task}
    if isinstance(config.tasks, int):
        assert set(counted) == set(range(classes))
    for number in range(scenario.rounds):
        begun = scenario.seen(number)
        assert len(begun) == scenario.task(number) + 1
        assert all(set(scenario.tasks[task]) <= set(labels) for task, labels in enumerate(begun))
        there = {label for labels in begun for label in labels} & late
        assert there == {arrival.classes[0] for arrival in config.arrivals if arrival.index <= number}


@given(setups())
@examples(40)
def test_a_late_class_changes_nothing_for_clients_that_it_does_not_reach(setup: Setup) -> None:
    config, classes, seed = setup
    plain = build_from(setup)
    reached = plain.clients(plain.rounds - 1)[0]
    arrival = Arrival(round=plain.rounds, classes=(classes,), clients=(reached,))
    more = config.model_copy(update={"arrivals": (arrival,)})
    scenario = Scenario(more, torch.cat([interleaved_labels(classes), torch.full((3,), classes)]), classes + 1, seed)
    for number in range(plain.rounds):
        ours, theirs = facts(scenario, number), facts(plain, number)
        if number == plain.rounds - 1:
            for key in ("groups", "holdings", "new_classes"):
                ours[key].pop(0), theirs[key].pop(0)
        assert ours == theirs


# --- lengths of tasks --------------------------------------------------------------------------------------------


def test_tasks_may_differ_in_length() -> None:
    scenario = build(6, tasks=3, rounds_per_task=(2, 1, 4), initial_clients=3, joiners=1)
    assert (scenario.rounds, [scenario.start(task) for task in range(4)]) == (7, [0, 2, 3, 7])
    assert [scenario.task(number) for number in range(7)] == [0, 0, 1, 2, 2, 2, 2]
    assert [number for number in range(7) if scenario.ends_task(number)] == [1, 2, 6]
    assert [len(scenario.clients(number)) for number in range(7)] == [3, 3, 4, 5, 5, 5, 5]


@given(setups(rounds_per_task=2, joins=(), leaves=()))
@examples(40)
def test_a_list_of_equal_lengths_is_one_number(setup: Setup) -> None:
    config, classes, seed = setup
    one = build_from(setup)
    lengths = (2,) * len(one.tasks)
    other = build_from((config.model_copy(update={"rounds_per_task": lengths}), classes, seed))
    assert other.rounds == one.rounds
    for number in range(one.rounds):
        assert facts(one, number) == facts(other, number)


# --- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rounds_per_task": (3, 5, 2)}, "scenario.rounds_per_task: found 3 lengths, should be 2"),
        ({"rounds_per_task": ()}, "scenario.rounds_per_task: found 0 lengths, should be 2"),
        ({"arrivals": (Arrival(round=9, classes=(4,)),)}, "scenario.arrivals: round 9 is out of range"),
        ({"arrivals": (Arrival(round=2, classes=(5,)),)}, "scenario.arrivals: class 5 does not exist"),
        ({"arrivals": (Arrival(round=2, classes=(4, 4)),)}, "scenario.arrivals: class 4 is named twice"),
        (
            {"arrivals": (Arrival(round=2, classes=(4,)), Arrival(round=3, classes=(4,)))},
            "scenario.arrivals: class 4 is named twice",
        ),
        ({"class_order": (0, 1, 2, 4)}, "scenario.arrivals: class 4 is also in scenario.class_order"),
        ({"tasks": (3, 2)}, r"scenario.tasks: sizes \[3, 2\] for 4 classes besides the 1 of scenario.arrivals"),
        ({"tasks": 5}, "scenario.tasks: 5 tasks for 4 classes besides the 1 of scenario.arrivals; use 1 to 4"),
        (
            {"arrivals": (Arrival(round=2, classes=(4,), clients=(6,)),)},
            "scenario.arrivals: client 6 never exists; the clients are 0 to 5",
        ),
        (
            {"joiners": 1, "arrivals": (Arrival(round=2, classes=(4,), clients=(6,)),)},
            "scenario.arrivals: client 6 is not there in round 2: it joins in round 4",
        ),
        (
            {"leavers": 5, "arrivals": tuple(Arrival(round=4, classes=(c,), clients=(c,)) for c in (3, 4)), "tasks": 2},
            "scenario.arrivals: client . is not there in round 4: it leaves in round 4",
        ),
        ({"arrivals": (Arrival(round=2, classes=(0, 1, 2, 3, 4)),)}, "scenario.arrivals: all 5 classes come late"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(5, **{**HOSPITALS, **fields})


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("rounds_per_task=[3, 0]", "scenario.rounds_per_task.1: found 0, should be at least 1"),
        ("rounds_per_task=often", "scenario.rounds_per_task: found 'often', should be a whole number or a list"),
        ("arrivals=[{round = 1}]", "scenario.arrivals.0.classes: missing; it must be given"),
        ("arrivals=[{round = 1, classes = []}]", "scenario.arrivals.0.classes: found [], should be a list of"),
        ("arrivals=[{round = 1, classes = [2], client = 1}]", "scenario.arrivals.0.client: unknown key; did you mean"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("digits", [f"scenario.{setting}"])
    assert sentence in str(refused.value)


# --- what others make of it --------------------------------------------------------------------------------------


def test_foresight_knows_late_classes_and_lengths() -> None:
    lonely = Arrival(round=1, classes=(4,), clients=(0,))
    fields = {**HOSPITALS, "split": "disjoint", "initial_clients": 13, "class_fraction": 0.5, "tasks": (1, 1)}
    assert any("hold no data" in warning for warning in foresee(build(5, **{**fields, "arrivals": ()})))
    crowd = Scenario(
        build(5, **{**HOSPITALS, "arrivals": (lonely,), "initial_clients": 1, "participants": 1}).config,
        torch.tensor([4, 4, 4]),
        5,
        seed=1,
    )
    assert not any("hold no data" in warning for warning in foresee(crowd))  # the late class is all there is
    found = other_blocks(build(5, **HOSPITALS), epochs=2, planned=6)
    assert found[0].endswith("scenario.rounds_per_task x train.epochs is [3, 5] x 2 = [6, 10]")
    assert found[1].startswith("scenario.arrivals: the class that comes in round 6 begins a block within a task")
    assert other_blocks(build(5, **{**HOSPITALS, "rounds_per_task": 3, "arrivals": (lonely,)}), 2, 6) == []


def test_a_document_from_before_there_were_arrivals_is_the_same_run() -> None:
    ours = load_config("digits").document()
    before = {**ours, "scenario": {key: value for key, value in ours["scenario"].items() if key != "arrivals"}}
    late = load_config("digits", ["scenario.arrivals=[{round = 3, classes = [9], clients = [1]}]"]).document()
    assert differing_settings(before, ours) == []
    assert [key.split(" ")[0] for key in differing_settings(before, late)] == ["scenario.arrivals"]
    assert late["scenario"]["arrivals"] == [{"round": 3, "classes": [9], "clients": [1]}]


def digest(name: str, changes: dict[str, Any]) -> str:
    """Return a digest of what a preset's scenario says of some rounds."""
    config = load_config(name)
    classes, samples, *_ = PUBLISHED_SIZES.get(config.data.source, (10, 144))
    labels = torch.arange(classes).repeat_interleave(min(samples, config.data.samples_per_class or samples))
    scenario = Scenario(config.scenario.model_copy(update=changes), labels, classes, config.seed)
    total = hashlib.sha256()
    for number in sorted({0, scenario.rounds // 3, scenario.rounds - 1}):
        some = scenario.clients(number)[::10]
        said = [
            scenario.task(number), scenario.ends_task(number), scenario.clients(number), scenario.participants(number),
            [scenario.group(number, client) for client in some], scenario.arrivals(number),
            sorted(scenario.classes_held(number)), scenario.group_sizes(number),
        ]  # fmt: skip
        total.update(json.dumps(said).encode())
        for client in some:
            total.update(np.ascontiguousarray(scenario.holding(number, client).numpy()).data)
    return total.hexdigest()[:16]


ODD = {"split": "disjoint", "leavers": 1, "groups": "each-round", "retired_data": "keep"}


FORMER = {
    "afl-cifar100-b01": ("2b04ff9d44647a73", "2b04ff9d44647a73"),
    "cifar100-lite": ("1d395325b7c9a4d0", "f8369abb749a89ba"),
    "cifar100-lite-t10": ("d0de64a43099bb55", "1789db262e4f3aaf"),
    "cifar100-mid": ("9732f765542e9ce2", "2247bda6f876dad6"),
    "cifar100-mid-noniid": ("004cbd40ada071d1", "004cbd40ada071d1"),
    "cifar100-pre-t10": ("5cb9ac158ca83fe0", "53509df115adaf77"),
    "cifar100-pre-t20": ("14816d4bbcc48fc1", "95bd21c85b60eacb"),
    "cifar100-pre-t5": ("c8000b7c5e4297ef", "1a033eb938a1632a"),
    "cifar100-t10": ("5cb9ac158ca83fe0", "53509df115adaf77"),
    "cifar100-t20": ("14816d4bbcc48fc1", "95bd21c85b60eacb"),
    "cifar100-t5": ("c8000b7c5e4297ef", "1a033eb938a1632a"),
    "digits": ("494d95668e0aa8a7", "a2911592ed279a66"),
    "digits-noniid": ("aa40bb65afd6f32c", "aa40bb65afd6f32c"),
    "imagenet-subset-t10": ("5cb9ac158ca83fe0", "53509df115adaf77"),
    "imagenet-subset-t20": ("14816d4bbcc48fc1", "95bd21c85b60eacb"),
    "imagenet-subset-t5": ("c8000b7c5e4297ef", "1a033eb938a1632a"),
    "lander-cifar100-t10-b05": ("b0e57f4a183a96a4", "b0e57f4a183a96a4"),
    "lorm-cifar100-t10-b05": ("c1b850ad2a5491fc", "c1b850ad2a5491fc"),
    "mfcl-cifar100-t10": ("559d75969f95d518", "559d75969f95d518"),
    "resource-cifar100-t10": ("bc8332f35a47037b", "bc8332f35a47037b"),
    "stsa-cifar100-t10-b05": ("433dcd29164a8f4a", "433dcd29164a8f4a"),
    "tiny-lite": ("50eb1bda9a30662b", "0642309cd8be6ef6"),
    "tiny-pre": ("3d8c0e8d4c6b0d86", "987466d2341e157a"),
    "tinyimagenet-t10": ("6e2a989b6d6366c2", "caab477998105ac4"),
    "tinyimagenet-t20": ("950f7f21d1a4e433", "657c9dc71cb1d8b2"),
    "tinyimagenet-t5": ("3c37ffca97fb58bb", "9cd75165c2568876"),
}


@pytest.mark.parametrize("name", preset_names())
def test_the_scenarios_of_the_presets_are_what_they_always_were(name: str) -> None:
    """Digests are older than tasks of different lengths, or as old as the preset; the results kept depend on them."""
    staying = {} if load_config(name).scenario.joiners else {"leavers": 0}
    assert (digest(name, {}), digest(name, {**ODD, **staying})) == FORMER[name]
