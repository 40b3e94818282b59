"""The command line as a user meets it."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fcil.cli.app import app, main
from fcil.cli.listing import list_presets
from fcil.core.files import write_json
from fcil.data.datasets import DataConfig, load_source
from fcil.experiment.model_file import load_model, stored_model
from fcil.experiment.presets import preset_names
from fcil.experiment.summary import Summary, summarise
from fcil.methods import get_method, methods

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
LONG = 300 * "x"  # more than a file system takes


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
    assert list(summary) == sorted(summary, key=[*Summary.__annotations__, "digest"].index)
    assert {*summarise([], "icarl", "fcil", 9), "calibration", "digest"} == set(summary)
    assert (summary["method"], summary["edition"], summary["seed"]) == ("icarl", "fcil", 9)
    assert len(summary["accuracy"]) == 2
    assert [len(row) for row in summary["accuracy_matrix"]] == [1, 2]
    assert len((folder / "records.jsonl").read_text().splitlines()) == 4
    code, shown, _ = call("show", folder)
    assert code == 0
    assert f"{summary['average']:.1f}" in shown
    predictor = load_model(folder / "model.safetensors")
    digits = load_source(DataConfig())
    predicted = predictor.predict(digits.test.images)
    right = [one.name == str(label) for one, label in zip(predicted, digits.test.labels.tolist(), strict=True)]
    assert 100 * sum(right) / len(right) == pytest.approx(summary["last"], abs=1e-3)
    assert sorted(predictor.class_names) == [str(digit) for digit in range(10)]


def test_show_says_how_far_an_unfinished_run_has_come(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "my run"
    call("run", "digits", "--method", "finetune", *TINY, "--out", folder, "--quiet")
    assert "not finished" not in call("show", folder)[1]
    (folder / "summary.json").unlink()  # as after a kill behind the last round
    final = stored_model(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    assert call("export", folder, "--format", "safetensors")[0] == 0, "of its newest checkpoint"
    found = stored_model(folder / "exported.safetensors")
    assert all(torch.equal(tensor, found[name]) for name, tensor in final.items())
    advice = f"unless it is running, `fcil resume '{folder}'` continues it"
    assert call("show", folder)[1].splitlines()[-1] == f"not finished: 4 of 4 rounds; {advice}"
    config = json.loads((folder / "config.json").read_text())
    config["scenario"] = {"tasks": "some"}  # what no run could begin with is shown as far as it goes
    write_json(folder / "config.json", {key: value for key, value in config.items() if key != "digest"})
    assert call("show", folder)[1].splitlines()[-1] == f"not finished: 4 rounds so far; {advice}"


def test_names_of_presets_are_whole_on_a_narrow_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr("fcil.cli.listing.console", narrow)
    list_presets()
    shown = narrow.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= 80
    assert [shown.split().count(name) for name in preset_names() if name != "digits"] == [2] * (len(preset_names()) - 1)


def test_quiet_prints_the_directory_alone(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = call("run", "digits", "--method", "finetune", *TINY, "--out", tmp_path / "run", "--quiet")
    assert (code, out.strip()) == (0, str(tmp_path / "run"))
    assert all(line.startswith("warning: ") for line in err.splitlines())


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
        (["run", "digist"], "digist is neither a file nor a preset; did you mean digits?"),
        (["run", "digits", "--set", "scenario.memry=3"], "scenario.memry: unknown key; did you mean memory?"),
        (["run", "digits", "--set", "train.epochs=0"], "train.epochs: found 0, should be at least 1"),
        (["run", "digits", "--method", "glcf"], "method.name: 'glcf' is unknown"),
        (
            ["run", "digits", "--engine", "quantum"],
            "run.engine: found 'quantum', should be one of: auto, processes, ray, serial",
        ),
        (["run", "digits", "--set", "scenario.tasks=11"], "scenario.tasks: 11 tasks for 10 classes; use 1 to 10"),
        (["run", "digits", "--set", "run.threads=100000"], "run.threads: found 100000, should be at most"),
        (["run", "digits", "--workers", "9999"], "run.workers: found 9999, should be at most"),
        (["run", "digits", "--set", "model.width=1000000"], "model.width: found 1000000, should be at most"),
        (
            ["run", "digits", "--set", "scenario.leavers=8", "--set", "scenario.joiners=0"],
            "all 8 clients leave at round 5 and none joins",
        ),
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
            "round 99 is out of range (1 to 20)",
        ),
        (["run", "digits", "--set", "scenario.concentration=0.5"], "scenario.split should be disjoint"),
        (["run", "digits", "--out", "/dev/null"], "/dev/null cannot be made a directory"),
        (["run", "digits", "--set", "method.perturb_stepz=1"], "did you mean perturb_steps?"),
        (["plan", "digits", "--seconds", "inf"], "--seconds: found inf, should be a finite number"),
        (["new", "x", "--data", ".", "--hours", "nan"], "--hours: found nan, should be a finite number"),
        (["run", "digits", "--set", "model.weights=~nobody-at-all/w"], "should be a path; there is no such user"),
        (
            ["data", "digits", "--set", "data.source=imagefolder", "--set", "data.path=~nobody-at-all/x"],
            "data.path: found '~nobody-at-all/x', should be a path; there is no such user",
        ),
        (["run", "digits", "--out", "/dev/null", "--set", "train.epochs=0"], "train.epochs: found 0, should be"),
        (
            ["run", "digits", "--out", "/dev/null", "--set", "scenario.tasks=11"],
            "scenario.tasks: 11 tasks for 10 classes",
        ),
        (
            ["compare", "digits", "--methods", "lwf", "--out", "/dev/null", "--set", "train.epochs=0"],
            "train.epochs: found 0, should be",
        ),
        (
            ["federation", "try", "digits", "--out", "/dev/null", "--set", "train.epochs=0"],
            "train.epochs: found 0, should be",
        ),
        (["resume", "nowhere"], "nowhere holds no checkpoint.fcil"),
        (["show", "nowhere"], "is nowhere a run's directory?"),
        (["run", ""], "'' is neither a file nor a preset"),
        (["run", LONG], "File name too long; it should be a TOML file or a preset"),
        (["run", "/dev/null/x.toml"], "/dev/null/x.toml: Not a directory; it should be a TOML file or a preset"),
        (["run", "digits", "--out", ""], '--out "": the path is empty'),
        (["run", "digits", "--out", LONG], ": File name too long; name another place"),
        (["resume", ""], 'DIR "": the path is empty'),
        (["show", ""], 'DIR|FILE "": the path is empty'),
        (["demo", "--out", ""], '--out "": the path is empty'),
        (["demo", "--out", "/dev/null"], "/dev/null: /dev/null is a file, should be a directory"),
        (["compare", "digits", "--methods", "lwf", "--out", ""], '--out "": the path is empty'),
        (["compare", "digits", "--sweep", "seed=1", "--results", ""], '--results "": the path is empty'),
        (
            ["run", "digits", "--set", "data.source=npz", "--set", f"data.path={LONG}"],
            f"{LONG} is not a file; it should",
        ),
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


def test_a_learning_rate_that_is_too_high_is_named_as_the_likely_cause(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rate = ["--set", "train.learning_rate=1e30"]
    code, _, err = call("run", "digits", "--method", "finetune", *TINY, *rate, "--out", tmp_path / "run")
    assert code == 1
    assert "; a lower train.learning_rate may help" in err


def test_what_went_wrong_is_said_in_the_run_and_with_its_figures(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    settings = ["--set", "train.learning_rate=1e3", "--set", "scenario.participants=3"]
    settings += ["--set", "federation.max_update=1e30"]  # or else it would stop
    code, out, err = call("run", "digits", "--method", "finetune", *TINY, *settings, "--out", tmp_path / "run")
    assert code == 0
    assert "warning: scenario.participants: 3 should train per round, but round 1 has only 2 clients" in err
    assert [text.count("no better than chance with") for text in (out, err)] == [1, 1]
    warnings = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert len(warnings) == 1
    assert warnings[0] in call("show", tmp_path / "run")[1]


def test_of_a_single_task_forgetting_is_a_dash(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "run"
    code, out, _ = call("run", "digits", "--method", "finetune", *TINY, "--set", "scenario.tasks=1", "--out", folder)
    assert code == 0
    assert "backward transfer - " in out
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["forgetting"], summary["backward_transfer"]) == (None, None)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.mkdir(), "x.toml: Is a directory; it should be a TOML file"),
        (lambda path: path.symlink_to(path), "x.toml: Too many levels of symbolic links; it should be"),
        (lambda path: path.symlink_to("gone"), "x.toml is neither a file nor a preset"),
        (lambda path: path.touch(), 'x.toml is empty; begin it with extends = "digits"'),
        (lambda path: path.write_text("# nothing yet\n"), "x.toml is empty; begin it with"),
        (lambda path: path.write_text('extends = "a\\u0000b"'), r"a\x00b' is neither a file nor a preset"),
    ],
    ids=["directory", "loop", "broken link", "empty", "a comment", "NUL"],
)
def test_a_configuration_that_cannot_be_read_gets_a_sentence(  # type: ignore[no-untyped-def]
    call, tmp_path: Path, made: Callable[[Path], object], said: str
) -> None:
    made(tmp_path / "x.toml")
    code, _, err = call("run", tmp_path / "x.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


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


def test_more_answers_than_there_are_clients_cannot_be_asked_for(  # type: ignore[no-untyped-def]
    call, tmp_path: Path
) -> None:
    arguments = [*TINY, "--set", "federation.min_participants=3", "--set", "scenario.participants=3"]
    code, _, err = call("run", "digits", *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert "federation.min_participants: found 3, should be at most 2, the number of clients in round 1" in err
    assert list(tmp_path.iterdir()) == []


def test_lists_name_every_method_and_preset(call) -> None:  # type: ignore[no-untyped-def]
    _, methods_out, _ = call("list", "methods")
    _, presets_out, _ = call("list", "presets")
    assert all(name in methods_out for name in ("finetune", "glfc", "icarl", "official"))
    assert all(name in presets_out for name in preset_names())
    assert "5 x 4" in presets_out


def test_settings_are_printed_as_a_page(call) -> None:  # type: ignore[no-untyped-def]
    _, printed, _ = call("list", "settings", "--markdown")
    assert printed.startswith("# All settings\n")
    assert "`scenario.memory` | `2000`" in printed
    assert "`method.perturb_steps` | `100`" in printed


def test_a_setting_that_methods_share_is_listed_once_for_all_of_them(call) -> None:  # type: ignore[no-untyped-def]
    _, printed, _ = call("list", "settings", "--markdown")
    lines = [line for line in printed.splitlines() if line.startswith("| `method.")]
    found: dict[tuple[str, str], list[set[str]]] = {}
    everyone = {name for name, method in methods().items() if method.variant_of is None}
    for line in lines:
        key, default, text = line.strip("| ").split(" | ", 2)
        names = set(text.split(":")[0].removeprefix("all but ").split(", "))
        if names <= everyone:
            found.setdefault((key, default), []).append(everyone - names if text.startswith("all but ") else names)
    fields = {name: get_method(name).config.model_fields for name in everyone}
    for field, default in (("optimiser", "train"), ("optimiser", "native"), ("temperature", 2.0)):
        holders = {name for name in everyone if field in fields[name] and fields[name][field].default == default}
        assert found[f"`method.{field}`", f"`{json.dumps(default)}`"] == [holders]
    assert found["`method.optimiser`", '`"native"`'] == [{"mosaic"}]
    assert len({line.partition(" | ")[2] + line.partition(" | ")[0] for line in lines}) == len(lines)


def test_every_command_has_a_help_text(call) -> None:  # type: ignore[no-untyped-def]
    for command in [info.name or info.callback.__name__ for info in app.registered_commands]:
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
