"""pyproject.toml declares every package that `fcil` imports: as a dependency, or in the extra of the module."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NAMES = {"google": "protobuf", "nacl": "pynacl", "PIL": "pillow"}  # distributions called otherwise than their module
# The extras that a part of the package may rely on; imports elsewhere must be dependencies of the core.
EXTRAS = {
    "fcil/data/datasets/parquet.py": "parquet",
    "fcil/deployment": "flower",
    "fcil/experiment/export_onnx.py": "onnx",
    "fcil/federation/engines/ray.py": "ray",
    "fcil/maths/accountant.py": "privacy",
    "fcil/models/efficientnet_lite.py": "pretrained",
    "fcil/reporting/loggers/mlflow.py": "mlflow",
    "fcil/reporting/loggers/tensorboard.py": "tensorboard",
    "fcil/reporting/loggers/wandb.py": "wandb",
    "fcil/reporting/page": "report",
    "fcil/testing": "testing",
}
BY_NAME = ("import_module", "files")  # functions that import the package whose name they are given
SELECTED = {"all", "dev", "docs"}  # extras that no module needs
APART = {"mlflow", "wandb"}  # their own requirements exclude versions that constraints.txt pins


def names_of(requirements: list[str]) -> set[str]:
    """Return the canonical names of the distributions that some requirements ask for."""
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the top-level name of every module that a file imports, at any depth or by name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import():
                yield from (alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield module.partition(".")[0]
            case ast.Call(func=ast.Attribute(attr=function), args=[ast.Constant(value=str() as module), *_]):
                if function in BY_NAME:
                    yield module.partition(".")[0]


def declared_for(path: Path) -> set[str]:
    """Return the distributions that a module may import: those of the core, and those of its extras."""
    found = names_of(PROJECT["dependencies"])
    for place, extra in EXTRAS.items():
        if path.is_relative_to(ROOT / place):
            found |= names_of(PROJECT["optional-dependencies"][extra])
    return found


def third_party(path: Path) -> set[str]:
    """Return the distributions of other projects that a module imports."""
    modules = set(imports_of(path)) - sys.stdlib_module_names - {"fcil"}
    return {NAMES.get(name, name.replace("_", "-")).lower() for name in modules}


def modules() -> list[Path]:
    return sorted((ROOT / "fcil").rglob("*.py"))


def test_every_import_is_declared() -> None:
    missing = {str(path.relative_to(ROOT)): third_party(path) - declared_for(path) for path in modules()}
    assert {place: names for place, names in missing.items() if names} == {}


def test_every_dependency_is_imported() -> None:
    used = {name for path in modules() for name in third_party(path)}
    assert names_of(PROJECT["dependencies"]) <= used


def test_extras_belong_to_parts_that_exist() -> None:
    assert [place for place in EXTRAS if not (ROOT / place).exists()] == []


def test_all_has_every_extra_that_a_user_may_need() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    (listed,) = re.findall(r"fcil\[(.*)\]", everything)
    assert set(listed.split(",")) == extras.keys() - SELECTED - APART
    assert set(EXTRAS.values()) == extras.keys() - SELECTED


def test_the_versions_are_pinned_for_every_dependency_that_the_suite_uses() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = names_of([line for line in lines if not line.startswith("#")])
    extras = {name: found for name, found in PROJECT["optional-dependencies"].items() if name not in APART}
    wanted = names_of([one for found in (PROJECT["dependencies"], *extras.values()) for one in found])
    assert wanted - pinned == {"fcil"}
