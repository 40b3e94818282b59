"""Files of runs, read and shown by a program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.beasts import CONFIG, samples

import fcil
from fcil.core.errors import ConfigError, DataError
from fcil.experiment.result_file import write_kept


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fcil.run(CONFIG, data=samples(), out=tmp_path_factory.mktemp("read") / "run").folder


def test_a_run_is_read_from_its_directory_or_from_what_was_kept(run: Path, tmp_path: Path) -> None:
    facts = fcil.load_run(run)
    assert isinstance(facts, fcil.RunFacts)
    assert [record.classes for record in facts.records] == [2, 4]
    assert facts.config["method"]["name"] == "icarl"
    (first, last) = facts.confusions.values()
    assert (first.names, last.names) == (("ant", "bee"), ("ant", "bee", "cow", "dog"))
    right = sum(right for right, _ in facts.records[-1].per_class.values())
    assert int(last.counts.diagonal().sum()) == right == sum(facts.records[-1].correct)
    write_kept(tmp_path / "kept.json", facts.config, facts.summary, {})
    assert fcil.load_run(str(tmp_path / "kept.json")).summary == facts.summary


def test_several_runs_are_not_one(run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(run, tmp_path / name)
    with pytest.raises(ConfigError, match="holds 2 runs, a, b; name one of them"):
        fcil.load_run(tmp_path)
    with pytest.raises(ConfigError, match="does not exist; name the directory of a run"):
        fcil.load_run(tmp_path / "c")
    for wrong in ([str(tmp_path)], 3):
        with pytest.raises(ConfigError, match=r"places: found .*, should be paths, one by one: .* report\(\*paths\)"):
            fcil.report(wrong)  # type: ignore[arg-type]


def test_a_report_is_written_beside_a_run_or_where_it_is_wished(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    copy = shutil.copytree(run, tmp_path / "copy")
    assert fcil.report(copy) == tmp_path / "copy" / "report.html"
    both = fcil.report(run, str(copy), out=str(tmp_path / "both.html"), title="two beasts")
    assert both == tmp_path / "both.html"
    assert "<title>two beasts</title>" in both.read_text("utf-8")
    assert "<title>icarl, seed 3, python</title>" in (copy / "report.html").read_text("utf-8")


def test_figures_are_drawn_beside_a_run_or_where_they_are_wished(run: Path, tmp_path: Path) -> None:
    drawn = fcil.figures(run, out=tmp_path / "new" / "drawn")
    assert drawn == [tmp_path / "new" / "drawn" / f"curves-python.{form}" for form in ("png", "svg")]
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert [path.parent for path in fcil.figures(run)] == [run / "figures"] * 2


def test_nothing_is_written_beside_kept_results_unless_asked(run: Path, tmp_path: Path) -> None:
    facts = fcil.load_run(run)
    write_kept(tmp_path / "glfc-2021.json", facts.config, facts.summary, {})
    for show, word in ((fcil.report, "FILE"), (fcil.figures, "DIR")):
        for place in (tmp_path, tmp_path / "glfc-2021.json"):
            with pytest.raises(ConfigError, match=f"holds kept results, and nothing is written beside.*--out {word}"):
                show(place)
    assert [path.name for path in tmp_path.iterdir()] == ["glfc-2021.json"]
    assert fcil.report(tmp_path, out=tmp_path / "page.html").is_file()


def test_places_that_cannot_be_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for show in (fcil.report, fcil.figures):
        with pytest.raises(ConfigError, match="no place is named; name the directory of a run"):
            show()
    with pytest.raises(ConfigError, match="it is a directory; name a file"):
        fcil.report(run, out=tmp_path)
    with pytest.raises(ConfigError, match=r"out: .*records.jsonl: it is there and is no report"):
        fcil.report(run, out=run / "records.jsonl")
    with pytest.raises(ConfigError, match=r"out: .*page.html: the directory .* does not exist"):
        fcil.report(run, out=tmp_path / "no" / "page.html")
    with pytest.raises(ConfigError, match="it is a file; name a directory"):
        fcil.figures(run, out=tmp_path / "file")
    with pytest.raises(ConfigError, match=r"out: .*/inside: it cannot be made a directory .*Not a directory"):
        fcil.figures(run, out=tmp_path / "file" / "inside")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_model_is_loaded_from_its_run_or_its_file(run: Path, tmp_path: Path) -> None:
    images = [image for image, _ in samples()[:3]]
    for place in (run, str(run), run / "model.safetensors"):
        predictor = fcil.load_model(place)
        assert isinstance(predictor, fcil.Predictor)
        assert all(isinstance(found, fcil.Prediction) for found in predictor.predict(images))
    with pytest.raises(DataError, match=r"holds no model\.safetensors; name the directory of a run or a release"):
        fcil.load_model(tmp_path)
