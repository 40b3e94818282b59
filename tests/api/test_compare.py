"""Methods side by side in one call."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.beasts import CONFIG, begin, samples
from support.command import fcil as command
from support.plugins import fresh_registry
from torch import Tensor

import fcil
from fcil.core.errors import CheckpointError, ConfigError, DataError, FederationError
from fcil.methods import Roles, Setting
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Classification
from fcil.methods.server import plain_server

DIGITS = [
    "data.samples_per_class=6", "scenario.tasks=[2, 2]", "scenario.rounds_per_task=1", "scenario.initial_clients=2",
    "scenario.joiners=0", "scenario.participants=2", "scenario.memory=4", "model.width=1", "train.epochs=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fcil.Compared:
    out = tmp_path_factory.mktemp("compared") / "both"
    return fcil.compare(CONFIG, ["finetune", "icarl"], data=samples(), seeds=[1, 2], out=out)


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_every_method_is_played_with_every_seed_and_the_table_has_a_row_each(whole: fcil.Compared) -> None:
    assert {name: list(by_seed) for name, by_seed in whole.results.items()} == {"finetune": [1, 2], "icarl": [1, 2]}
    for row in whole.comparison.rows:
        averages = [whole.results[row.label][seed].summary["average"] for seed in (1, 2)]
        assert row.average.mean == pytest.approx(statistics.mean(averages))
    assert whole.comparison.ours == "finetune"
    assert [line.split("|")[1].strip() for line in whole.table().splitlines()] == ["method", "---", "finetune", "icarl"]
    assert str(whole) == whole._repr_markdown_() == whole.table()
    assert whole.table("latex").startswith(r"\begin{tabular}")
    assert whole.table("csv").splitlines()[1].startswith("finetune,1 2,")
    assert whole.table() in (whole.folder / "table.md").read_text("utf-8")
    assert (whole.folder / "curves.png").is_file()
    assert whole.results["icarl"][2].load_model().class_names == ("ant", "bee", "cow", "dog")


def test_the_same_call_plays_only_what_is_missing_and_continues_what_was_cut(
    whole: fcil.Compared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = shutil.copytree(whole.folder / "finetune-1", tmp_path / "finetune-1")
    before = {path: path.stat().st_mtime_ns for path in Path(kept).iterdir()}
    begin(tmp_path / "icarl-1", seed=1)

    def once() -> Iterator[tuple[Any, str]]:
        yield from samples()

    arguments: dict[str, Any] = {"seeds": [1], "out": tmp_path, "ours": "icarl", "progress": True}
    continued = fcil.compare(CONFIG, ["finetune", "icarl"], data=once(), **arguments)
    said = capsys.readouterr().out
    assert "2 runs, 1 finished before" in said
    assert "icarl-1  task 2/2  round 2/2" in said
    assert "finetune-1" not in said
    assert {path: path.stat().st_mtime_ns for path in Path(kept).iterdir()} == before
    assert model(tmp_path / "icarl-1") == model(whole.folder / "icarl-1")
    assert continued.comparison.ours == "icarl"
    again = fcil.compare(CONFIG, ["finetune", "icarl"], data=samples(), seeds=[1], out=tmp_path, ours="icarl")
    assert again.comparison == continued.comparison
    assert again.results["icarl"][1].folder == tmp_path / "icarl-1"


def test_other_data_or_settings_than_those_of_the_runs_are_refused(whole: fcil.Compared) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*")}
    with pytest.raises(CheckpointError, match=r"finetune-1 was begun with other data .*; name another directory"):
        fcil.compare(CONFIG, ["finetune"], data=samples(shade=1), seeds=[1], out=whole.folder)
    with pytest.raises(
        CheckpointError, match=r"settings: scenario\.memory \(4 there, 5 here\); name another directory"
    ):
        fcil.compare(CONFIG, ["icarl"], data=samples(), seeds=[1], out=whole.folder, settings=["scenario.memory=5"])
    assert {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*")} == before


def test_the_command_and_the_call_know_each_other_s_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = fcil.compare("digits", ["finetune", "lwf"], seeds=[1], settings=DIGITS)
    assert ours.folder == Path("runs/compare-digits")
    flags = [part for setting in DIGITS for part in ("--set", setting)]
    done = command("compare", "digits", "--methods", "finetune,lwf", "--seeds", "1", *flags)
    assert done.returncode == 0, done.stderr
    assert "2 runs, 2 finished before" in done.stdout
    assert ours.table() in done.stdout


class Failing(Classification[DetectionConfig]):
    """A local objective that cannot be learned."""

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        raise RuntimeError("no room")


def failing(config: DetectionConfig, setting: Setting) -> Roles:
    return Roles(RehearsalClient(config, setting, Failing), plain_server())


def test_a_registered_method_can_be_compared_and_a_run_that_fails_is_named(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"data": samples(), "seeds": [1], "out": tmp_path}
    with fresh_registry():
        fcil.register_method(fcil.Method("failing", "always fails", DetectionConfig, failing))
        with pytest.raises(FederationError, match=r"failing-1: .*no room.*; finished runs are kept, and the same call"):
            fcil.compare(CONFIG, ["finetune", "failing"], **arguments)
        assert (tmp_path / "finetune-1" / "summary.json").is_file()
        assert not (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"methods": "icarl"}, r"methods: found 'icarl', should be a list of names"),
        ({"methods": []}, r"methods: found \[\], should be a list of names"),
        ({"methods": ["icarl", "icarl"]}, r"two runs would be called icarl-1"),
        ({"methods": ["icral"]}, r"method\.name: 'icral' is unknown; .*did you mean icarl\?"),
        ({"seeds": []}, r"seeds: found \[\], should be a list of whole numbers"),
        ({"seeds": 7}, r"seeds: found 7, should be a list of whole numbers"),
        ({"seeds": [True]}, r"seeds: found \[True\], should be"),
        ({"ours": "glfc"}, r"ours: found 'glfc', should be one of the methods compared, icarl"),
        ({"settings": ["seed=7"]}, r"setting seed=7: methods and seeds are given by `methods` and `seeds`"),
        ({"settings": "seed=7"}, r"settings: found 'seed=7', should be a list of texts"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"methods": ["icarl"], "seeds": [1], "data": samples(), **changed}
    with pytest.raises(ConfigError, match=sentence):
        fcil.compare(CONFIG, out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_data_that_is_none_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data: found a int"):
        fcil.compare(CONFIG, ["icarl"], data=7, seeds=[1], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_in_another_form_is_refused(whole: fcil.Compared) -> None:
    with pytest.raises(ConfigError, match="form html: it should be markdown, latex or csv"):
        whole.table("html")
