"""`--json`: every command that lists or shows prints one document with keys that scripts can rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command import COMMAND, fcil

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "digits" / "glfc-2021.json"
MEMBER = {"name", "summary", "package", "settings"}


def read(*words: str | Path) -> Any:
    done = fcil(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("methods", {*MEMBER, "editions", "masked"}),
        ("networks", {*MEMBER, "stages"}),
        (
            "presets",
            {"name", "source", "classes", "tasks", "rounds", "memory", "first_clients", "last_clients", "description"},
        ),
        ("settings", {"key", "default", "description"}),
        ("aggregators", MEMBER),
        ("datasets", MEMBER),
        ("loggers", MEMBER),
        ("engines", MEMBER),
    ],
)
def test_a_list_is_an_array_of_objects_with_these_keys(kind: str, keys: set[str]) -> None:
    found = read("list", kind)
    assert found
    assert all(set(row) == keys for row in found)
    shown = fcil("list", kind)
    assert shown.returncode == 0
    assert all(str(row.get("name", "")) in shown.stdout for row in found)


def test_settings_are_filtered_by_a_word_and_have_their_defaults() -> None:
    found = {row["key"]: row["default"] for row in read("list", "settings", "memory")}
    assert found["scenario.memory"] == 2000
    assert "train.epochs" not in found
    assert fcil("settings", "MEMORY", "--json").stdout == fcil("list", "settings", "memory", "--json").stdout
    refused = fcil("list", "settings", "memry")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "WORD memry: no setting has it" in refused.stderr
    assert "leave one out" in fcil("list", "settings", "--json", "--markdown").stderr


def test_the_holdings_and_the_cost_of_an_experiment_are_documents() -> None:
    assert {"source", "class_names", "skew", "tasks", "clients"} == set(read("data", "digits"))
    plan = read("plan", "digits", "--seconds", "0.1")
    assert {"volume", "speed", "workers", "operations", "hours", "memory_bytes", "notes"} == set(plan)


def test_a_kept_result_is_shown_as_a_run_is() -> None:
    if not KEPT.is_file():
        pytest.skip("kept results come with the source, not with the wheel")
    kept = json.loads(KEPT.read_text("utf-8"))
    found = read("show", KEPT)
    assert (found["kind"], found["name"], found["summary"]) == ("kept", "glfc-2021", kept["summary"])
    shown = fcil("show", KEPT).stdout
    assert f"{kept['summary']['average']:.1f}" in shown
    board = read("leaderboard")
    assert board


def test_keys_and_sites_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nacl")
    monkeypatch.chdir(tmp_path)
    fcil("federation", "keys", "server", "--address", "fl.example.org")
    fcil("federation", "keys", "site", "berlin")
    fcil("federation", "sites", "add", "keys/berlin/site.pub")
    found = read("federation", "keys", "show", "keys/berlin")
    assert (found["folder"], found["kind"]) == ("keys/berlin", "site")
    assert "site.pub" in found["lines"]
    assert any("ca.crt" in fault for fault in found["faults"])
    assert [(row["name"], row["role"]) for row in read("federation", "sites", "list")] == [("berlin", "site")]


def test_every_command_that_lists_or_shows_has_the_option() -> None:
    def named(words: str) -> Any:
        command: Any = COMMAND
        for word in words.split():
            command = command.commands[word]
        return command

    kinds = [f"list {kind}" for kind in named("list").commands]
    shown = ["show", "data", "plan", "compare", "leaderboard", "predict", "evaluate"]
    shown += ["federation keys show", "federation sites list"]
    for words in [*kinds, *shown]:
        assert "--json" in {name for option in named(words).params for name in option.opts}, words
