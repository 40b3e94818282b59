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

import torch

from benchmarks.common import AUGMENT, MODEL, bare_loop, lesson, median
from fcil.bench import Measurement
from fcil.engines import Recipe, Workplace, make_engine
from fcil.federation.client import ClientStore
from fcil.methods import Setting, get_method, method_config
from fcil.wire import Broadcast, Moment, Order, model_digest

EPOCHS = 6
ROUNDS = 3
BARE = "from benchmarks.workers import bare; bare()"


def bare() -> None:
    """Train once to warm up, say so, wait for the word, and train."""
    torch.set_num_threads(1)
    bare_loop(lesson(epochs=1))
    print("ready", flush=True)
    for _ in range(ROUNDS):
        sys.stdin.readline()
        bare_loop(lesson(epochs=EPOCHS))
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


def worker_seconds() -> list[float]:
    """Return how long two participants take on two workers, once these are up."""
    given = lesson(epochs=EPOCHS)
    chosen = get_method("glfc")
    config = method_config(chosen, "fcil", {"perturb_steps": 0, "proxy": False})
    setting = Setting(60, given.source.image_shape, "uniform", 1)
    recipe = Recipe("glfc", config, setting, MODEL, given.train.model_copy(update={"augment": AUGMENT}))
    store = ClientStore(recipe.roles().client)
    place = Workplace(store, lambda number, client: given.samples, recipe.local(given.source), recipe, workers=2)
    engine = make_engine("processes", place)
    digest, teacher = model_digest(given.model), model_digest(given.teacher)
    from fcil.methods.server import Teachers  # noqa: PLC0415

    try:
        found = []
        for number in range(ROUNDS + 1):  # the first one starts the workers
            moment = Moment(number, tuple(range(given.classes)), (given.old_classes, given.classes), 0)
            models = {digest: given.model, teacher: given.teacher}
            broadcast = Broadcast(moment, digest, models, Teachers(last=teacher))
            began = time.perf_counter()
            answers = list(engine.run(broadcast, [Order(client, 5, True) for client in range(2)]))
            found.append(time.perf_counter() - began)
            assert all(answer.report is not None for answer in answers)  # type: ignore[union-attr]
        return found[1:]
    finally:
        engine.close()


def measure() -> Iterator[Measurement]:
    """Yield the throughput of two workers."""
    images = 2 * len(lesson().samples) * EPOCHS
    ours, reference = median(worker_seconds()), median(bare_seconds())
    details = {"images": images, "cores": os.cpu_count(), "rounds": ROUNDS}
    yield Measurement(
        "workers", images / ours, images / reference, reference / ours, 0.95, unit="images/s", details=details
    )
