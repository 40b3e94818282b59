"""Two worker processes: images per second, compared with two bare training loops that start at the same moment.

The bare loops are two separate processes that wait for each other and then train, without any federation. The workers
train the same number of images through orders, shared memory and replies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.common import MODEL, bare_loop, local_of, median, objective
from benchmarks.measure import Measurement
from fcil.core.messages import Broadcast, Order, Stream, Teacher, Teachers, model_digest
from fcil.experiment.build import agreed_model
from fcil.federation.engines import Recipe, Workplace, make_engine
from fcil.federation.server import FederationConfig
from fcil.federation.simulated_clients import SimulatedClients
from fcil.federation.traffic import RoundTraffic
from fcil.methods import Setting, get_method, method_config

EPOCHS = 6
ROUNDS = 3
BARE = "from benchmarks.workers import bare; bare()"


def bare() -> None:
    """Train once to warm up, say so, wait for the word, and train."""
    torch.set_num_threads(1)
    bare_loop(objective(epochs=1))
    print("ready", flush=True)
    for _ in range(ROUNDS):
        sys.stdin.readline()
        bare_loop(objective(epochs=EPOCHS))
        print("done", flush=True)


def bare_seconds() -> list[float]:
    """Return how long two loops side by side take."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    loops = [subprocess.Popen([sys.executable, "-c", BARE], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    try:
        for loop in loops:
            loop.stdout.readline()
        found = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for loop in loops:
                loop.stdin.write("go\n")
                loop.stdin.flush()
            for loop in loops:
                loop.stdout.readline()
            found.append(time.perf_counter() - began)
        return found
    finally:
        for loop in loops:
            loop.communicate()


@dataclass(frozen=True)
class Fixed:
    """The same samples for every client in every round."""

    samples: Tensor

    def holding(self, round: int, client: int) -> Tensor:
        """Return the samples."""
        return self.samples

    def new_classes(self, round: int, client: int) -> bool:
        """Return False: classes never change."""
        return False


def worker_seconds() -> list[float]:
    """Return how long two participants take on two workers, once these are up."""
    given = objective(epochs=EPOCHS)
    chosen = get_method("glfc")
    config = method_config(chosen, "fcil", {"perturb_steps": 0, "proxy": False})
    setting = Setting(60, given.source.image_shape, secret=1)
    model = agreed_model(MODEL, given.source)
    recipe = Recipe("glfc", config, setting, model, given.train, FederationConfig())
    local = local_of(given.source, given.train)
    sites = SimulatedClients(recipe.roles().client, Stream(1, "client"), Fixed(given.samples), local.samples)
    engine = make_engine("processes", Workplace(sites, local, recipe, workers=2))
    digest, teacher = model_digest(given.model), model_digest(given.teacher)
    models = {digest: given.model, teacher: given.teacher}
    teachers = Teachers(last=Teacher(teacher, given.old_classes))
    try:
        found = []
        for number in range(ROUNDS + 1):  # the first one starts the workers
            began = time.perf_counter()
            traffic = RoundTraffic(Broadcast(given.context(number), digest, teachers), models)
            answers = list(engine.run(traffic, [Order(client, True) for client in range(2)]))
            found.append(time.perf_counter() - began)
            assert all(answer.report is not None for answer in answers)  # type: ignore[union-attr]
        return found[1:]
    finally:
        engine.close()


def measure() -> Iterator[Measurement]:
    """Yield the throughput of two workers."""
    images = 2 * len(objective().samples) * EPOCHS
    ours, reference = median(worker_seconds()), median(bare_seconds())
    details = {"images": images, "cores": os.cpu_count(), "rounds": ROUNDS}
    yield Measurement(
        "workers", images / ours, images / reference, reference / ours, 0.95, unit="images/s", details=details
    )
