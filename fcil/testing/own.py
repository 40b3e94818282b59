"""The contracts of the registered methods, each with what it declares."""

from __future__ import annotations

from typing import Any

from fcil.methods import methods
from fcil.testing.contract import MethodContract

DECLARED: dict[str, dict[str, Any]] = {
    "ewc": {"keeps": "nothing"},
    "finetune": {"keeps": "nothing"},
    "geodl": {"settings": {"geodesic_weight": 0.1}},  # ten, made for large networks, holds the new classes back here
    "joint": {"keeps": "everything"},
    "lwf": {"keeps": "nothing"},
}


def contracts() -> dict[str, type[MethodContract]]:
    """Return a contract for each registered method, by the method's name."""
    return {
        name: type(f"Test_{name.replace('-', '_')}", (MethodContract,), {"method": name, **DECLARED.get(name, {})})
        for name in methods()
    }
