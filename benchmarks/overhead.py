"""The cost of a round without training: 10 participants and a 45 MB model, compared with Flower's simulation.

A participant builds a network from what it received and sends its weights back; the server checks and averages them.
Flower does the same with its message API, FedAvg and its Ray backend on the same machine. If it is not installed
(`flwr[simulation]`), only our figures are reported. The round time is the median over some rounds after start-up. The
model is the published ResNet-18 with 100 outputs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common import median, patterns
from benchmarks.measure import Measurement
from fcil.core.messages import Broadcast, Diagnostics, Message, Order, Reply, Report
from fcil.data.scenario.scenario import ScenarioConfig
from fcil.experiment.build import assemble
from fcil.experiment.config import Config
from fcil.methods.base import ClientRole, Current, Method, MethodConfig, Roles, Setting, register_method
from fcil.methods.server import plain_server
from fcil.models.client_context import ClientContext

PARTICIPANTS = 10
ROUNDS = 6
BOUNDS = {"serial": 10.0, "processes": 4.0, "ray": 1.5}


@dataclass(frozen=True)
class Nothing(Message):
    """The state of a client that keeps none."""


class IdleClient(ClientRole[Message]):
    """Loads what it receives into a network and sends it back."""

    def init(self) -> Message:
        return Nothing()

    def round(
        self, state: Message, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[Message, Reply, Diagnostics]:
        net = local.machine.net(current.models[broadcast.model])
        model = {name: tensor.detach() for name, tensor in net.state_dict().items()}
        return state, Reply(order.client, Report(model, 1)), Diagnostics()

    def in_use(self, state: Message) -> Tensor:
        return torch.empty(0, dtype=torch.int64)


def build(config: MethodConfig, setting: Setting) -> Roles:
    """Return the roles of a federation that learns nothing."""
    return Roles(IdleClient(), plain_server())


register_method(Method("idle", "nothing but a round's overhead", MethodConfig, build))


def round_seconds(engine: str) -> list[float]:
    """Return the time of each round but the first, in which workers start."""
    source = patterns(100, 2, 8)
    world = ScenarioConfig(
        tasks=1, rounds_per_task=ROUNDS + 1, initial_clients=PARTICIPANTS, participants=PARTICIPANTS, memory=0
    )
    config = Config(seed=1, scenario=world, method_name="idle", method=MethodConfig())
    simulation = assemble(config, source, engine).simulation
    try:
        rounds = []
        began = time.perf_counter()
        for _, record in simulation.rounds(simulation.start()):
            assert record.reports == PARTICIPANTS, record.failures
            rounds.append(time.perf_counter() - began)
            began = time.perf_counter()
        return rounds[1:]
    finally:
        simulation.engine.close()


def flower_seconds() -> list[float]:
    """Return the time of each round but the first in Flower's simulation."""
    command = [sys.executable, "-m", "benchmarks.flower", str(PARTICIPANTS), str(ROUNDS + 1)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("ROUNDS ")]
    if not lines:
        raise RuntimeError(f"Flower's simulation failed:\n{answer.stderr[-2000:]}")
    found: list[float] = json.loads(lines[-1].removeprefix("ROUNDS "))
    return found[1:]


def measure() -> Iterator[Measurement]:
    """Yield the round time of each engine, compared with Flower's."""
    torch.set_num_threads(1)
    has_flower = importlib.util.find_spec("flwr") is not None
    reference = median(flower_seconds()) if has_flower else None
    for engine, bound in BOUNDS.items():
        if engine == "ray" and importlib.util.find_spec("ray") is None:
            continue
        ours = median(round_seconds(engine))
        ratio = reference / ours if reference is not None else None
        details = {"participants": PARTICIPANTS, "rounds": ROUNDS, "flower": has_flower}
        yield Measurement(f"overhead.{engine}", ours, reference, ratio, bound, unit="s per round", details=details)
