"""The contracts of the registered methods and of their variants."""

from __future__ import annotations

from typing import Any

from fcil.methods import methods
from fcil.testing.contract import MethodContract

DECLARED: dict[str, dict[str, Any]] = {
    "analytic": {"keeps": "unsent"},
    "ewc": {"keeps": "nothing"},
    "finetune": {"keeps": "nothing"},
    "geodl": {"variant": {"geodesic_weight": 0.1}},  # ten, made for large networks, makes small ones diverge
    "joint": {"keeps": "everything"},
    "lander": {"keeps": "nothing", "settings": {"anchor_weight": 1.0}},  # random anchors are further apart than text
    "lwf": {"keeps": "nothing"},
    "mfcl": {"keeps": "nothing"},
    "target": {"keeps": "nothing"},
}
OWNED = {  # the ingredients of Mosaic; its optimiser has too few steps on the small task to be sure to learn it
    "variant": {"own_classes": True, "head_rows": "holders", "optimiser": "cosine"},
    "settings": {"optimiser": "train"},
}
KINDS = ("vector", "series")  # the other kinds of samples
ON_KINDS = ("analytic", "finetune", "glfc", "icarl", "mosaic")  # held to the whole contract there; others run there
VARIANTS: dict[str, dict[str, Any]] = {
    "dde-owned": {"method": "dde", **OWNED},
    "glfc-votes": {"method": "glfc", "variant": {"selection": "votes"}},
    "icarl-owned": {"method": "icarl", **OWNED},
}


def contracts() -> dict[str, type[MethodContract]]:
    """Return a contract for each method, by its name, and for each variant and kind of samples, by one of its own."""
    declared = {name: {"method": name, **DECLARED.get(name, {})} for name in methods()} | VARIANTS
    for kind in KINDS:
        declared |= {f"{name}-{kind}": {**declared[name], "kind": kind} for name in ON_KINDS}
    return {
        name: type(f"Test_{name.replace('-', '_')}", (MethodContract,), fields) for name, fields in declared.items()
    }
