"""The shape of the package, read from its syntax trees."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import fcil

ROOT = Path(fcil.__file__).parent
# A room imports only from itself and from the rooms before it.
ROOMS = ["core", "maths", "data", "models", "methods", "federation", "experiment", "reporting", "deployment", "api"]
ROOMS += ["cli", "testing"]
LONGEST_CHAIN = 18  # modules from the one that everything rests on to the one that rests on most
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT]
UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports(path: Path) -> set[str]:
    """Return the modules a file imports; `from package import module` counts as the module."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = node.module or ""
            for alias in node.names:
                submodule = f"{module}.{alias.name}"
                found.add(submodule if submodule in FILES else module)
    return found


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {dotted(path): path for path in [*MODULES, ROOT / "__init__.py"]}


def room(name: str) -> str:
    return name.split(".")[1]


def test_the_package_has_these_rooms_and_nothing_beside_them() -> None:
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert entries - {"__init__.py", "__main__.py", "py.typed"} == set(ROOMS)
    assert len(ROOMS) <= 12


def test_a_room_imports_only_from_rooms_below_it() -> None:
    upwards = [
        f"{dotted(path)} imports {name}"
        for path in MODULES
        for name in imports(path)
        if name.startswith("fcil.") and ROOMS.index(room(name)) > ROOMS.index(room(dotted(path)))
    ]
    assert not upwards


def test_no_chain_of_imports_is_longer_than_a_reader_follows() -> None:
    """Only imports that run when a module is loaded count; one within a function is followed by nobody at first."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        below = [chain(other) for other in _loaded(FILES[name]) if other in FILES and other != name]
        return (name, *max(below, key=len, default=()))

    longest = max((chain(name) for name in FILES), key=len)
    assert len(longest) <= LONGEST_CHAIN, " -> ".join(longest)


def _loaded(path: Path) -> set[str]:
    top = ast.Module([node for node in tree(path).body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
    found = set()
    for node in top.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & FILES.keys()
            found |= submodules or {node.module or ""}
    return found


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(dotted(path))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_the_page_has_the_rooms_in_this_order() -> None:
    if not PAGE.is_file():
        pytest.skip("the pages come with the source, not with the wheel")
    table = PAGE.read_text("utf-8").partition("| room |")[2].partition("\n\n")[0]
    firsts = [line.split("`")[1].rstrip("/") for line in table.splitlines() if line.startswith("| `")]
    assert firsts == ROOMS


def test_no_module_unpickles() -> None:
    reader = ROOT / "models" / "weights.py"
    for path in MODULES:
        assert not {name.split(".")[0] for name in imports(path)} & UNSAFE, path
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr != "save", f"{dotted(path)} uses torch.save"
                assert node.attr != "load" or path == reader, f"{dotted(path)} loads"


def test_weights_of_others_are_read_as_tensors_and_nothing_else() -> None:
    """The reader that `weights_only` chooses runs no code."""
    loads = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for node in ast.walk(tree(ROOT / "models" / "weights.py"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [load["weights_only"] for load in loads] == ["True"]


def test_methods_do_not_import_each_other_but_for_the_shared_skeleton() -> None:
    skeleton = ("base", "teachers", "detection", "local_objective", "own_classes", "prototypes", "proxy_role")
    skeleton += ("exemplar_selection", "client", "ledger", "server", "synthesis", "synthetic_replay", "teacher_votes")
    skeleton += ("adaptation", "privacy", "private_sums", "sums_client")
    shared = {f"fcil.methods.{name}" for name in skeleton}
    for path in (ROOT / "methods").glob("*.py"):
        if path.name != "__init__.py":
            assert {name for name in imports(path) if name.startswith("fcil.methods.")} <= shared, path
