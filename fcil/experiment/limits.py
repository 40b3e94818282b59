"""Limits of this machine: settings beyond them are refused before anything is built or written."""

from __future__ import annotations

import signal
import subprocess
import sys
from bisect import bisect_right
from functools import cache

from fcil.core.errors import ConfigError
from fcil.core.memory_limit import memory_bytes
from fcil.data.blocks import BLOCK
from fcil.data.datasets.dataset import Source
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.engines.base import default_workers
from fcil.models.config import ModelConfig
from fcil.models.cost import activation_bytes, inference_bytes, parameter_bytes
from fcil.models.frozen import CHUNK
from fcil.models.trainer import longest_batch

PER_CORE = 4  # threads or workers beyond this only wait for each other
FEWEST_THREADS, FEWEST_WORKERS = 64, 16  # allowed everywhere, so that a run can move to a smaller machine
COPIES = 4  # of the weights: the global model, a network in training, its gradients, and the average
OWNERSHIP = 24  # bytes per client and class while the owners of a task's classes are drawn: three tables of eight
MEGABYTE = 1e6
SECONDS = 120  # far more than the trial takes; a child that hangs must not hang the run
TRIAL = """
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 64))
images = torch.rand(32, 3, 8, 8).contiguous(memory_format=torch.channels_last)
with torch.autocast("cpu", torch.bfloat16):
    loss = net(images).square().mean()
loss.backward()
assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in net.parameters())
"""


def check_processor(config: Config) -> None:
    """Refuse more threads or workers than the cores can serve, and arithmetic that the processor does not have."""
    run = config.run
    _check_count("threads", run.threads, FEWEST_THREADS)
    if run.address is None:  # a cluster has cores of its own
        _check_count("workers", run.workers, FEWEST_WORKERS)
    if config.train.mixed_precision and run.device == "cpu":
        check_bfloat16()


def _check_count(key: str, found: int, fewest: int) -> None:
    cores = default_workers("cpu")
    most = max(fewest, PER_CORE * cores)
    if found > most:
        raise ConfigError(f"run.{key}: found {found}, should be at most {most} on a machine with {_cores(cores)}")


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


def check_clients(scenario: Scenario) -> None:
    """Refuse more clients than there is memory to deal the classes out to."""
    memory = memory_bytes()
    clients, classes = len(scenario.population.joined), max(map(len, scenario.tasks))
    if clients * classes * OWNERSHIP > memory:
        raise ConfigError(
            f"scenario.initial_clients, scenario.joiners, scenario.joins: found {clients} clients in all, should be "
            f"at most {memory // (classes * OWNERSHIP)} with {classes} classes in a task: "
            f"{_megabytes(clients * classes * OWNERSHIP, memory, 'dealing out the classes')}"
        )


def held_models(config: Config, scenario: Scenario) -> int:
    """Return the models of a round that the aggregator keeps to compare them."""
    holds = AGGREGATORS[config.federation.aggregator].build.holds
    return min(config.scenario.participants, len(scenario.population.joined)) if holds else 0


def check_memory(config: Config, source: Source, scenario: Scenario) -> None:
    """Refuse clients, a network or a batch of images that cannot be held in the memory there is."""
    check_clients(scenario)
    memory, model, shape = memory_bytes(), config.model, source.image_shape
    on_cpu = config.run.device == "cpu"  # elsewhere, only the weights must fit into this machine's memory

    def needed(width: int) -> int:
        chosen = model.model_copy(update={"width": width})
        together = min(CHUNK if model.freeze else BLOCK, len(source.train))
        images = inference_bytes(chosen, shape, together) if on_cpu else 0
        return max(COPIES * parameter_bytes(chosen, shape[0]), images)

    pixels = f"images of {shape[1]} x {shape[2]} pixels"
    if needed(model.width) > memory:
        key, found = _size_of(model)
        fitting = bisect_right(range(1, model.width), memory, key=needed) if key == "model.width" else 0
        right = f"at most {fitting}" if fitting else "smaller"
        raise ConfigError(
            f"{key}: found {found}, should be {right} for {pixels}: {_megabytes(needed(model.width), memory)}"
        )
    _check_held(config, held_models(config, scenario), parameter_bytes(model, shape[0]), memory)
    longest = max((len(scenario.holding(0, client)) for client in scenario.participants(0)), default=0)
    batch = longest_batch(longest, config.train.batch_size)
    each = activation_bytes(model, shape, 2 if config.train.mixed_precision else 4)
    if on_cpu and batch * each > memory:
        most = memory // each
        key, found = ("train.batch_size", config.train.batch_size) if most else _size_of(model)
        right = f"at most {most}" if most else "smaller"
        why = _megabytes(batch * each, memory, f"a step on {batch} of them")
        raise ConfigError(f"{key}: found {found}, should be {right} for {pixels}: {why}")


def check_served_memory(config: Config, channels: int) -> None:
    """Refuse more participants than a server between real sites can hold the models of."""
    if AGGREGATORS[config.federation.aggregator].build.holds:
        _check_held(config, config.scenario.participants, parameter_bytes(config.model, channels), memory_bytes())


def _check_held(config: Config, held: int, model: int, memory: int) -> None:
    if (COPIES + held) * model > memory:
        raise ConfigError(
            f"scenario.participants: found {held}, should be at most {max(memory // model - COPIES, 0)}, since "
            f"federation.aggregator {config.federation.aggregator} holds the models of all of them: "
            f"{_megabytes((COPIES + held) * model, memory, 'aggregation')}"
        )


def _size_of(model: ModelConfig) -> tuple[str, int | str]:
    """Return the setting that makes a network smaller, and its value."""
    return ("model.width", model.width) if "width" in model.network.reads else ("model.name", model.name)


def _megabytes(needed: int, memory: int, what: str = "training") -> str:
    amount = f"{needed / MEGABYTE:,.0f}" if needed < 1e18 else f"{needed / MEGABYTE:.0e}"
    return f"{what} needs at least {amount} MB, this machine has {memory / MEGABYTE:,.0f} MB"


# --- bfloat16 ------------------------------------------------------------------------------------------------------


def check_bfloat16(command: tuple[str, ...] = (sys.executable, "-c", TRIAL)) -> None:
    """Refuse mixed precision where a trial of it fails.

    Some processors name instructions that the system does not let a process use; trying them ends the process, so the
    trial has one of its own.
    """
    problem = _trial_problem(command)
    if problem is not None:
        raise ConfigError(
            f"train.mixed_precision: found true, should be false on this machine: a trial on the processor {problem}"
        )


@cache
def _trial_problem(command: tuple[str, ...]) -> str | None:
    """Return how the trial failed, or None; it is made once per process."""
    try:
        trial = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} seconds"
    if trial.returncode < 0:
        return f"was killed by {signal.Signals(-trial.returncode).name}"
    if trial.returncode > 0:
        lines = trial.stderr.strip().splitlines()
        return f"failed ({lines[-1] if lines else f'exit code {trial.returncode}'})"
    return None
