"""The start of the command line: what it imports, `-h`, completion, and guesses at mistyped names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import COMMAND, fcil

from fcil.cli.completion import complete_config, complete_method, complete_methods, complete_setting
from fcil.experiment.config import setting_rows
from fcil.experiment.presets import preset_names
from fcil.methods import methods

HEAVY = ["torch", "numpy", "scipy", "matplotlib", "pydantic", "safetensors", "PIL", "flwr", "ray", "plotly"]
ALL_HELP = """
import contextlib, io, json, sys
from itertools import cycle
from fcil.cli.app import app, main
import typer

def every(command, words=()):
    inner = getattr(command, "commands", {})
    return [words, *(found for name in inner for found in every(inner[name], (*words, name)))]

flags = cycle(["-h", "--help"])
asked = [["--version"], *([*words, next(flags)] for words in every(typer.main.get_command(app)))]
codes, shown = [], io.StringIO()
for words in asked:
    sys.argv = ["fcil", *words]
    with contextlib.redirect_stdout(shown):
        try:
            main()
        except SystemExit as leaving:
            codes.append(leaving.code or 0)
print(json.dumps([len(asked), codes.count(0), shown.getvalue().count("Usage: fcil"), sorted(sys.modules)]))
"""
COMMANDS = (
    "run resume plan demo new data show report watch compare leaderboard predict evaluate export forget list "
    "federation audit"
)


def test_no_help_and_no_version_imports_torch_or_another_large_library() -> None:
    done = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, check=True)
    asked, good, usages, modules = json.loads(done.stdout)
    assert asked == good == usages + 1 > 35
    assert [name for name in HEAVY if name in modules] == []


def test_these_are_the_commands() -> None:
    commands = getattr(COMMAND, "commands")  # noqa: B009 (only groups have them)
    assert {name for name, command in commands.items() if not command.hidden} == set(COMMANDS.split())
    kinds = {"methods", "networks", "presets", "settings", "aggregators", "datasets", "loggers", "engines"}
    assert set(commands["list"].commands) == kinds
    parts = {"try", "init", "serve", "join", "proxy", "status", "backup", "release", "rollback", "set"}
    parts |= {"keys", "sites", "classes", "columns", "name"}
    assert set(commands["federation"].commands) == parts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reprot x", "no such command 'reprot'; did you mean report? See `fcil --help`"),
        ("list prests", "no such command 'prests'; did you mean presets? See `fcil list --help`"),
        ("federation joni", "no such command 'joni'; did you mean join? See `fcil federation --help`"),
        ("run digit", "digit is neither a file nor a preset; did you mean digits?"),
        ("run digits --method glcf", "did you mean glfc?"),
        ("run digits --set method.relation_wieght=1", ".relation_wieght: unknown key; did you mean relation_weight?"),
        ("run digits --set scenrio.tasks=1", "scenrio: unknown key; did you mean scenario?"),
        ("run digits --quite", "no such option: --quite; did you mean --quiet? See `fcil run --help`"),
        ("compare digits --methods glcf", "did you mean glfc?"),
    ],
)  # fmt: skip
def test_a_mistyped_name_gets_a_guess(words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fcil(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- completion ---------------------------------------------------------------------------------------------------


def test_names_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits-own.toml", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in.toml").touch()
    assert complete_config("") == [*preset_names(), "digits-own.toml", "folder/"]
    assert complete_config("folder/") == ["folder/in.toml"]
    assert complete_config("digits-o") == ["digits-own.toml"]
    assert complete_config("nowhere/") == []
    assert complete_method("gl") == [name for name in methods() if name.startswith("gl")]
    assert "lwf,glfc" in complete_methods("lwf,gl")
    keys = {row[0] for row in setting_rows() if row[0].startswith("scenario.m")}
    assert set(complete_setting("scenario.m")) == {f"{key}=" for key in keys}


def test_a_shell_asks_for_completions_and_gets_them() -> None:
    asked = {"_FCIL_COMPLETE": "complete_bash", "COMP_WORDS": "fcil run digi", "COMP_CWORD": "2"}
    program = "import sys; sys.argv[0] = 'fcil'; from fcil.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, **asked}
    )
    assert done.stdout.split() == ["digits", "digits-noniid"]
    assert "--install-completion" in fcil("-h").stdout
