"""The command line as a user meets it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from fcil.cli import main
from fcil.data.sources import DataConfig, load_source
from fcil.data.transforms import as_floats
from fcil.presets import preset_names
from fcil.results.model import load_model
from fcil.results.summary import summarise

TINY = [
    "--set", "data.samples_per_class=6",
    "--set", "scenario.tasks=2",
    "--set", "scenario.rounds_per_task=2",
    "--set", "scenario.initial_clients=2",
    "--set", "scenario.joiners=1",
    "--set", "scenario.participants=2",
    "--set", "scenario.memory=8",
    "--set", "model.width=2",
    "--set", "train.epochs=1",
]  # fmt: skip


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fcil", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_run_writes_its_files_and_show_repeats_its_figures(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "run"
    code, out, _ = call("run", "digits", "--method", "icarl", "--seed", "9", *TINY, "--out", folder)
    assert code == 0
    assert re.search(r"icarl {2}task 1/2 {2}round 1/4 {2}2 of 2 clients {2}accuracy \d+\.\d % {2}\d+:\d\d left", out)
    assert "task 2/2  round 4/4  2 of 3 clients" in out
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary) == list(summarise([], "icarl", "fcil", 9))
    assert (summary["method"], summary["preset"], summary["seed"]) == ("icarl", "fcil", 9)
    assert len(summary["accuracy"]) == 2
    assert [len(row) for row in summary["accuracy_matrix"]] == [1, 2]
    assert len((folder / "records.jsonl").read_text().splitlines()) == 4
    code, shown, _ = call("show", folder)
    assert code == 0
    assert f"{summary['average']:.1f}" in shown
    predictor = load_model(folder / "model.safetensors")
    digits = load_source(DataConfig())
    predicted = predictor.predict(as_floats(digits.test.images))
    right = [name == str(label) for name, label in zip(predicted, digits.test.labels.tolist(), strict=True)]
    assert 100 * sum(right) / len(right) == pytest.approx(summary["last"], abs=1e-3)
    assert sorted(predictor.class_names) == [str(digit) for digit in range(10)]


def test_quiet_prints_the_directory_alone(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = call("run", "digits", "--method", "finetune", *TINY, "--out", tmp_path / "run", "--quiet")
    assert (code, out.strip(), err) == (0, str(tmp_path / "run"), "")


def test_a_finished_run_is_not_overwritten_but_resumes_to_itself(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ["run", "digits", "--method", "finetune", *TINY, "--out", tmp_path / "run", "--quiet"]
    call(*arguments)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    code, _, err = call(*arguments)
    assert code == 2
    assert "holds this run already" in err
    code, _, _ = call("resume", tmp_path / "run", "--quiet")
    assert code == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_results_without_their_checkpoint_are_not_overwritten(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "records.jsonl").write_text("precious\n")
    code, _, err = call("run", "digits", *TINY, "--out", folder)
    assert code == 2
    assert "holds records.jsonl of a run without its checkpoint" in err
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("records.jsonl", "precious\n")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "digist"], "tinyimagenet-t5); did you mean digits?"),
        (["run", "digits", "--set", "scenario.memry=3"], "scenario.memry: unknown key; did you mean memory?"),
        (["run", "digits", "--set", "train.epochs=0"], "train.epochs: found 0, should be at least 1"),
        (["run", "digits", "--method", "glcf"], "method.name: 'glcf' is unknown"),
        (
            ["run", "digits", "--engine", "quantum"],
            "run.engine: 'quantum' is unknown; there are auto, processes, ray, serial",
        ),
        (["run", "digits", "--set", "scenario.tasks=11"], "scenario.tasks: 11 tasks for 10 classes; use 1 to 10"),
        (["run", "digits", "--set", "memory"], "write it as key.path=value"),
        (
            ["run", "digits", "--set", "federation.min_participants=9"],
            "should be at most the 4 of scenario.participants",
        ),
        (
            ["run", "digits", "--set", "scenario.joins=[{clients=2}]"],
            "scenario.joins.0.round: missing; it must be given",
        ),
        (
            ["run", "digits", "--set", "scenario.joins=[{round=99, clients=2}]"],
            "round 99 never comes; the rounds are 0 to 19",
        ),
        (["run", "digits", "--set", "scenario.concentration=0.5"], "scenario.split should be disjoint"),
        (["run", "digits", "--out", "/dev/null"], "--out /dev/null cannot be made a directory"),
        (["run", "digits", "--set", "method.perturb_stepz=1"], "did you mean perturb_steps?"),
        (["resume", "nowhere"], "nowhere holds no checkpoint.fcil"),
        (["show", "nowhere"], "is nowhere a run's directory?"),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_nothing_behind(  # type: ignore[no-untyped-def]
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_data_says_where_it_was_looked_for(  # type: ignore[no-untyped-def]
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FCIL_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    code, _, err = call("run", "digits", "--set", "data.source=cifar100", "--out", tmp_path / "run")
    assert code == 2
    assert str(tmp_path / "mine" / "cifar-100-python") in err
    assert "FCIL_DATA" in err
    assert not (tmp_path / "run").exists()


def test_too_few_answers_stop_the_run_with_the_reasons(  # type: ignore[no-untyped-def]
    call, tmp_path: Path
) -> None:
    arguments = [*TINY, "--set", "federation.min_participants=3", "--set", "scenario.participants=3"]
    code, _, err = call("run", "digits", *arguments, "--out", tmp_path / "run")
    assert code == 1
    assert "round 0: 2 participants answered, federation.min_participants asks for 3" in err


def test_lists_name_every_method_and_preset(call) -> None:  # type: ignore[no-untyped-def]
    _, methods_out, _ = call("methods")
    _, presets_out, _ = call("presets")
    assert all(name in methods_out for name in ("finetune", "glfc", "icarl", "official"))
    assert all(name in presets_out for name in preset_names())
    assert "5 x 4" in presets_out


def test_the_page_of_settings_is_what_the_command_prints(call) -> None:  # type: ignore[no-untyped-def]
    _, printed, _ = call("settings", "--markdown")
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8").splitlines()
    assert set(page) <= set(printed.splitlines())
    assert [line for line in page if "`method." not in line] == [
        line for line in printed.splitlines() if "`method." not in line
    ]
    assert "`scenario.memory` | `2000`" in printed
    assert "`method.perturb_steps` | `100`" in printed


def test_every_command_has_a_help_text(call) -> None:  # type: ignore[no-untyped-def]
    for command in ("run", "resume", "methods", "presets", "settings", "show", "demo"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "Usage" in out


def test_threads_follow_the_configuration(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    try:
        call(
            "run",
            "digits",
            "--method",
            "finetune",
            *TINY,
            "--set",
            "scenario.tasks=1",
            "--set",
            "scenario.rounds_per_task=1",
            "--set",
            "run.threads=2",
            "--out",
            tmp_path / "run",
            "--quiet",
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    code, _, err = call("resume", tmp_path / "run", "--set", "run.threads=1", "--quiet")
    assert code == 0
    assert "not be bit-exact: threads 2 then, 1 now" in err
