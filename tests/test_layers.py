"""The shape of the package, read from its syntax trees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fcil

ROOT = Path(fcil.__file__).parent
LAYERS = [
    "errors",
    "owner",
    "capacity",
    "files",
    "toml",
    "section",
    "plugins",
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
    "loggers",
    "presets",
    "config",
    "precision",
    "limits",
    "assembly",
    "checkpoint",
    "stored",
    "directory",
    "experiment",
    "deployment",
    "flower",
    "gather",
    "standings",
    "sentences",
    "progress",
    "bars",
    "children",
    "cases",
    "grid",
    "plan",
    "proposal",
    "demo",
    "home",
    "bench",
    "live",
    "signals",
    "options",
    "api",
    "commands",
    "cli",
    "testing",
]
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
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


def test_the_page_has_the_layers_in_this_order() -> None:
    if not PAGE.is_file():
        pytest.skip("the pages come with the source, not with the wheel")
    table = PAGE.read_text("utf-8").partition("| layer | contents |")[2].partition("\n\n")[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [name for first in firsts for name in re.findall(r"`(\w+)`", first)] == LAYERS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & UNSAFE
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr != "save", f"{path.relative_to(ROOT)} uses torch.save"
            assert node.attr != "load" or path == ROOT / "models" / "weights.py", f"{path.relative_to(ROOT)} loads"


def test_weights_of_others_are_read_as_tensors_and_nothing_else() -> None:
    """What runs no code is the reader that `weights_only` chooses, on the zip format alone."""
    tree = ast.parse((ROOT / "models" / "weights.py").read_text("utf-8"))
    loads = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [load["weights_only"] for load in loads] == ["True"]


def test_methods_do_not_import_each_other_but_for_the_shared_skeleton() -> None:
    skeleton = ("base", "best", "detection", "lesson", "owned", "prototypes", "proxy", "ranking")
    skeleton += ("rehearsal", "server", "synthesis", "votes")
    shared = {f"fcil.methods.{name}" for name in skeleton}
    for path in (ROOT / "methods").glob("*.py"):
        if path.name != "__init__.py":
            assert {name for name in imports(path) if name.startswith("fcil.methods.")} <= shared
