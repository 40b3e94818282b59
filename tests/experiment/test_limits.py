"""Runs too large for a machine are refused by their key before anything is built."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fcil.experiment.limits
from fcil.core.errors import ConfigError
from fcil.core.memory_limit import memory_bytes
from fcil.data.datasets.dataset import Source, Split
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config, parse_config
from fcil.experiment.limits import COPIES, TRIAL, check_bfloat16, check_memory, check_processor, check_served_memory
from fcil.federation.engines import default_workers
from fcil.models import (
    Classifier,
    ModelConfig,
    activation_bytes,
    inference_bytes,
    multiply_adds,
    networks,
    training_adds,
)
from fcil.models import registry as network
from fcil.models.cost import parameter_bytes

CLASSES = 4


def configured(**tables: dict[str, Any]) -> Config:
    scenario = {"tasks": 1, "initial_clients": 2, "participants": 2, "class_fraction": 1.0}
    return parse_config({"scenario": scenario, "method": {"name": "finetune"}, **tables})


def check(config: Config, size: int = 8, samples: int = 40) -> None:
    images = torch.zeros(1, 3, size, size, dtype=torch.uint8).expand(samples, -1, -1, -1)  # takes no memory
    split = Split(images, torch.arange(samples) % CLASSES)
    source = Source("hollow", split, split, tuple("abcd"))
    check_memory(config, source, Scenario(config.scenario, split.labels, CLASSES, seed=1))


@pytest.mark.parametrize(("key", "allowed"), [("threads", 64), ("workers", 16)])
def test_threads_and_workers_are_bounded_by_the_cores(key: str, allowed: int) -> None:
    most = max(allowed, 4 * default_workers("cpu"))
    check_processor(configured(run={key: most}))
    with pytest.raises(ConfigError, match=rf"run\.{key}: found {most + 1}, should be at most {most} on a machine with"):
        check_processor(configured(run={key: most + 1}))


def test_the_workers_of_a_cluster_are_not_bounded_by_the_cores_here() -> None:
    check_processor(configured(run={"workers": 10_000, "address": "somewhere:6379"}))


@pytest.mark.parametrize("width", [1_000_000, 2**63 - 1])
def test_a_network_that_no_machine_holds_is_told_the_width_that_fits(width: int) -> None:
    sentence = r"model\.width: found \d+, should be at most \d+ for .* needs at least .* MB, this machine has .* MB"
    with pytest.raises(ConfigError, match=sentence) as caught:
        check(configured(model={"width": width}))
    fitting = int(str(caught.value).split("at most ")[1].split()[0])
    check(configured(model={"width": fitting}))
    with pytest.raises(ConfigError, match=r"model\.width"):
        check(configured(model={"width": fitting + 1}))


def test_a_batch_beyond_the_memory_is_told_the_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcil.experiment.limits, "memory_bytes", lambda: 400_000_000)
    tables = {"model": {"width": 64}, "train": {"batch_size": 2**63 - 1}}
    with pytest.raises(ConfigError, match=r"train\.batch_size: found 9223372036854775807, should be at most") as caught:
        check(configured(**tables), size=32, samples=2000)
    fitting = int(str(caught.value).split("at most ")[1].split()[0])
    tables["train"]["batch_size"] = fitting
    check(configured(**tables), size=32, samples=2000)


def test_models_that_an_aggregator_holds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    size = parameter_bytes(configured(model={"width": 4}).model, 3)
    monkeypatch.setattr(fcil.experiment.limits, "memory_bytes", lambda: (COPIES + 5) * size)
    scenario = {"tasks": 1, "initial_clients": 9, "class_fraction": 1.0}

    def held(aggregator: str, participants: int) -> Config:
        federation = {"aggregator": aggregator}
        return configured(
            model={"width": 4}, federation=federation, scenario={**scenario, "participants": participants}
        )

    for config in (held("mean", 6), held("clip", 6), held("median", 5)):
        check(config, samples=4)
    sentence = (
        r"scenario\.participants: found 6, should be at most 5, since federation\.aggregator median holds the models"
    )
    with pytest.raises(ConfigError, match=sentence):
        check(held("median", 6), samples=4)
    for config in (held("mean", 6), held("median", 5)):
        check_served_memory(config, 3)
    with pytest.raises(ConfigError, match=sentence):
        check_served_memory(held("median", 6), 3)


def test_clients_whose_table_is_beyond_the_memory_are_told_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcil.experiment.limits, "memory_bytes", lambda: 50_000_000)
    config = configured(model={"width": 2}, scenario={"tasks": 1, "initial_clients": 1_000_000, "joiners": 0})
    with pytest.raises(ConfigError, match=r"scenario\.initial_clients.*found 1000000 .* at most 520833 with 4 classes"):
        check(config)


def test_a_batch_is_no_longer_than_what_clients_hold() -> None:
    check(configured(train={"batch_size": 2**63 - 1}))


def test_a_single_image_beyond_the_memory_asks_for_a_smaller_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcil.experiment.limits, "memory_bytes", lambda: 300_000_000)
    config = configured(model={"width": 8}, train={"batch_size": 1})
    with pytest.raises(ConfigError, match=r"model\.width: found 8, should be smaller for images of 1024 x 1024 pixels"):
        check(config, size=1024, samples=4)


def test_the_memory_counts_a_limit_of_the_process() -> None:
    before, soft = memory_bytes(), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (before - 4096, soft[1]))
    try:
        assert memory_bytes() == before - 4096
    finally:
        resource.setrlimit(resource.RLIMIT_AS, soft)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_a_training_step_keeps_at_least_what_was_counted(stem: str) -> None:
    config, kept = ModelConfig(width=4, stem=stem), dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    net = Classifier(config, [0.0] * 3, [1.0] * 3, classes=2)
    weights = sum(parameter.nbytes for parameter in net.parameters())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = net(torch.zeros(2, 3, 32, 32)).sum()
    counted = 2 * activation_bytes(config, (3, 32, 32))
    assert counted <= sum(kept.values()) <= 1.5 * counted + 2 * weights
    assert inference_bytes(config, (3, 32, 32), 2) < counted
    loss.backward()


def test_mixed_precision_is_refused_where_its_trial_is_killed() -> None:
    dying = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(ConfigError, match=r"train\.mixed_precision: found true.*was killed by SIGILL"):
        check_bfloat16(dying)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no bfloat16 here')", r"failed \(RuntimeError: no bfloat16 here\)"),
        ("exit(3)", "exit code 3"),
    ],
)
def test_mixed_precision_is_refused_where_its_trial_errs(code: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_bfloat16((sys.executable, "-c", code))


def test_a_trial_is_made_once_per_process(tmp_path: Any) -> None:
    mark = tmp_path / "tried"
    command = (sys.executable, "-c", f"open({str(mark)!r}, 'x')")
    check_bfloat16(command)
    check_bfloat16(command)
    assert mark.exists()


def test_the_trial_is_a_program_that_works_without_bfloat16_units() -> None:
    """Play the trial where oneDNN may use old instructions alone, which every processor of this kind has."""
    command = ("env", "ONEDNN_MAX_CPU_ISA=AVX2", sys.executable, "-c", TRIAL)
    check_bfloat16(command)


def test_a_network_without_a_width_is_told_of_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = replace(networks()["cnn"], name="fixed", reads=frozenset(), convolutions=None)  # measured, not known
    monkeypatch.setitem(network.NETWORKS._members, "fixed", fixed)
    monkeypatch.setattr(fcil.experiment.limits, "memory_bytes", lambda: 2_000_000)
    with pytest.raises(ConfigError, match=r"model\.name: found fixed, should be smaller for images of 32 x 32 pixels"):
        check(configured(model={"name": "fixed"}), size=32)


def test_a_frozen_backbone_keeps_nothing_for_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(width=4)
    frozen = config.model_copy(update={"freeze": True})
    assert activation_bytes(frozen, (3, 32, 32)) < activation_bytes(config, (3, 32, 32)) / 10
    assert training_adds(config, (3, 32, 32)) == 3 * multiply_adds(frozen, (3, 32, 32))
    assert training_adds(frozen, (3, 32, 32)) == 0
