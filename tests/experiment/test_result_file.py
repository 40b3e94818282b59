from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fcil.core.errors import DamagedError
from fcil.core.files import write_json
from fcil.experiment.result_file import read_kept, write_kept
from fcil.experiment.summary import Summary, summarise

CONFIG: dict[str, Any] = {"seed": 1, "data": {"source": "npz", "path": "/somewhere/data.npz"}}
MACHINE = {"torch": "2"}
MEASURED = {"accuracy": [50.0], "accuracy_matrix": [[50.0]], "classes_seen": [2], "average": 50.0, "last": 50.0}


def test_a_kept_run_reads_back_without_the_place_of_its_data(tmp_path: Path) -> None:
    summary: Summary = {**summarise([], "glfc", "fcil", 1), **MEASURED}  # type: ignore[typeddict-item]
    write_kept(tmp_path / "glfc-1.json", CONFIG, summary, MACHINE)
    kept = read_kept(tmp_path / "glfc-1.json")
    assert (kept.summary, kept.machine) == (summary, MACHINE)
    assert kept.config == {"seed": 1, "data": {"source": "npz", "path": None}}
    assert b"somewhere" not in (tmp_path / "glfc-1.json").read_bytes()


def test_a_changed_figure_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "glfc-1.json"
    write_kept(path, CONFIG, summarise([], "glfc", "fcil", 1), MACHINE)
    path.write_text(path.read_text().replace('"bytes_up": 0', '"bytes_up": 1'))
    with pytest.raises(DamagedError, match=f"{path} is damaged: its content does not match its digest"):
        read_kept(path)


@pytest.mark.parametrize(("key", "value"), [("average", "high"), ("bytes_up", 1.5), ("mood", 1), ("accuracy", [None])])
def test_a_summary_has_every_figure_of_its_type(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "glfc-1.json"
    summary = {**summarise([], "glfc", "fcil", 1), key: value}
    write_json(path, {"config": CONFIG, "summary": summary, "machine": MACHINE})
    with pytest.raises(DamagedError, match=rf"{path} does not hold the figures of a run: summary\.{key}"):
        read_kept(path)
