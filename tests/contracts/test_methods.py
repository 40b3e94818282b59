"""Every registered method is held to the contract suite; a new method file needs no line of test."""

from __future__ import annotations

from typing import Any

from fcil.methods import methods
from fcil.testing import MethodContract
from fcil.testing.learning import OLD, learn

DECLARED: dict[str, dict[str, Any]] = {
    "ewc": {"keeps": "nothing"},
    "finetune": {"keeps": "nothing"},
    "geodl": {"train": {"learning_rate": 0.03}},  # its term is steep: at the others' rate it holds the new classes back
    "joint": {"keeps": "everything"},
    "lwf": {"keeps": "nothing"},
}

for name in methods():
    contract = f"Test_{name.replace('-', '_')}"
    globals()[contract] = type(contract, (MethodContract,), {"method": name, **DECLARED.get(name, {})})


def test_the_bound_for_old_classes_is_out_of_reach_without_a_memory() -> None:
    assert learn("finetune", {}).old < OLD / 2
    assert learn("icarl", {}, memory=0).old < OLD / 2
