"""CPU time, memory and accuracy of a small GLFC run, compared with the plain implementation in `benchmarks/plain.py`.

    make bench NAME=reference

Both sides run the same scenarios in turn, each run in a separate process with one thread.

The run is the preset `digits` at the size of CIFAR's images (32 pixels, 20 training images per class, width 16). It has
the published population (30 clients at first, 10 more at each transition), the published budget for rebuilding (200
steps of L-BFGS, which the plain side takes as in the paper) and the published augmentation except the flip. There are
three tasks of 4, 3 and 3 digits, so that 60 % of a task's classes are not all of them. Five participants per round keep
our side below four minutes. A task lasts six rounds. The learning rate drops at the published fractions of it (1/2, 3/4
and 9/10); without that, the accuracy after a task is a matter of chance on both sides.

Training costs both sides about the same, so its share decides the ratio. Fewer participants or epochs would raise the
ratio; ten participants and twenty epochs, as published, would lower it. The details say what the plain run spends its
time on.

Memory is what a run adds to a process that has finished its imports and one training step of such a network, since that
is where torch takes most of its memory. The last figure repeats the comparison at the published width, 45 MB per model,
in a run reduced to one short round per task: what stays in memory depends on clients and models, not on how long they
train.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch._dynamo  # torch imports it with the first optimiser; here it belongs to the imports

from benchmarks.common import resident
from benchmarks.measure import FOLDER, Measurement
from benchmarks.plain import Experiment, Network
from fcil.experiment.config import Config, load_config
from fcil.experiment.run import Run

SETTINGS = (
    "scenario.tasks=3",
    "scenario.rounds_per_task=6",
    "scenario.initial_clients=30",
    "scenario.joiners=10",
    "scenario.participants=5",
    "data.image_size=32",
    "data.samples_per_class=20",
    "model.width=16",
    "train.augment={crop_padding=4, brightness=0.25}",
    "method.rebuild_evaluations=4000",
    "train.milestones=[{epoch=12, divisor=5}, {epoch=18, divisor=25}, {epoch=22, divisor=125}]",
)
PUBLISHED_WIDTH = (
    *SETTINGS,
    "model.width=64",
    "scenario.rounds_per_task=1",
    "train.epochs=1",
    "method.perturb_steps=1",
    "method.rebuild_evaluations=20",
)
SEEDS = (2021, 2022, 2023)
CPU_BOUND = 5.0
MEMORY_BOUND = 0.25
STUDENT = 2.78  # of t, 95 % two-sided at four degrees of freedom: two times three seeds minus two means

Result = dict[str, Any]


def measure() -> Iterator[Measurement]:
    """Run every seed on both sides, in turn, and yield CPU time, memory and accuracy."""
    ours: list[Result] = []
    plain: list[Result] = []
    for seed in SEEDS:
        ours.append(run_once("ours", [*SETTINGS, f"seed={seed}"]))
        plain.append(run_once("plain", [*SETTINGS, f"seed={seed}"]))
    yield cpu(ours, plain)
    yield memory("reference.memory", ours, plain, MEMORY_BOUND)
    yield accuracy(ours, plain)
    yield memory(
        "reference.memory_at_published_width", [run_once("ours", PUBLISHED_WIDTH)], [run_once("plain", PUBLISHED_WIDTH)]
    )


def cpu(ours: Sequence[Result], plain: Sequence[Result]) -> Measurement:
    """Compare the CPU seconds of a run after its first step, and say what the plain run spends them on."""
    mine, theirs = mean(ours, "cpu"), mean(plain, "cpu")
    parts = {part: statistics.mean(result["parts"][part] for result in plain) for part in plain[0]["parts"]}
    details = {
        "settings": SETTINGS,
        "seeds": SEEDS,
        "ours": column(ours, "cpu"),
        "reference": column(plain, "cpu"),
        "reference_parts": {**parts, "the rest": theirs - sum(parts.values())},
        "reference_rebuild_evaluations": column(plain, "evaluations"),
        "imports": {"ours": mean(ours, "import_cpu"), "reference": mean(plain, "import_cpu")},
    }
    return Measurement("reference.cpu", mine, theirs, theirs / mine, CPU_BOUND, "at least", "CPU s", details)


def memory(name: str, ours: Sequence[Result], plain: Sequence[Result], bound: float | None = None) -> Measurement:
    """Compare what a run adds to the memory of the process as it is after its first training step, at its peak."""
    mine, theirs = mean(ours, "grown"), mean(plain, "grown")
    details = {
        "ours": column(ours, "grown"),
        "reference": column(plain, "grown"),
        "peak_with_interpreter": {"ours": column(ours, "peak"), "reference": column(plain, "peak")},
    }
    return Measurement(name, mine, theirs, mine / theirs, bound, "at most", "MB", details)


def accuracy(ours: Sequence[Result], plain: Sequence[Result]) -> Measurement:
    """Compare the mean average accuracies; they may differ by what chance gives with this spread over the seeds."""
    mine, theirs = mean(ours, "average"), mean(plain, "average")
    variances = [statistics.variance(column(side, "average")) for side in (ours, plain)]
    bound = STUDENT * (sum(variances) / len(SEEDS)) ** 0.5
    details = {
        "ours": column(ours, "average"),
        "reference": column(plain, "average"),
        "ours_by_task": column(ours, "accuracy"),
        "reference_by_task": column(plain, "accuracy"),
    }
    return Measurement("reference.accuracy", mine, theirs, abs(mine - theirs), bound, "at most", "points", details)


def column(results: Sequence[Result], key: str) -> list[Any]:
    """Return one figure of every seed."""
    return [result[key] for result in results]


def mean(results: Sequence[Result], key: str) -> float:
    """Return the mean of a figure over the seeds."""
    return statistics.mean(column(results, key))


# --- one run, in a separate process -------------------------------------------------------------------------------


def run_once(side: str, settings: Sequence[str]) -> Result:
    """Return the figures of one run, made in a fresh process with one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "benchmarks.reference", side, *settings]
    done = subprocess.run(
        command, cwd=FOLDER.parent, env={**os.environ, **threads}, stdout=subprocess.PIPE, check=True, text=True
    )
    result: Result = json.loads(done.stdout)
    return result


def worker(side: str, settings: Sequence[str]) -> Result:
    """Carry out one run in this process and return its figures."""
    torch.set_num_threads(1)
    config = load_config("digits", settings)
    one_step(config)
    import_cpu, before = cpu_seconds(), resident("VmRSS")
    figures = ours(config) if side == "ours" else plain(config)
    peak = resident("VmHWM")
    return {
        **figures,
        "cpu": cpu_seconds() - import_cpu,
        "import_cpu": import_cpu,
        "peak": peak,
        "grown": peak - before,
        "average": statistics.mean(figures["accuracy"]),
    }


def one_step(config: Config) -> None:
    """Take one training step of a network of that size, with a teacher, as every run will: torch's own memory."""
    net, teacher = (Network(1, config.model.width, 10) for _ in range(2))
    size = config.data.image_size
    images = torch.rand(config.train.batch_size, 1, size, size)
    with torch.no_grad():
        target = torch.sigmoid(teacher(images))
    descent = torch.optim.SGD(net.parameters(), 0.1)
    torch.nn.functional.binary_cross_entropy_with_logits(net(images), target).backward()
    descent.step()


def ours(config: Config) -> Result:
    """Run the library as a user does, with checkpoints and records."""
    with tempfile.TemporaryDirectory() as folder, Run.start(config, Path(folder) / "run") as run:
        for _ in run.rounds():
            pass
        return {"accuracy": run.finish()["accuracy"]}


def plain(config: Config) -> Result:
    """Run the plain implementation."""
    experiment = Experiment(config)
    accuracies = experiment.run()
    parts = dict(experiment.clock.seconds)
    return {"accuracy": accuracies, "parts": parts, "evaluations": experiment.proxy.evaluations}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those it has started and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1], sys.argv[2:])))
