"""One side of the benchmark `speed`: does a job once for every line that comes in, with whatever code it imports.

It is started by its path and imports nothing that older code lacks.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

SERIAL = ["run.engine=serial", "seed=2020"]
REDUCED = ["scenario.tasks=[10, 10]", "scenario.class_order=natural"]
MIXED = ".bfloat16"  # after the name of a job


def work_of(job: str) -> Callable[[], object]:
    """Return what one turn of a job does."""
    kind, mixed = job.removesuffix(MIXED), job.endswith(MIXED)
    return step(mixed) if kind == "step" else lambda: play(kind, mixed)


def play(kind: str, mixed: bool) -> None:
    """Play a run from its start to its end."""
    from benchmarks.common import patterns  # noqa: PLC0415 (the code of the side that this process is)
    from fcil.experiment.config import load_config  # noqa: PLC0415
    from fcil.experiment.run import Run, load_source  # noqa: PLC0415

    lite = kind == "lite"
    config = load_config(
        "cifar100-lite" if lite else "digits",
        [*SERIAL, *(REDUCED if lite else []), *(["train.mixed_precision=true"] if mixed else [])],
    )
    source = patterns(20, 60, 12) if lite else load_source(config.data)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("fcil.experiment.run.load_source", lambda _: source),
        Run.start(config, Path(folder) / "run") as run,
    ):
        for _ in run.rounds():
            pass


def step(mixed: bool) -> Callable[[], object]:
    """Return one step of GLFC on the published network: width 64, 32 x 32 pixels, a batch of 128, with a teacher."""
    import torch  # noqa: PLC0415

    from benchmarks import common  # noqa: PLC0415
    from fcil.models.config import ModelConfig  # noqa: PLC0415

    torch.set_num_threads(1)
    common.MODEL = ModelConfig()
    given = common.objective(classes=32, per_class=4)
    train = given.train.model_copy(update={"mixed_precision": mixed})
    given = common.LocalObjective(given.source, given.model, given.teacher, train, given.classes, given.old_classes)
    return lambda: common.our_loop(given)


def serve() -> None:
    """Do a turn of the job that is named for every line that comes in, and answer with its seconds."""
    work = work_of(sys.argv[1])
    if sys.argv[1].startswith("step"):
        work()  # the first one makes kernels; a run has its first steps in it
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        work()
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    serve()
