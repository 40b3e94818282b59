"""A trained model in use: `fcil predict`, `evaluate` and `export` on real files."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from support.colours import COLOURS, paint_plain, write_colour_model
from support.command import fcil

from fcil.experiment.export import undisturbed
from fcil.experiment.model_file import Calibration, load_model

PAGE = Path(__file__).parents[2] / "docs" / "use.md"
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
DARK_BLUE = (51, 102, 204)  # 0.2, 0.4, 0.8: the outputs are four times that, and their softmax 0.070, 0.156, 0.774


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a run with the hand-made model, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    write_colour_model(Path("run/model.safetensors"))
    return Path("run")


def paint_classes(**colours: list[tuple[int, int, int]]) -> Path:
    """Write a folder of images of these colours for each class; the model names them after their colour."""
    for name, painted in colours.items():
        for number, colour in enumerate(painted):
            paint_plain(Path("data", name, f"{number}.png"), colour)
    return Path("data")


def refused(done: CompletedProcess[str], *words: str) -> bool:
    """Say whether a command ended with one sentence that has these words, and with nothing else."""
    lines = done.stderr.splitlines()
    return done.returncode == 2 and len(lines) == 1 and not done.stdout and all(word in lines[0] for word in words)


# --- predict ------------------------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_predict_names_the_likeliest_classes_of_files_and_folders(run: Path) -> None:
    paint_plain(Path("one.png"), DARK_BLUE, (20, 30))
    paint_plain(Path("more/below/two.PNG"), DARK_BLUE[::-1])
    Path("more/notes.txt").write_text("no image, and not asked for by its name")
    done = fcil("predict", run, "one.png", "more")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "file                class 1  probability  class 2  probability  class 3  probability",
        "one.png             blue           0.774  green          0.156  red            0.070",
        "more/below/two.PNG  red            0.774  green          0.156  blue           0.070",
    ]
    assert fcil("predict", "run/model.safetensors", "one.png", "more", "--device", "cpu").stdout == done.stdout


@pytest.mark.numeric
def test_predict_gives_one_json_line_per_image(run: Path) -> None:
    paint_plain(Path("one.png"), DARK_BLUE)
    paint_plain(Path("two.png"), RED)
    done = fcil("predict", run, "two.png", "one.png", "--json", "--top", "2")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["file"], first["predictions"][0]["class"]) == ("two.png", "red")
    assert [guess["class"] for guess in second["predictions"]] == ["blue", "green"]
    assert [guess["probability"] for guess in second["predictions"]] == pytest.approx([0.7736, 0.1562], abs=1e-3)


def test_predict_shows_fewer_classes_and_odd_names_on_one_line(run: Path) -> None:
    name = "an\nt\x1b[31m.png"
    paint_plain(Path(name), GREEN)
    done = fcil("predict", run, name, "--top", "1")
    assert done.stdout.splitlines()[0].split() == ["file", "class", "probability"]
    assert done.stdout.splitlines()[1].startswith(r"an t\x1b[31m.png  green")
    assert json.loads(fcil("predict", run, name, "--json").stdout)["file"] == name


def test_a_broken_image_among_good_ones_is_a_warning(run: Path) -> None:
    for number in range(300):  # more than a batch
        paint_plain(Path("data", f"{number:03}.png"), GREEN, (8, 8))
    Path("data/007.png").write_bytes(b"no image")
    Path("empty").mkdir()
    done = fcil("predict", run, "data", "absent.png", "empty", "--json")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 299
    assert {json.loads(line)["predictions"][0]["class"] for line in done.stdout.splitlines()} == {"green"}
    first, second, third = done.stderr.splitlines()
    assert first.startswith("warning: empty holds no images; there should be files ending in .jpeg")
    assert second == "warning: data/007.png cannot be read as an image: it is no image of a known format"
    assert third == "warning: absent.png cannot be read as an image: No such file or directory"


def test_predict_without_anything_to_do_is_refused(run: Path) -> None:
    Path("empty").mkdir()
    Path("text.png").write_text("no image")
    assert refused(fcil("predict", run, "empty"), "error: empty holds no images")
    assert refused(fcil("predict", run, "text.png"), "error: text.png cannot be read as an image")
    assert refused(fcil("predict", run, ""), 'FILE "": the path is empty')
    done = fcil("predict", run, "text.png", "empty", "absent.png")
    assert (done.returncode, done.stdout) == (2, "")
    *warnings, error = done.stderr.splitlines()
    assert [line.split(":")[0] for line in warnings] == ["warning"] * 3
    assert error == "error: FILE: none of the 3 named can be read as images; the warnings say why"


@pytest.mark.parametrize("command", [["predict"], ["evaluate", "--data"], ["export", "--format", "onnx", "--out"]])
def test_what_is_no_model_is_refused(command: list[str]) -> None:
    paint_plain(Path("data/red/1.png"), RED)
    Path("text.safetensors").write_text("no model")
    name, *options = command
    last = "data" if name != "export" else "out"
    assert refused(fcil(name, "text.safetensors", *options, last), "text.safetensors is not a model written by fcil")
    assert refused(fcil(name, "absent", *options, last), "absent cannot be read as a model: No such file")
    assert refused(fcil(name, "data", *options, last), "data holds no model.safetensors", "a site's state folder")
    assert refused(fcil(name, "", *options, last), 'DIR|MODEL "": the path is empty')
    assert not Path("out").exists()


def test_wrong_options_are_named_with_what_would_be_right(run: Path) -> None:
    paint_plain(Path("data/red/1.png"), RED)
    assert refused(fcil("predict", run, "data", "--top", "4"), "--top 4: the model has 3 classes")
    assert refused(fcil("predict", run, "data", "--device", "toaster"), "device: toaster is not available")
    wrong = fcil("export", run, "--format", "keras", "--out", "out")
    assert refused(wrong, "--format keras: it should be onnx, torchscript or safetensors")


def test_an_image_that_is_like_no_class_is_none_of_these(run: Path) -> None:
    """Grey is as much red as green or blue; at a temperature of 2 red is red with 0.79."""
    write_colour_model(run / "model.safetensors", calibration=Calibration(temperature=2.0, threshold=0.5))
    data = paint_classes(red=[RED, RED], violet=[(90, 90, 90)])
    done = fcil("predict", run, "data", "--csv")
    rows = [line.split(",")[2:] for line in done.stdout.splitlines()[1:]]
    assert [(name, round(float(value), 3)) for name, value in rows] == [("red", 0.787)] * 2 + [("none of these", 0.333)]
    shown = [line.split() for line in fcil("predict", run, "data", "--top", "2").stdout.splitlines()]
    assert shown[1][1:3] == ["red", "0.787"]
    assert shown[3][1:] == ["none", "of", "these", "red", "0.333"]
    found = [json.loads(line) for line in fcil("predict", run, "data", "--json").stdout.splitlines()]
    assert [one["none_of_these"] for one in found] == [False, False, True]
    assert "none of these: 1" in fcil("evaluate", run, "--data", data).stdout
    assert fcil("export", run, "--format", "torchscript", "--out", "out.pt").returncode == 0


# --- evaluate -----------------------------------------------------------------------------------------------------


def test_evaluate_counts_by_hand(run: Path) -> None:
    """Of five red images two are right, of one green image one; violet is unknown, and blue has no images."""
    data = paint_classes(red=[RED, RED, GREEN, GREEN, BLUE], green=[GREEN], violet=[BLUE, BLUE, RED])
    done = fcil("evaluate", run, "--data", data, "--json", "--confusion", "matrix.csv")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found == {
        "images": 6,
        "right": 3,
        "accuracy": 50.0,
        "mean_per_class": 70.0,
        "classes": [
            {
                "class": "red",
                "images": 5,
                "taken_for": {"class": "green", "images": 2},
                "none_of_these": 0,
                "right": 2,
                "accuracy": 40.0,
            },
            {
                "class": "green",
                "images": 1,
                "taken_for": None,
                "none_of_these": 0,
                "right": 1,
                "accuracy": 100.0,
            },
        ],
        "unknown": [{"class": "violet", "images": 3, "taken_for": {"class": "blue", "images": 2}, "none_of_these": 0}],
        "absent": ["blue"],
        "unreadable": 0,
        "confusion": {
            "rows": ["red", "green", "blue", "violet"],
            "columns": ["red", "green", "blue"],
            "counts": [[2, 2, 1], [0, 1, 0], [0, 0, 0], [1, 0, 2]],
        },
    }
    with Path("matrix.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["class", *found["confusion"]["columns"]]
    assert [row[0] for row in rows] == found["confusion"]["rows"]
    assert [[int(cell) for cell in row[1:]] for row in rows] == found["confusion"]["counts"]


def test_evaluate_shows_tables_and_names_what_does_not_fit(run: Path) -> None:
    data = paint_classes(red=[RED, RED, GREEN, GREEN, BLUE], green=[GREEN], violet=[BLUE, BLUE, RED])
    done = fcil("evaluate", run, "--data", data)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert [line.split() for line in lines[1:3]] == [
        ["red", "5", "2", "40.0", "green", "(2)"],
        ["green", "1", "1", "100.0", "-"],
    ]
    assert lines[3:6] == [
        "accuracy 50.0 % (3 of 6 images)   mean per class 70.0 %",
        "violet is no class of the model; images, not counted above: 3, most often taken for blue (2)",
        "classes of the model without images: blue",
    ]
    assert [line.split() for line in lines[-4:]] == [
        ["true", "class", "red", "green", "blue"],
        ["red", "2", "2", "1"],
        ["green", ".", "1", "."],
        ["violet", "1", ".", "2"],
    ]


def test_a_matrix_that_does_not_fit_is_left_to_a_file(run: Path) -> None:
    names = tuple(f"{colour} {'x' * 60}" for colour in COLOURS)
    write_colour_model(run / "model.safetensors", names)
    done = fcil("evaluate", run, "--data", paint_classes(**{names[0]: [RED]}), "--confusion", "matrix.csv")
    assert done.returncode == 0
    assert "the confusion matrix does not fit here; --confusion FILE.csv writes it" in done.stdout
    assert "true class" not in done.stdout
    assert "confusion matrix: matrix.csv" in done.stdout
    assert len(Path("matrix.csv").read_text().splitlines()) == 4


def test_a_broken_image_is_counted_and_an_empty_class_is_named(run: Path) -> None:
    data = paint_classes(red=[RED, RED])
    (data / "red" / "1.png").write_bytes(b"no image")
    (data / "blue").mkdir()
    done = fcil("evaluate", run, "--data", data)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("warning: data/blue holds no images")
    assert second.startswith("warning: data/red/1.png cannot be read as an image")
    assert "accuracy 100.0 % (1 of 1 images)" in done.stdout
    assert "images that could not be read: 1" in done.stdout


def test_evaluate_without_anything_to_do_is_refused(run: Path) -> None:
    Path("empty").mkdir()
    assert refused(fcil("evaluate", run, "--data", "absent"), "absent cannot be read as a folder of classes")
    assert refused(fcil("evaluate", run, "--data", "empty"), "empty holds no folders")
    unknown = fcil("evaluate", run, "--data", paint_classes(violet=[RED]))
    assert refused(
        unknown, "--data data: its folders are violet", "classes are red, green, blue", "`fcil federation name`"
    )
    (Path("data") / "red").mkdir()
    done = fcil("evaluate", run, "--data", "data")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: --data data: no image of the model's classes can be read")


@pytest.mark.parametrize(
    "command",
    [["evaluate", "run", "--data", "data", "--confusion"], ["export", "run", "--format", "safetensors", "--out"]],
)
def test_nothing_is_overwritten_and_a_folder_must_be_there(command: list[str]) -> None:
    paint_classes(red=[RED])
    before = Path("run/model.safetensors").read_bytes()
    option = command[-1]
    assert refused(fcil(*command, "run/model.safetensors"), f"{option} run/model.safetensors: the file exists")
    assert refused(fcil(*command, "absent/file"), f"{option} absent/file: absent is not a folder")
    assert Path("run/model.safetensors").read_bytes() == before


# --- export -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["torchscript", "safetensors"])
def test_export_says_what_it_checked(run: Path, format: str) -> None:
    done = fcil("export", run, "--format", format, "--out", "out.file")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"out\.file predicts as the model does; its probabilities differ by \S+ at most\n", done.stdout)
    assert sorted(path.name for path in Path().iterdir()) == ["out.file", "run"]
    if format == "safetensors":
        assert load_model("out.file").class_names == COLOURS


@pytest.mark.parametrize(("format", "ending"), [("torchscript", "pt"), ("safetensors", "safetensors")])
def test_an_exported_model_lies_beside_the_model_and_is_never_overwritten(
    run: Path, format: str, ending: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "own"))
    place = folder / f"exported.{ending}"
    assert fcil("export", folder, "--format", format).stdout.startswith(f"{place} predicts as the model does;")
    assert place.is_file()
    assert refused(fcil("export", folder, "--format", format), f"--out {place}: the file exists")
    assert load_model(folder / "model.safetensors").class_names == COLOURS, "it is still the run's own"


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_onnx_without_its_extra_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for present in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(present, reason="the extra `onnx` is not installed")
    monkeypatch.delitem(sys.modules, "fcil.experiment.export_onnx", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    done = fcil("export", run, "--format", "onnx", "--out", "out.onnx")
    assert refused(done, f"{missing} is not installed; install fcil with its extra `onnx`")
    assert not Path("out.onnx").exists()


@pytest.mark.numeric
def test_the_page_can_be_followed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(module, reason="the extra `onnx` is not installed")
    page = PAGE.read_text("utf-8")
    write_colour_model(Path("runs/photos/model.safetensors"))
    paint_plain(Path("photo.jpg"), DARK_BLUE, (30, 20))
    paint_classes(red=[RED], blue=[BLUE]).rename("fresh")
    said = []
    for command in re.findall(r"^\$ (fcil .*)$", page, re.MULTILINE):
        done = fcil(*shlex.split(command)[1:])
        assert (done.returncode, done.stderr) == (0, ""), command
        said.append(shlex.split(command)[1])
    assert said == ["predict", "evaluate", "export", "export", "export"]
    namespace: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        capsys.readouterr()
        with undisturbed():  # PyTorch calls TorchScript deprecated
            exec(snippet, namespace)
        assert capsys.readouterr().out == "blue 0.77\n"


def test_a_server_of_predictions_takes_an_address_and_nothing_else() -> None:
    model = str(write_colour_model(Path("model.safetensors")))
    assert refused(fcil("predict", model, "x.png", "--serve", "127.0.0.1:1"), "--serve takes no files")
    assert refused(fcil("predict", model, "--serve", "1"), "--serve 1: it should be HOST:PORT")
    assert refused(fcil("predict", model, "--serve", "192.0.2.1:1"), "cannot be listened at on 192.0.2.1")
    assert refused(fcil("predict", model), "FILE... is missing")
