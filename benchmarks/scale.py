"""How a round's time and memory grow with the population: 100, 1,000 and 10,000 clients, 1,000 classes.

Each population runs in a separate process, so its peak memory is its own. There are ten tasks of 100 classes, and each
client holds five of them (300 samples, however many clients there are). Either every client monitors its data, or only
the four that train. Networks are tiny, because the benchmark measures bookkeeping: CPU seconds without local training.
`detection` is a round in which all clients monitor their data and nobody trains, minus the inference itself, which is
measured on the same model and samples. `server` is the peak memory of a server that closes a round with 100
participants whose models have 45 MB each, their replies decoded one after another as they would be from a network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.common import FitClock, median, patterns, resident
from benchmarks.measure import Measurement
from fcil.core.messages import Broadcast, Order, Reply, Report, decode, encode, model_digest
from fcil.experiment.config import parse_config
from fcil.experiment.run import Run
from fcil.federation.aggregation import Mean
from fcil.federation.server import FederationConfig, Server, ServerSeeds
from fcil.federation.traffic import RoundTraffic
from fcil.methods.server import plain_server
from fcil.models import ModelConfig
from fcil.models.client_context import ClientContext
from fcil.models.trainer import TrainConfig, Trainer

POPULATIONS = (100, 1_000, 10_000)
CLASSES, PER_CLASS = 1_000, 60
PARTICIPANTS = 100  # of the server whose models have the published width


def config(clients: int, monitor: str) -> dict[str, Any]:
    """Return the configuration of one population."""
    world = {"tasks": 10, "rounds_per_task": 6, "initial_clients": clients, "joiners": clients // 10}
    return {
        "scenario": {**world, "participants": 4, "memory": 60, "class_fraction": 0.05},
        "model": {"width": 2},
        "train": {"epochs": 1, "learning_rate": 0.1},
        "federation": {"monitor": monitor},
        "method": {"name": "icarl"},
        "run": {"engine": "serial"},
    }


def run_rounds(clients: int, monitor: str) -> None:
    """Run a few rounds of one population and print what they took."""
    torch.set_num_threads(1)
    source = patterns(CLASSES, PER_CLASS, 8, channels=1)
    before = resident("VmHWM")
    with tempfile.TemporaryDirectory() as folder, mock.patch("fcil.experiment.run.load_source", lambda _: source):
        began = time.perf_counter()
        with Run.start(parse_config(config(clients, monitor)), Path(folder) / "run") as run:
            built = time.perf_counter() - began
            rounds, training = [], FitClock(run.assembly.local.machine, time.process_time)
            began = time.process_time()
            for record in run.rounds():
                rounds.append(time.process_time() - began - training.seconds)
                if record.round == 7:  # the first of the second task
                    break
                began, training.seconds = time.process_time(), 0.0
            detection = detection_seconds(run)
    found = {
        "build": built,
        "round": median(rounds[1:5]),
        "first": rounds[0],
        "transition": rounds[6],
        "detection": detection,
        "peak_mb": resident("VmHWM"),
        "source_mb": before,
    }
    print("FOUND", json.dumps(found), flush=True)


def detection_seconds(run: Run) -> float:
    """Return the processor time in which all clients look at their data, without that of the inference."""
    state, number = run.state, run.state.round
    model = {name: tensor + 0 for name, tensor in state.model.items()}
    model["head.bias"] = model["head.bias"] + 1e-3  # a model for which nothing is cached
    digest = model_digest(model)
    clients = run.scenario.clients(number)
    context = state.server.context
    fresh = ClientContext.at(run.assembly.local.samples, run.assembly.local.machine)
    held = torch.cat([run.scenario.holding(number, client) for client in clients])
    began = time.process_time()
    fresh.inference.entropies(digest, model, held, context.classes)
    inference = time.process_time() - began
    orders = [Order(client, False) for client in clients]
    began = time.process_time()
    answers = list(run.engine.run(RoundTraffic(Broadcast(context, digest), {digest: model}), orders))
    seconds = time.process_time() - began
    assert len(answers) == len(clients)
    return seconds - inference


def serve(participants: int, width: int = 64) -> None:
    """Close one round with large models and print the peak of the server's memory."""
    torch.set_num_threads(1)
    machine = Trainer(ModelConfig(width=width, mean=(0.5,) * 3, deviation=(0.25,) * 3), TrainConfig())
    server = Server(
        plain_server(),
        Mean(FederationConfig(max_update=1e30)),
        FederationConfig(max_update=1e30),
        machine,
        participants,
        teaches=True,
        seeds=ServerSeeds.of(1),
    )
    before = server.grow(server.start(), map(str, range(50)))
    opened = server.open(server.grow(replace(before, round=1), map(str, range(100))), None)
    imported = resident("VmHWM")

    def replies() -> Iterator[Reply]:
        for client in range(participants):
            model = {name: tensor + client for name, tensor in opened.state.model.items()}
            yield decode(encode(Reply(client, Report(model, client + 1))), Reply)

    orders = server.orders(range(participants), range(participants))
    received = server.expect(opened, orders)
    for reply in replies():
        received.add(reply)
    closed = server.aggregate(opened, received)
    assert closed.reports == participants, closed.failures[:1]
    model_mb = sum(tensor.nbytes for tensor in closed.state.model.values()) / 1e6
    found = {"participants": participants, "model_mb": model_mb, "open_mb": imported, "peak_mb": resident("VmHWM")}
    print("FOUND", json.dumps(found), flush=True)


def measured(call: str, module: str = "scale") -> dict[str, float]:
    """Return what a call to a function of a benchmark measured in a separate process."""
    code = f"from benchmarks import {module}; {module}.{call}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    line = next(line for line in answer.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, float] = json.loads(line.removeprefix("FOUND "))
    return found


def measure() -> Iterator[Measurement]:
    """Yield round time and peak memory of each population, the smallest as the reference."""
    first: dict[str, dict[str, float]] = {}
    for clients in POPULATIONS:
        for monitor in ("all", "participants"):
            found = measured(f"run_rounds({clients}, {monitor!r})")
            reference = first.setdefault(monitor, found)
            largest = clients == POPULATIONS[-1]
            bound = 1.5 if largest and monitor == "participants" else None
            ratio = found["round"] / reference["round"]
            name = f"scale.{monitor}.{clients}"
            yield Measurement(
                name, found["round"], reference["round"], ratio, bound, "at most", "CPU s per round", dict(found)
            )
            if largest and monitor == "all":
                detection, peak = found["detection"], found["peak_mb"] / 1024
                yield Measurement("scale.detection", detection, 2.0, detection / 2.0, 1.0, "at most", "CPU s")
                yield Measurement("scale.memory", peak, 1.5, peak / 1.5, 1.0, "at most", "GB at its peak")
                yield Measurement("scale.build", found["build"], None, None, None, "at most", "s")
    found = measured(f"serve({PARTICIPANTS})")
    peak = found["peak_mb"] / 1024
    yield Measurement("scale.server", peak, 1.0, peak, 1.0, "at most", "GB at its peak", dict(found))
