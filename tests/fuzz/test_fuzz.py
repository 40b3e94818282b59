from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from fcil.core.errors import DataError
from fuzz import run
from fuzz.case import READ, REFUSED, Damage, FindingError, Kind, all_of, check_same, check_sentence, judge
from fuzz.damage import changed, damaged
from fuzz.loop import play

CASES = 500
TESTS = Path(__file__).parents[1]


def test_damaged_input_of_every_kind_is_read_or_refused_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz.run", "--cases", str(CASES), "--seed", "0", "--out", str(tmp_path)]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    played = dict(re.findall(r"^(\S+) +(\d+) cases: ", done.stdout, re.MULTILINE))
    assert played.keys() == run.KINDS.keys()
    assert sum(map(int, played.values())) >= CASES
    assert list(tmp_path.iterdir()) == []


# --- the tool itself ----------------------------------------------------------------------------------------------


def kind(play_case: Callable[[Damage, Path], None]) -> Kind:
    """Return a kind whose first case is whole and whose others hold a random byte."""
    return Kind("test", 1, lambda: Damage({"x": b""}), lambda random: Damage({"x": random.randbytes(1)}), play_case)


def is_whole(damage: Damage) -> bool:
    return damage.files == {"x": b""}


def crash(damage: Damage, folder: Path) -> None:
    if not is_whole(damage):
        os.kill(os.getpid(), signal.SIGSEGV)


def fill(damage: Damage, folder: Path) -> None:
    bytearray(1 << 30)


def wait(damage: Damage, folder: Path) -> None:
    time.sleep(60)


def refuse(damage: Damage, folder: Path) -> None:
    raise DataError("no")


def test_a_crash_is_a_finding_and_the_other_cases_go_on() -> None:
    results = list(play(kind(crash), 0, [0, 1, 2, 0]))
    assert [result.outcome for result in results] == [READ, None, None, READ]
    assert results[1].found == "the process ended with signal SIGSEGV"


def test_memory_beyond_the_limit_is_a_finding() -> None:
    (result,) = play(kind(fill), 0, [1], memory=256 << 20)
    assert result.outcome is None
    assert result.found.strip().endswith("MemoryError")


def test_a_case_that_waits_for_ever_is_stopped_and_found() -> None:
    (result,) = play(kind(wait), 0, [1], silence=0.2)
    assert result.outcome is None
    assert "SIGKILL" in result.found
    assert "silent" in result.found


def test_a_whole_sample_that_is_refused_is_a_finding() -> None:
    whole, other = play(kind(refuse), 0, [0, 1])
    assert (whole.outcome, whole.found) == (None, "a whole sample is refused")
    assert other.outcome == REFUSED


def test_a_case_that_never_ends_is_found_by_the_time_it_takes(tmp_path: Path) -> None:
    def spin(damage: Damage, folder: Path) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:  # nothing that swallows errors may swallow the limit
                continue

    with pytest.raises(FindingError, match="no end within"):
        judge(kind(spin), Damage({}), tmp_path, seconds=0.05)


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), RecursionError("x"), KeyboardInterrupt()])
def test_any_other_error_is_a_finding_with_its_traceback(error: BaseException, tmp_path: Path) -> None:
    def fail(damage: Damage, folder: Path) -> None:
        raise error

    with pytest.raises(FindingError, match=f"Traceback(.|\n)*{type(error).__name__}"):
        judge(kind(fail), Damage({}), tmp_path)


@pytest.mark.parametrize("text", ["", "two\nlines", "\x1b[31mred", "\ud800", "x" * 10_000])
def test_what_is_not_one_line_is_a_finding(text: str) -> None:
    with pytest.raises(FindingError):
        check_sentence(text)


def test_another_content_is_a_finding_and_every_step_is_taken() -> None:
    with pytest.raises(FindingError):
        check_same(b"other", b"newest", b"previous")
    taken: list[int] = []
    with pytest.raises(DataError):
        all_of(lambda: refuse(Damage({}), Path()), lambda: taken.append(1))
    assert taken == [1]


def test_damage_depends_on_the_seed_alone() -> None:
    for name in ("config", "message", "model", "npz", "cifar100"):
        chosen = run.KINDS[name]
        assert chosen.damage(3, 7) == chosen.damage(3, 7)
        assert len({chosen.damage(3, number).dump(name) for number in range(1, 9)}) > 4


def test_damage_does_change_bytes_and_documents() -> None:
    data, document = bytes(range(256)), {"a": [1, 2.5, "x"], "b": {"c": None}}
    found = [damaged(data, Random(number)) for number in range(100)]
    assert sum(other != data for other in found) > 90
    assert len({len(other) for other in found}) > 10
    assert sum(changed(document, Random(number)) != document for number in range(100)) > 80
    assert document == {"a": [1, 2.5, "x"], "b": {"c": None}}


def test_a_finding_is_kept_and_can_be_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(damage: Damage, folder: Path) -> None:
        if not is_whole(damage):
            raise ZeroDivisionError(str(damage.files["x"]))

    monkeypatch.setitem(run.KINDS, "test", kind(fail))
    for variable in ("XDG_CACHE_HOME", "FCIL_DATA"):
        monkeypatch.setenv(variable, str(tmp_path))  # put back what a replay changes
    assert run.main(["--only", "test", "--cases", "2", "--seed", "4", "--out", str(tmp_path / "found")]) == 1
    said = capsys.readouterr().out
    assert "1 findings in 2 cases with seed 4" in said
    (path,) = (tmp_path / "found").iterdir()
    assert f"--replay {path}" in said
    assert run.main(["--replay", str(path)]) == 1
    assert f"ZeroDivisionError: {run.KINDS['test'].damage(4, 1).files['x']!r}" in capsys.readouterr().out
