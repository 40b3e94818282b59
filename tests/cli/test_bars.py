"""Runs of other processes on the screen: bars in a terminal, and nothing but lines elsewhere."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.records import record
from support.terminal import in_terminal

from fcil.experiment.config import load_config
from fcil.experiment.journal import FILE, as_line
from fcil.reporting.compare import demo
from fcil.reporting.terminal.multi_progress import Bars
from fcil.reporting.terminal.progress import Course, Tally

CONFIG = load_config("digits", ["scenario.tasks=2", "scenario.rounds_per_task=2"])
TINY = """
[data]
samples_per_class = 6
[scenario]
tasks = 2
rounds_per_task = 500
initial_clients = 2
joiners = 0
participants = 1
[model]
width = 2
[train]
epochs = 1
"""


def screen(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).replace("\r", "\n").splitlines()


def play(folder: Path, rounds: int, seconds: float = 30.0) -> None:
    folder.mkdir(exist_ok=True)
    measured = {"correct": [3], "total": [4]}
    lines = [as_line(record(number, number // 2, seconds=seconds, **measured)) for number in range(rounds)]
    (folder / FILE).write_bytes(b"".join(lines))


def test_each_run_has_a_bar_with_task_round_accuracy_and_time_left(tmp_path: Path) -> None:
    console = screen()
    with Bars(console) as bars:
        bars.plan(3)
        for name in ("one", "other"):
            bars.begin(Course.planned(CONFIG, name), tmp_path / name)
        play(tmp_path / "one", 3)
        bars.look()
        bars.end("other")
    last = [line.rstrip() for line in written(console)][-2:]
    assert re.fullmatch(r"all runs [━╸╺ ]+ 1 of 3", last[0])
    assert re.fullmatch(r"one +[━╸╺ ]+ task 2/2  round 3/4  accuracy 75\.0 %  0:30 left", last[1])
    assert any("other" in line and "first round" in line for line in written(console))


def test_a_run_that_went_back_to_its_checkpoint_is_counted_once(tmp_path: Path) -> None:
    console = screen()
    with Bars(console) as bars:
        bars.begin(Course.planned(CONFIG, "one"), tmp_path / "one")
        for rounds, seconds in ((3, 30.0), (2, 10.0)):
            play(tmp_path / "one", rounds, seconds)
            bars.look()
    assert written(console)[-1].rstrip().endswith("task 1/2  round 2/4  accuracy 75.0 %  0:20 left")


def test_an_accuracy_of_an_earlier_round_names_its_round() -> None:
    tally = Tally(Course.planned(CONFIG, "one"))
    said = []
    for number, measured in enumerate(({}, {"correct": [3], "total": [4]}, {})):
        newest = record(number, number // 2, **measured)
        tally.see(newest)
        said.append(tally.words(newest).split("  ")[2])
    assert said == ["accuracy -", "accuracy 75.0 %", "accuracy 75.0 % (round 2)"]


def test_a_round_that_is_not_applied_is_marked() -> None:
    tally = Tally(Course.planned(CONFIG, "one"))
    newest = record(0, not_applied="the aggregate is not finite")
    tally.see(newest)
    assert tally.words(newest).split("  ")[1:3] == ["round 1/4", "not applied"]


def test_a_row_fits_a_narrow_terminal(tmp_path: Path) -> None:
    console = screen(80)
    with Bars(console) as bars:
        bars.begin(Course.planned(CONFIG, "glfc-wo-cgc-2021"), tmp_path / "one")
        play(tmp_path / "one", 4)
        bars.look()
    assert written(console)[-1].endswith("round 4/4  accuracy 75.0 %  0:00 left")


def test_without_a_terminal_nothing_is_drawn(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with Bars(console) as bars:
        bars.plan(1)
        bars.begin(Course.planned(CONFIG, "one"), tmp_path / "one")
        play(tmp_path / "one", 4)
        bars.look()
        bars.end("one")
    assert written(console) == []


def test_a_comparison_in_a_terminal_draws_bars_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    arguments = ["compare", str(tmp_path / "tiny.toml"), "--methods", "finetune", "--seeds", "1"]
    with in_terminal(*arguments, "--out", str(tmp_path / "out")) as terminal:
        terminal.wait_for(r"finetune-1 +[━╸╺]+ task 1/2  round \d+/1000  accuracy - +\d+:\d\d left")
        terminal.type(b"\x03")
        code = terminal.end()
    said = terminal.text.splitlines()
    assert code == 130
    assert any("finishing the current rounds and their checkpoints" in line for line in said)
    assert said[-1] == "interrupted with 0 of 1 runs finished; the same command continues"


def test_the_demo_has_bars_in_place_of_lines_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(TINY.replace("rounds_per_task = 500", "rounds_per_task = 1"))
    monkeypatch.setattr(demo, "PRESET", str(tmp_path / "tiny.toml"))
    monkeypatch.setattr(demo, "METHODS", ("finetune",))
    console = screen()
    assert demo._run(console, [tmp_path / "finetune"], seed=4) == [0]
    said = written(console)
    assert re.search(r"finetune ━+ task 2/2  round 2/2  accuracy \d+\.\d %  0:00 left", said[-1])
    assert not any(line.startswith("finetune  task") for line in said)
