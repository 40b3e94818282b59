"""Whatever ends a command that is no mistake of the program is one line and an exit code."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table
from rich.text import Text
from support.command import fcil

from fcil.__main__ import main as program
from fcil.cli.app import app
from fcil.cli.errors import EXIT_CODES, FAILED, in_sentences
from fcil.core.console import plain_console, warn
from fcil.core.errors import ConfigError, FederationError, FileError, StoppedError, system_words

TORCH = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("one\nthing"), 2, "error: one thing"),
        (FederationError("why"), 1, "the federation stopped: why"),
        (StoppedError("interrupted"), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "a.toml"), 2, "error: a.toml: Permission denied"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device"),
        (MemoryError(), 2, "error: there is not enough memory"),
        (RuntimeError(TORCH), 2, "error: there is not enough memory"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_is_one_line_and_an_exit_code(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving, in_sentences():
        raise error
    shown = capsys.readouterr()
    assert leaving.value.code == code
    assert shown.err.startswith(said)
    assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "digits", "--sed", "4"],
            "no such option: --sed; did you mean --seed? See `fcil run",
        ),
        (["run"], "missing argument 'CONFIG|PRESET'; see `fcil run --help`"),
        (["compare", "digits"], "missing option '--methods' or '--sweep'; see `fcil compare --help`"),
        (
            ["run", "digits", "--seed", "x"],
            "invalid value for '--seed': 'x' is not a valid integer; see `fcil run --help`",
        ),
        (
            ["compare", "digits", "--methods", "glfc", "--jobs", "0"],
            "invalid value for '--jobs': 0 is not in the range",
        ),
        (["shwo", "runs/digits"], "no such command 'shwo'"),
        (["federation", "keys", "shwo"], "no such command 'shwo'"),
    ],
)
def test_words_that_a_command_does_not_take_are_refused_in_one_line(words: list[str], said: str) -> None:
    refused = fcil(*words)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(f"error: {said}")
    assert refused.stderr.endswith(" --help`\n")


@pytest.mark.parametrize("words", [[], ["list"], ["federation"], ["federation", "keys"], ["federation", "sites"]])
def test_no_words_at_all_get_the_help(words: list[str]) -> None:
    helped = fcil(*words)
    assert (helped.returncode, helped.stderr) == (2, "")
    assert f"Usage: {' '.join(['fcil', *words])} [OPTIONS] COMMAND" in helped.stdout


def test_a_command_that_says_how_it_ended_is_heard() -> None:
    assert fcil("--version").returncode == 0
    assert fcil("run", "--help").returncode == 0


def test_ctrl_c_while_modules_are_read_ends_the_program_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "fcil.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fcil.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as leaving:
        program()
    assert leaving.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="shape"), in_sentences():
        raise RuntimeError("shape '[2]' is invalid")


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    warn("client 3 failed: RuntimeError: two\n  lines")
    assert capsys.readouterr().err == "warning: client 3 failed: RuntimeError: two lines\n"


def test_the_words_of_the_system_name_both_files_of_a_rename() -> None:
    assert system_words(IsADirectoryError(21, "Is a directory", "a", None, "b")) == "a to b: Is a directory"


@pytest.mark.parametrize(
    ("redirect", "code", "said"),
    [(">/dev/full", 1, "error: No space left on device\n"), ("| true; exit ${PIPESTATUS[0]}", 1, "")],
    ids=["full", "pipe"],
)
def test_output_that_nobody_takes_is_no_traceback(redirect: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m fcil list presets {redirect}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_a_line_for_people_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console, line = plain_console(), "runs/[red]/:cat: [/] 12"
    table = Table(line, box=None, padding=0)
    table.add_row(line)
    console.print(line)
    console.print(table)
    assert [shown.strip() for shown in capsys.readouterr().out.splitlines()] == [line] * 3


def _commands(command: typer.core.TyperCommand | typer.core.TyperGroup, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for part, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {part}")


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*each, id=each[0]) for each in _commands(typer.main.get_command(app), "fcil")]
)
def test_help_says_all_that_stands_in_the_code(name: str, command: Any) -> None:
    said = [command.callback.__doc__] if command.callback is not None and name != "fcil" else [command.help]
    shown = [Text.from_markup(command.help)]
    for option in command.params:
        said.append(getattr(option, "help", None) or "")
        shown.append(Text.from_markup(said[-1]))
    assert [text.plain.split() for text in shown] == [(text or "").split() for text in said]
    assert all("\n" not in part for part in shown[0].plain.split("\n\n"))


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8").partition("## Exit codes")[2]
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE))
    assert rows == {str(code): meaning for code, meaning in EXIT_CODES.items()}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_is_full_or_fails_lets_a_service_start_again(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The units start again after 1 and not after 2."""
    with pytest.raises(SystemExit) as left, in_sentences():
        try:
            raise OSError(number, "no more")
        except OSError as error:
            raise FileError(f"{tmp_path} cannot be written: no more") from error
    assert left.value.code == FAILED
    assert capsys.readouterr().err == f"error: {tmp_path} cannot be written: no more\n"
