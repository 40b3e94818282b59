"""Side files of a run: bound by digest, written again after a kill, and no loss to anything else when lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from support.pages import SMALL, small_run

from fcil.experiment.run import Run, read_records
from fcil.experiment.side_files import CONFUSION, MOST_BYTES, PROTOTYPES, fitting, read_attached
from fcil.experiment.timings import FILE as TIMINGS_FILE
from fcil.experiment.timings import append_timing, read_timings, trim_timings
from fcil.federation.diagnostics import Confusion, PrototypeComparison, PrototypeComparisons
from fcil.reporting.load_runs import run_facts
from fcil.reporting.page.costs import PHASES


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("attached") / "run")


@pytest.fixture
def whole(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def side_files(folder: Path) -> dict[str, bytes]:
    names = [path.name for kind in (CONFUSION, PROTOTYPES) for path in folder.glob(f"{kind}-*.fcil")]
    return {name: (folder / name).read_bytes() for name in names}


def test_a_task_leaves_a_confusion_matrix_that_its_record_agrees_with(whole: Path) -> None:
    run = run_facts(whole)
    assert sorted(run.confusions) == [2, 4]
    for number, found in run.confusions.items():
        record = run.records[number - 1]
        images = [total for _, total in record.per_class.values()]
        assert found.counts.sum(1).tolist() == images
        assert found.counts.diagonal().tolist() == [right for right, _ in record.per_class.values()]
        assert sum(record.correct) == int(found.counts.diagonal().sum())
        assert list(found.classes) == list(record.per_class)
    assert run.class_names == {"0": "0", "1": "1", "2": "2", "3": "3"}
    assert run.lost == ()


def test_prototypes_are_kept_once_per_task_and_as_many_as_asked_for(whole: Path, tmp_path: Path) -> None:
    run = run_facts(whole)
    tasks = [run.records[number - 1].task for number in run.prototypes]
    assert tasks == sorted(set(tasks))
    for found in run.prototypes.values():
        assert 1 <= len(found.items) <= 4
        for item in found.items:
            assert item.original.shape == (1, 8, 8)
            assert item.to_perturbed > 0
            assert item.label in run.class_names
    none = small_run(tmp_path / "none", run={"prototypes": 0})
    assert list(none.glob("prototypes-*")) == []
    assert (none / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_records_tell_who_was_where_and_what_each_client_measured(whole: Path) -> None:
    records, _ = read_records(whole)
    assert records[0].members == {"S_o": [], "S_b": [], "S_n": [0, 1, 2]}
    assert records[1].members is None
    assert records[2].members is not None
    assert {group: len(found) for group, found in records[2].members.items()} == records[2].groups
    for record in records:
        known = list(record.entropies.values())
        assert record.entropy == pytest.approx(sum(known) / len(known), abs=1e-3)
        assert len(record.model) == 32
    assert records[1].teachers == {}
    assert set(records[3].teachers) <= {"current", "last"}
    assert records[3].teachers


@pytest.mark.parametrize("cut", [None, 10])
def test_a_run_whose_side_files_a_kill_cut_is_resumed_to_the_same_bytes(
    whole: Path, tmp_path: Path, cut: int | None
) -> None:
    folder = small_run(tmp_path / "half", rounds=2)
    for name in (f"{CONFUSION}-000004.fcil", f"{PROTOTYPES}-000003.fcil", f".{CONFUSION}-000004.fcil.part"):
        (folder / name).write_bytes(
            b"" if cut is None else (whole / name.strip(".").removesuffix(".part")).read_bytes()[:cut]
        )
    with (folder / TIMINGS_FILE).open("ab") as file:
        file.write(b'{"round": 2, "train": 0.1}\n{"round": 3, "pl')
    with Run.resume(folder) as run:
        list(run.rounds())
        run.finish()
    assert side_files(folder) == side_files(whole)
    assert [path.name for path in folder.glob(".*.part")] == []
    assert list(read_timings(folder, 4)) == [1, 2, 3, 4]
    assert (folder / TIMINGS_FILE).read_bytes().count(b"\n") == 4
    for name in ("model.safetensors",):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("damage", ["missing", "cut", "another"])
def test_a_side_file_that_is_lost_costs_its_section_alone(whole: Path, damage: str) -> None:
    path = whole / f"{CONFUSION}-000004.fcil"
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    else:
        shutil.copy(whole / f"{CONFUSION}-000002.fcil", path)
    run = run_facts(whole)
    assert sorted(run.confusions) == [2]
    (sentence,) = run.lost
    assert str(path) in sentence
    with Run.resume(whole) as resumed:
        assert resumed.warnings == []


def test_a_side_file_with_another_message_is_lost_too(whole: Path) -> None:
    records, _ = read_records(whole)
    found, lost = read_attached(whole, records, CONFUSION, PrototypeComparisons)
    assert (found, len(lost)) == ({}, 2)


def test_a_confusion_matrix_has_a_row_and_a_name_per_class() -> None:
    counts = torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="2 classes with 1 names"):
        Confusion(("a", "b"), ("A",), counts)


def test_prototypes_take_up_a_bounded_room() -> None:
    image = torch.zeros(3, 300, 300, dtype=torch.uint8)
    many = PrototypeComparisons((PrototypeComparison("0", image, image, image, 1.0, 1.0),) * 9)
    kept = fitting(many).items
    assert len(kept) == MOST_BYTES // (9 * 300 * 300)


def test_timings_survive_nonsense(tmp_path: Path) -> None:
    append_timing(tmp_path, 1, {"train": 1.0})
    with (tmp_path / TIMINGS_FILE).open("ab") as file:
        for line in (
            b"nonsense",
            b"[1]",
            b'{"round": true}',
            b'{"round": 1, "train": -1}',
            b'{"round": 1, "train": "x"}',
        ):
            file.write(line + b"\n")
        file.write(b'{"round": 1, "train": NaN}\n{"round": 1, "train": 1e400}\n\xff\n{"round": 2, "pl')
    assert read_timings(tmp_path, 9) == {1: {"train": 1.0}}
    trim_timings(tmp_path, 9)
    append_timing(tmp_path, 2, {"train": 2.0, "proxy": 0.5})
    assert read_timings(tmp_path, 9) == {1: {"train": 1.0}, 2: {"train": 2.0, "proxy": 0.5}}
    assert read_timings(tmp_path, 1) == {1: {"train": 1.0}}
    assert [json.loads(line)["round"] for line in (tmp_path / TIMINGS_FILE).read_text().splitlines()] == [1, 2]


def test_no_timings_are_no_error(tmp_path: Path) -> None:
    trim_timings(tmp_path, 3)
    assert read_timings(tmp_path, 3) == {}
    assert list(tmp_path.iterdir()) == []


def test_seconds_of_phases_add_up_to_the_round(whole: Path) -> None:
    run = run_facts(whole)
    assert SMALL["method"]["name"] == run.summary["method"]
    for record in run.records:
        phases = run.timings[record.round]
        assert {"train", "entropies", "encoding", "saving"} <= set(phases) <= set(PHASES)
        within = sum(value for name, value in phases.items() if name not in {"evaluate", "encoding", "saving"})
        assert within <= record.seconds + 0.01
