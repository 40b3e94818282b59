"""Every registered method is held to the contract suite; a new method file needs no line of test."""

from __future__ import annotations

from fcil.testing.learning import OLD, learn
from fcil.testing.own import contracts

globals().update({contract.__name__: contract for contract in contracts().values()})


def test_the_bound_for_old_classes_is_out_of_reach_without_memory_or_distillation() -> None:
    assert learn("finetune").old < OLD / 2
    olds = [learn("fedprox", memory=0, seed=seed).old for seed in (3, 4, 5)]  # one may be right on some by chance
    assert sum(olds) / len(olds) < OLD / 2  # a memory is all that it keeps old classes by
