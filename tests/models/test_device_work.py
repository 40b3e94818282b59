"""A training step on a device: its operations, and its transfers and waits, counted on the device `meta`.

`meta` computes no numbers, so it stands for any accelerator: whatever needs a number of it would wait for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fcil.methods.local_objective import LocalObjective
from fcil.models.trainer import Trainer
from fcil.testing.trial import trial

DEVICE = torch.device("meta")
READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::item", "aten::masked_select")


class Counted(TorchDispatchMode):
    """Counts the operations of the device, and what crosses its border."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Sequence[Any] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        name = operation.name().partition(".")[0]
        given = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
        from_device = any(tensor.device == DEVICE for tensor in given)
        if from_device and name in READS:
            self.counts["waits"] += 1
            return 0.0
        crossing = [tensor for tensor in given if tensor.device != DEVICE and tensor.dim()]
        found = operation(*arguments, **(options or {}))
        results = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        if any(tensor.device == DEVICE for tensor in results):
            self.counts["operations"] += 1
            if crossing:
                self.counts["transfers"] += 1
                self.counts[f"{name} {tuple(crossing[0].shape)} {crossing[0].dtype}"] += 1
        return found


def fits(monkeypatch: pytest.MonkeyPatch, method: str) -> tuple[Trainer, tuple[Any, ...]]:
    """Return the first fit of a trial with a teacher: the trainer, and the arguments of `Trainer.fit`."""
    found: list[tuple[Trainer, tuple[Any, ...]]] = []

    def seen(trainer: Trainer, *arguments: Any) -> float:
        objective: LocalObjective[Any] = arguments[3].__self__
        if objective.problem.teacher is not None:
            found.append((trainer, arguments))
        return 0.0

    made = trial(method, train={"batch_size": 4})
    monkeypatch.setattr(Trainer, "fit", seen)
    made.run()
    monkeypatch.undo()
    return found[0]


def on_device(objective: LocalObjective[Any], trainer: Trainer) -> None:
    """Move the problem of a fit, and what its method keeps beside it, to the device."""
    problem = objective.problem
    teacher = problem.teacher.to(DEVICE) if problem.teacher is not None else None
    moved = {"targets": problem.targets.to(DEVICE), "old": problem.old.to(DEVICE), "net": problem.net.to(DEVICE)}
    objective.problem = replace(problem, teacher=teacher, **moved)
    for name, value in vars(objective).items():
        if isinstance(value, Tensor):
            setattr(objective, name, value.to(DEVICE))
    trainer.device = DEVICE


def of_an_epoch(monkeypatch: pytest.MonkeyPatch, method: str) -> tuple[Counter[str], int]:
    """Return the counts of one epoch, those of two less those of one, and its number of steps."""
    counts: list[Counter[str]] = []
    for epochs in (1, 2):
        trainer, (_, samples, indices, loss, rates, seed, steps, epoch) = fits(monkeypatch, method)
        objective = loss.__self__
        on_device(objective, trainer)
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # `meta` has none
        batches = len(epoch(torch.Generator()))
        with Counted() as counted:
            trainer.fit(objective.problem.net, samples, indices, objective.loss, rates[:1] * epochs, seed, steps, epoch)
        counts.append(counted.counts)
    return counts[1] - counts[0], batches


@pytest.mark.parametrize(("method", "most"), [("glfc", 700), ("mosaic", 850)])
def test_a_step_waits_for_nothing_and_only_rows_and_draws_cross_once_an_epoch(
    monkeypatch: pytest.MonkeyPatch, method: str, most: int
) -> None:
    found, steps = of_an_epoch(monkeypatch, method)
    assert steps > 2
    assert found["waits"] == 0
    assert found["transfers"] == 2
    assert 100 * steps < found["operations"] < most * steps
