"""Partitions of samples as tables (clients, classes) of counts, and scenarios that use them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.scenarios import build

import fcil
from fcil.core.errors import ConfigError
from fcil.data.scenario.holdings import holdings_by_task
from fcil.data.scenario.ownership import split_in_words
from fcil.data.scenario.partition import (
    Partition,
    count_balanced,
    count_dirichlet,
    count_iid,
    count_quantity,
    count_shards,
    partition_counts,
)
from fcil.data.scenario.scenario import ScenarioConfig
from fcil.data.scenario.skew import class_skew, gini, skew, task_skews

NAMES: tuple[Partition, ...] = ("dirichlet", "dirichlet-balanced", "shards", "quantity", "iid")
WITHOUT = {"shards", "iid"}  # partitions without a concentration


def drawn(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def settings_of(name: Partition) -> dict[str, Any]:
    return {"partition": name, "concentration": None if name in WITHOUT else 0.5}


@given(
    st.sampled_from(NAMES),
    st.lists(st.integers(8, 40), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
def test_every_sample_has_one_client(name: Partition, sizes: list[int], clients: int, seed: int) -> None:
    counts = partition_counts(name, sizes, clients, 1.0, 2, drawn(seed))
    assert counts.shape == (clients, len(sizes))
    assert (counts >= 0).all()
    assert counts.sum(0).tolist() == sizes


def test_dirichlet_shares_are_drawn_for_each_class() -> None:
    counts = count_dirichlet([100_000] * 2000, 3, 0.5, drawn()) / 100_000
    first = counts[0]
    # a share of Dirichlet(a, a, a) has mean 1/3 and variance 2 / (9 (3a + 1)); independent classes do not correlate
    assert first.mean() == pytest.approx(1 / 3, abs=0.03)
    assert first.var() == pytest.approx(2 / (9 * 2.5), abs=0.01)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.1


def test_a_large_concentration_gives_equal_shares() -> None:
    assert count_quantity([300, 60], 3, 1e9, drawn()).tolist() == [[100, 20]] * 3


def test_balanced_clients_are_never_empty_and_stop_at_their_even_part() -> None:
    sizes, clients = [50] * 10, 5
    for seed in range(50):
        counts = count_balanced(sizes, clients, 0.1, drawn(seed))
        assert counts.sum(1).all()
        before = counts.sum(1) - counts[np.arange(clients), [np.flatnonzero(row)[-1] for row in counts]]
        assert (before < sum(sizes) / clients).all()  # none got another class once it had its even part


def test_more_clients_than_samples_cannot_be_balanced() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.concentration: at 0\.5 none of 1000 draws gave each of the 4"):
        count_balanced([2], 4, 0.5, drawn())


def test_quantity_keeps_the_mix_of_classes() -> None:
    counts = count_quantity([1000, 500], 4, 0.5, drawn())
    assert np.abs(counts[:, 0] - 2 * counts[:, 1]).max() <= 2  # rounded to whole samples
    assert counts.sum(1).max() > 2 * counts.sum(1).min()


def test_a_client_with_one_shard_of_equal_classes_has_one_class() -> None:
    counts = count_shards([30] * 6, 6, 1, drawn())
    assert sorted(map(tuple, counts.tolist())) == sorted(map(tuple, (30 * np.eye(6, dtype=int)).tolist()))


def test_iid_parts_are_equal_to_one_sample() -> None:
    sizes = count_iid([10, 21], 4, drawn()).sum(1)
    assert sorted(sizes.tolist()) == [7, 8, 8, 8]


def test_skew_by_hand() -> None:
    assert class_skew(np.array([[1.0, 0.0], [0.0, 1.0]])) == 0.5  # each is half away from the even mix
    assert class_skew(np.array([[2.0, 2.0], [5.0, 5.0]])) == 0.0
    assert gini([3, 3, 3]) == 0.0
    assert gini([0, 0, 4]) == pytest.approx(2 / 3)
    assert skew(np.zeros((3, 2))).classes is None


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_gives_out_each_sample_once(name: Partition) -> None:
    scenario = build(6, tasks=2, initial_clients=4, joiners=1, both_share=1.0, **settings_of(name))
    for task, labels in enumerate(scenario.tasks):
        start = scenario.start(task)
        clients = scenario.clients(start)
        given_out = list(chain.from_iterable(scenario.holding(start, client).tolist() for client in clients))
        assert len(set(given_out)) == len(given_out)
        assert sorted(given_out) == sorted(sample for sample in range(72) if sample % 6 in labels)


def test_fixed_shares_divide_each_task_like_the_first() -> None:
    def counts(task: int, shares: str) -> list[list[int]]:
        fields = {"tasks": 2, "initial_clients": 3, "joiners": 0, "both_share": 1.0, "shares": shares}
        scenario = build(6, **fields, **settings_of("dirichlet"))
        start, labels = scenario.start(task), scenario.tasks[task]
        held = [scenario.holding(start, client) % 6 for client in range(3)]
        return [[int((one == label).sum()) for label in labels] for one in held]

    assert counts(0, "fixed") == counts(1, "fixed")
    assert counts(0, "per-task") != counts(1, "per-task")


def test_clients_without_new_data_get_none_of_a_task() -> None:
    scenario = build(6, tasks=2, initial_clients=4, joiners=0, both_share=0.5, **settings_of("iid"))
    start = scenario.start(1)
    groups = {client: scenario.group(start, client) for client in scenario.clients(start)}
    assert sorted(groups.values()) == ["S_b", "S_b", "S_o", "S_o"]
    assert sum(len(scenario.holding(start, client)) for client in groups) == 36
    assert all(len(scenario.holding(start, client)) == 0 for client in groups if groups[client] == "S_o")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"partition": "dirichlet"}, "scenario.concentration: absent, should be a number above 0"),
        ({"partition": "iid", "concentration": 1.0}, "scenario.concentration: found 1, should be absent"),
        ({"partition": "iid", "class_fraction": 0.5}, "scenario.class_fraction: found 0.5, should be 0.6"),
        ({"partition": "iid", "shards": 3}, "scenario.shards: found 3, should be 2"),
        ({"shards": 3}, "scenario.shards: found 3, should be 2, its default: scenario.partition classes"),
        ({"shares": "fixed"}, "scenario.shares: found fixed, should be per-task"),
    ],
)
def test_a_setting_that_a_partition_ignores_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(4, tasks=1, **fields)


def test_the_skew_of_a_task_is_that_of_its_holders() -> None:
    scenario = build(4, tasks=1, rounds_per_task=1, initial_clients=4, partition="shards", shards=1)
    labels = torch.arange(4).repeat(12)
    (found,) = task_skews(holdings_by_task(scenario, labels))
    assert (found.classes, found.sizes) == (0.75, 0.0)  # one class each of four
    assert ScenarioConfig(partition="iid").is_shared is False


def test_a_split_is_named_in_words() -> None:
    found = [split_in_words(ScenarioConfig(**settings_of(name))) for name in NAMES]
    assert found == [
        "each sample has one owner (Dirichlet 0.5)",
        "each sample has one owner (balanced Dirichlet 0.5)",
        "each sample has one owner (2 shards of the sorted task for each client)",
        "each sample has one owner (the same mix, Dirichlet 0.5 sizes)",
        "each sample has one owner (equal parts of the shuffled task)",
    ]
    assert split_in_words(ScenarioConfig()) == "every owner of a class holds all its samples"
    assert split_in_words(ScenarioConfig(split="disjoint")) == "each sample has one owner (equal parts)"
    assert (
        split_in_words(ScenarioConfig(split="disjoint", concentration=1)) == "each sample has one owner (Dirichlet 1)"
    )


def test_each_partition_has_a_picture_of_its_own() -> None:
    pictures = set()
    for name in NAMES:
        chosen = [f"scenario.{key}={value}" for key, value in settings_of(name).items() if value is not None]
        pictures.add(fcil.holdings("digits", seed=1, settings=chosen).picture())
    assert len(pictures) == len(NAMES)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
