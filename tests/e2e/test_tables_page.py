"""The page on tables, followed from a real table to predictions."""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from support.command import fcil

import fcil.cli.new as new_module

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text("utf-8")


@pytest.mark.numeric
def test_a_real_table_becomes_an_experiment_and_its_model_recognises_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("onnxscript", reason="onnx is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new_module, "MEASURE", 0.05)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(snippet, {})
    said = {}
    for line in re.findall(r"^\$ fcil (?!federation)(.*)$", PAGE, re.MULTILINE):
        ended = fcil(*shlex.split(line))
        assert ended.returncode == 0, ended.stderr
        said[line.split()[0]] = ended.stdout
    assert re.search(r"class_2 +29 +7\b", said["new"])
    document = tomllib.loads((tmp_path / "wine.toml").read_text("utf-8"))
    assert document["data"]["label_column"] == "label"
    assert (document["scenario"]["tasks"], document["model"]["name"]) == ([2, 1], "mlp")
    (right,) = re.findall(r"\((\d+) of 44 rows\)", said["evaluate"])
    assert int(right) >= 40
    rows = list(csv.DictReader(said["predict"].splitlines()))
    assert [row["row"] for row in rows] == [str(number) for number in range(1, 45)]
    assert (tmp_path / "wine" / "exported.onnx").is_file()


def test_a_table_with_a_test_part_and_its_own_label_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        lines = [f"{number},{'ab'[number % 2]},{'xy'[number % 2]}" for number in range(24)]
        (tmp_path / "data" / f"{part}.csv").write_text("\n".join(["size,tone,kind", *lines]))
    made = fcil("new", "mine", "--data", tmp_path / "data", "--label", "kind", "--out", tmp_path / "mine.toml")
    assert made.returncode == 0, made.stderr
    assert "numbers: size" in made.stdout
    assert "texts: tone" in made.stdout
    document = tomllib.loads((tmp_path / "mine.toml").read_text("utf-8"))
    assert "test_fraction" not in document["data"]
    assert document["data"]["path"] == "data"


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("a,label\n1,x\n2,x\n", [], "has one class, x; to learn class after class takes two"),
        ("a,kind\n1,x\n2,y\n", [], "--label label: .* has no such column; name the one of the classes: a, kind"),
        ("a,label\n1,x\n2,x\n1,y\n", [], "class y has 1 row"),
        ("1,2\n1,x\n", [], "begins with numbers; its first line should be the names of the columns"),
    ],
)
def test_a_table_that_cannot_become_an_experiment_gets_a_sentence(
    tmp_path: Path, text: str, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    ended = fcil("new", "mine", "--data", tmp_path / "t.csv", "--out", tmp_path / "mine.toml", *arguments)
    assert ended.returncode == 2
    assert re.search(sentence, ended.stderr), ended.stderr
    assert not (tmp_path / "mine.toml").exists()
