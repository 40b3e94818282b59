"""The shape of the package, read from its syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fcil

ROOT = Path(fcil.__file__).parent
LAYERS = [
    "errors",
    "owner",
    "files",
    "section",
    "wire",
    "maths",
    "models",
    "data",
    "optimiser",
    "machine",
    "inference",
    "local",
    "aggregation",
    "methods",
    "federation",
    "engines",
    "results",
    "presets",
    "config",
    "precision",
    "limits",
    "assembly",
    "checkpoint",
    "stored",
    "directory",
    "experiment",
    "sentences",
    "progress",
    "children",
    "cases",
    "grid",
    "plan",
    "demo",
    "bench",
    "signals",
    "options",
    "cli",
    "testing",
]
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT or not path.name.startswith("__")]
UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def layer(path: Path) -> int:
    return LAYERS.index(path.relative_to(ROOT).parts[0].removesuffix(".py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_layers_above_its_own(path: Path) -> None:
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "fcil" and len(parts) > 1:
            assert LAYERS.index(parts[1]) <= layer(path), f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & UNSAFE
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr not in ("load", "save"), f"{path.relative_to(ROOT)} uses torch.{node.attr}"


def test_methods_do_not_import_each_other_but_for_the_shared_skeleton() -> None:
    skeleton = ("base", "detection", "lesson", "ranking", "rehearsal", "server")
    shared = {f"fcil.methods.{name}" for name in skeleton}
    for path in (ROOT / "methods").glob("*.py"):
        if path.name != "__init__.py":
            assert {name for name in imports(path) if name.startswith("fcil.methods.")} <= shared
