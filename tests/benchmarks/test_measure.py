from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import benchmarks.measure as bench_module
from benchmarks.__main__ import main
from benchmarks.common import objective, our_loop
from benchmarks.measure import Measurement, benchmarks, run_benchmark, summaries
from benchmarks.scale import serve
from fcil.core.errors import ConfigError
from fcil.core.messages import model_digest

ASKED = {
    "frozen",
    "transfer",
    "train",
    "round",
    "inversion",
    "infer",
    "overhead",
    "scale",
    "workers",
    "reference",
    "deployment",
    "strangers",
    "idle",
    "crowd",
    "speed",
    "masked",
}


def test_every_benchmark_is_found_and_says_what_it_measures() -> None:
    assert set(benchmarks()) == ASKED
    assert all(len(text) > 20 for text in summaries().values())


@pytest.mark.parametrize(
    ("ratio", "bound", "wanted", "holds"),
    [
        (0.96, 0.95, "at least", True),
        (0.94, 0.95, "at least", False),
        (0.09, 0.10, "at most", True),
        (0.11, 0.10, "at most", False),
        (3.0, None, "at least", None),
        (None, 2.0, "at least", None),
    ],
)
def test_a_bound_holds_on_its_own_side(ratio, bound, wanted, holds) -> None:  # type: ignore[no-untyped-def]
    measurement = Measurement("name", 1.0, 2.0, ratio, bound, wanted)
    assert measurement.holds is holds
    line = json.loads(measurement.line())
    assert (line["name"], line["ours"], line["reference"], line["ratio"]) == ("name", 1.0, 2.0, ratio)
    assert (line["bound"], line["holds"]) == (bound, holds)


def test_figures_are_cut_to_four_digits() -> None:
    line = json.loads(Measurement("name", 1.23456, None, None, details={"parts": [0.000123456, 7]}).line())
    assert (line["ours"], line["details"]) == (1.235, {"parts": [0.0001235, 7]})


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_the_server_of_the_benchmark_closes_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    serve(3, width=1)
    found = json.loads(capsys.readouterr().out.removeprefix("FOUND "))
    assert found["participants"] == 3
    assert 0 < found["model_mb"] < found["open_mb"] <= found["peak_mb"]


def test_the_training_benchmark_trains_a_copy_of_its_model() -> None:
    given = objective(classes=4, per_class=4, size=8)
    before = model_digest(given.model)
    our_loop(given)
    assert model_digest(given.model) == before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "benchmarks"
    made.mkdir()
    (made / "__init__.py").touch()  # as the real folder has one, which would win wherever it is on the path
    body = '"""A quick one."""\nfrom benchmarks.measure import Measurement\n\n\ndef measure() -> None:\n'
    (made / "quick.py").write_text(body + '    yield Measurement("quick", 2.0, 1.0, 2.0, BOUND)\n')
    (made / "__init__.py").touch()  # a package, so that it goes before ours wherever that is on the path
    (made / "helper.py").write_text('"""Not a benchmark."""\n')
    monkeypatch.setattr(bench_module, "FOLDER", made)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kept = bench_module.__name__  # the benchmark imports it
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks" and name != kept]:
        monkeypatch.delitem(sys.modules, name)
    return made


@pytest.mark.parametrize(("bound", "code"), [("1.5", 0), ("3.0", 1)])
def test_the_command_prints_json_and_fails_below_a_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bound: str, code: int
) -> None:
    quick = folder / "quick.py"
    quick.write_text(quick.read_text().replace("BOUND", bound))
    assert main(["--out", str(folder / "lines.jsonl")]) == code
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [(line["name"], line["ratio"], line["holds"]) for line in lines] == [("quick", 2.0, code == 0)]
    assert (folder / "lines.jsonl").read_text() == captured.out
    assert ("below their bounds: quick" in captured.err) == (code == 1)


def test_the_command_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert set(capsys.readouterr().out.split()) >= ASKED


def test_an_unknown_benchmark_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ConfigError, match="there is no benchmark 'sped'; there are crowd, deployment, frozen, idle, infer"
    ):
        list(run_benchmark("sped"))
    assert main(["sped"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no benchmark 'sped'")


def test_a_file_that_cannot_be_written_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", "/dev"]) == 2
    assert capsys.readouterr().err.startswith("error: --out /dev: cannot be written (/dev: Is a directory)")
