from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fcil.core.allocator as allocator_module
from fcil.core.allocator import PRELOAD, TRAINING, library, restart_with_allocator, with_allocator

installed = pytest.mark.skipif(library() is None, reason="tcmalloc is not installed (apt install libtcmalloc-minimal4)")
SHOW = "import sys; from fcil.core.allocator import restart_with_allocator as restart; restart(sys.argv[1:]); "
SHOW += "print('tcmalloc' in open('/proc/self/maps').read(), sys.argv[1:])"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    found = tmp_path / "libtcmalloc_minimal.so.4"
    monkeypatch.setattr(allocator_module, "library", lambda: found)
    return found


def test_a_process_is_given_the_allocator_that_is_installed(there: Path) -> None:
    assert with_allocator({"A": "b"}) == {"A": "b", PRELOAD: str(there)}


@pytest.mark.parametrize("chosen", ["", "libjemalloc.so.2"])
def test_what_the_user_preloads_stays(there: Path, chosen: str) -> None:
    assert with_allocator({PRELOAD: chosen}) == {PRELOAD: chosen}


def test_where_it_is_not_installed_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_module, "library", lambda: None)
    assert with_allocator({"A": "b"}) == {"A": "b"}


def test_other_systems_have_no_such_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert library() is None


@pytest.mark.parametrize("arguments", [[], ["show", "runs/a"], ["--version"], ["list", "methods"]])
def test_commands_that_do_not_train_go_on_in_their_process(
    there: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.delenv(PRELOAD, raising=False)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a process was replaced"))
    restart_with_allocator(arguments)


@pytest.mark.parametrize("command", sorted(TRAINING))
def test_commands_that_train_are_started_again_as_they_were(
    there: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv(PRELOAD, raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "fcil", command, "a b"])
    begun: list[tuple[str, list[str], str]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, known: begun.append((path, words, known[PRELOAD])))
    restart_with_allocator([command, "a b"])
    assert begun == [(sys.executable, [sys.executable, "-m", "fcil", command, "a b"], str(there))]


@installed
@pytest.mark.parametrize(("environment", "used"), [({}, True), ({PRELOAD: ""}, False)])
def test_a_real_process_uses_it_unless_told_otherwise(environment: dict[str, str], used: bool) -> None:
    plain = {name: value for name, value in os.environ.items() if name != PRELOAD}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", SHOW, "run", "x"],
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split(maxsplit=1) == [str(used), "['run', 'x']\n"]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_resting_process_gives_back_what_it_does_not_need() -> None:
    show = "import torch; from fcil.core import allocator as a; torch.ones(9).sum(); "
    show += "rss = lambda: int(open('/proc/self/statm').read().split()[1]) >> 8; "
    show += "before = rss(); a.give_back(); print(before - rss(), torch.ones(9).sum().item())"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    less, total = done.stdout.split()
    assert int(less) > 30, "MB of code that nothing uses"
    assert float(total) == 9.0, "the code comes back when it is called"
    assert allocator_module._code(1 << 40) == []


def test_memory_is_given_back_where_there_is_no_list_of_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(allocator_module, "MAPS", tmp_path / "none")
    allocator_module.give_back()
    assert allocator_module._code(0) == []
