from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

import fcil.experiment.checkpoint as checkpoint_module
from fcil.core.errors import CheckpointError, DataError, FileError
from fcil.core.files import read_json, write_json
from fcil.core.messages import Order, encode
from fcil.experiment.checkpoint import FILE, PREVIOUS, has_checkpoint, load_checkpoint, load_clients, load_proxy
from fcil.experiment.config import Config, parse_config
from fcil.experiment.run import Run, read_finished, read_summary
from fcil.methods.client import RehearsalClient

TINY: dict[str, Any] = {
    "seed": 4,
    "data": {"source": "digits", "samples_per_class": 4},
    "scenario": {
        "tasks": [2, 1],
        "rounds_per_task": 1,
        "initial_clients": 2,
        "joiners": 1,
        "participants": 2,
        "memory": 4,
    },
    "model": {"width": 2},
    "train": {"epochs": 1, "learning_rate": 0.1, "milestones": []},
    "method": {"name": "glfc", "rebuild_evaluations": 10, "rebuild_restarts": 0, "perturb_steps": 2},
}


def tiny(**changes: Any) -> Config:
    return parse_config({**TINY, **changes})


def refuse(*_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with Run.start(tiny(), folder) as run:
        next(run.rounds())
    return folder


@pytest.fixture
def half_done(stopped: Path, tmp_path: Path) -> Path:
    """Return the directory of a run that stopped after the first of its two rounds."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    with Run.start(tiny(), folder) as run:
        list(run.rounds())
        run.finish()
    return folder


@pytest.fixture
def whole(finished: Path, tmp_path: Path) -> Path:
    """Return a directory of the run that was never stopped."""
    return Path(shutil.copytree(finished, tmp_path / "whole"))


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what was written down about each round, but for the time that it took."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that a finished run leaves behind, but for the time that it took."""
    checkpoint = load_checkpoint(folder)
    proxy = load_proxy(folder, checkpoint)
    assert proxy is not None
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "summary": {**read_json(folder / "summary.json"), "seconds": None},
        "records": records(folder),
        "server": encode(checkpoint.server),
        "sites": encode(checkpoint.table),
        "states": {client: encode(state) for client, state in load_clients(folder, checkpoint).items()},
        "proxy": encode(proxy),
    }


def test_a_run_resumes_in_which_a_client_failed_in_its_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = RehearsalClient.round

    def failing(self: Any, state: Any, broadcast: Any, order: Order, *rest: Any) -> Any:
        if order.client == 0:
            raise RuntimeError("the disk of client 0 is full")
        return honest(self, state, broadcast, order, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(RehearsalClient, "round", failing)
        with Run.start(tiny(), tmp_path / "run") as run:
            assert [failure["client"] for failure in next(run.rounds()).failures] == [0]
    with Run.resume(tmp_path / "run") as run:
        assert [record.failures for record in run.rounds()] == [[]]


@pytest.mark.parametrize(("optimiser", "planned", "warned"), [("paper", 200, 1), ("paper", 1, 0), ("train", 200, 0)])
def test_a_schedule_for_longer_blocks_is_remarked_upon_where_it_is_used(
    tmp_path: Path, optimiser: str, planned: int, warned: int
) -> None:
    train = {**TINY["train"], "block_epochs": planned}
    with Run.start(tiny(train=train, method={"name": "icarl", "optimiser": optimiser}), tmp_path / "run") as run:
        assert [warning.split(":")[0] for warning in run.warnings] == ["train.block_epochs"] * warned


def test_a_directory_that_holds_this_run_is_not_started_again(half_done: Path) -> None:
    before = {path.name: path.read_bytes() for path in half_done.iterdir()}
    with pytest.raises(CheckpointError, match=r"holds this run already.*fcil resume"):
        Run.start(tiny(), half_done)
    assert {path.name: path.read_bytes() for path in half_done.iterdir()} == before


@pytest.mark.parametrize("changes", [{"run": {"engine": "processes", "evaluate": "round"}}, {"description": "mine"}])
def test_where_it_is_played_and_its_name_make_no_other_run(half_done: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="holds this run already"):
        Run.start(tiny(**changes), half_done)


def test_a_directory_that_holds_another_run_is_refused_with_the_difference(half_done: Path) -> None:
    with pytest.raises(CheckpointError, match=r"another run \(seed \(4 there, 5 here\)\)"):
        Run.start(tiny(seed=5), half_done)


def test_resuming_ends_where_the_whole_run_ends(half_done: Path, whole: Path) -> None:
    with Run.resume(half_done) as resumed:
        assert resumed.warnings == []
        assert resumed.state.round == 1
        assert [record.round for record in resumed.rounds()] == [2]
        assert resumed.finished
        found = resumed.finish()
    assert outcome(half_done) == outcome(whole)
    assert read_summary(half_done)[0] == found == read_finished(half_done)


def test_records_beyond_the_checkpoint_are_neither_shown_nor_kept(half_done: Path) -> None:
    path = half_done / "records.jsonl"
    (line,) = path.read_text().splitlines()
    later = json.dumps({**json.loads(line), "round": 2})
    before = read_summary(half_done)
    path.write_text(f"{line}\n{later}\n{later[:50]}")
    assert read_summary(half_done) == before
    with Run.resume(half_done) as run:
        assert run.warnings == []
        assert [record["round"] for record in records(half_done)] == [1]


def test_another_configuration_is_refused_by_its_keys(half_done: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Run.resume(half_done, ["scenario.memory=9", "train.learning_rate=0.2"])
    message = str(caught.value)
    assert "scenario.memory (4 there, 9 here)" in message
    assert "train.learning_rate (0.1 there, 0.2 here)" in message
    assert "seed" not in message
    with pytest.raises(CheckpointError, match=r"model\.weights \(none there, /some/weights\.pt here\)"):
        Run.resume(half_done, ["model.weights=/some/weights.pt"])


@pytest.mark.parametrize("document", [{}, [], {"seed": 4, "digest": "0"}])
def test_an_edited_configuration_file_is_refused(half_done: Path, document: Any) -> None:
    path = half_done / "config.json"
    path.write_text(json.dumps(document))
    for action in (Run.resume, read_summary):
        with pytest.raises(CheckpointError, match=f"{path} is damaged.*remove it, and `fcil resume {half_done}`"):
            action(half_done)


def test_a_sealed_configuration_of_another_run_is_refused_by_its_keys(half_done: Path) -> None:
    path = half_done / "config.json"
    document = read_json(path)
    document["scenario"]["participants"] = 1
    write_json(path, document)
    with pytest.raises(CheckpointError, match=r"scenario\.participants \(2 there, 1 here\)"):
        Run.resume(half_done)


def test_a_missing_configuration_is_written_anew_from_the_checkpoint(half_done: Path) -> None:
    path = half_done / "config.json"
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing; is .* a run's directory\?"):
        read_summary(half_done)
    with Run.resume(half_done) as run:
        assert run.warnings == [f"{path} is missing; it is written anew from the checkpoint"]
    assert path.read_bytes() == before


def test_how_it_is_run_may_change(half_done: Path) -> None:
    with Run.resume(half_done, ["run.evaluate=round"]) as run:
        assert run.config.run.evaluate == "round"
        assert run.warnings == []
        assert next(run.rounds()).correct


def test_other_threads_warn_that_bits_may_differ(half_done: Path) -> None:
    with Run.resume(half_done, ["run.threads=2"]) as run:
        (warning,) = run.warnings
    assert "not be bit-exact" in warning
    assert "threads 1 then, 2 now" in warning


def test_another_torch_or_processor_warns_as_well(half_done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module.torch, "__version__", "9.9")
    monkeypatch.setattr(checkpoint_module.platform, "machine", lambda: "abacus")
    with Run.resume(half_done) as run:
        (warning,) = run.warnings
    assert "9.9 now" in warning
    assert "abacus" in warning


def test_a_changed_data_set_is_refused(half_done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fcil.data.datasets import DATASETS, digits

    def smudged(_: Any) -> Any:
        source = digits.load_digits()
        source.train.images[0, 0, 0, 0] ^= 1
        return source

    monkeypatch.setitem(DATASETS._members, "digits", replace(DATASETS["digits"], build=smudged))
    with pytest.raises(CheckpointError, match="the data set digits is not the one the run began with"):
        Run.resume(half_done)


def test_a_directory_without_a_run_is_named_and_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path} holds no {FILE}"):
        Run.resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the directory's lock as another process would: through an open file of its own."""
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def test_a_run_holds_its_directory_until_it_ends(half_done: Path) -> None:
    with Run.resume(half_done), pytest.raises(BlockingIOError), held(half_done):
        pass
    with held(half_done):
        pass


def test_a_directory_in_use_cannot_be_resumed(half_done: Path) -> None:
    before = (half_done / "records.jsonl").read_bytes()
    with held(half_done), pytest.raises(CheckpointError, match="in use by another process"):
        Run.resume(half_done)
    assert (half_done / "records.jsonl").read_bytes() == before


def test_a_directory_in_use_cannot_be_started_in(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(CheckpointError, match="in use by another process"):
        Run.start(tiny(), tmp_path)
    assert not has_checkpoint(tmp_path)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def remove(path: Path, place: int) -> None:
    path.unlink()


def exchange(path: Path, place: int) -> None:
    """Put a whole file in a file's place that is another one's: the proxy's, or else that of clients."""
    names = ["proxy-000001.fcil", "clients-000001-0.fcil"]
    names.remove(path.name)
    shutil.copy(path.with_name(names[0]), path)


def files_of_states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*-0*.fcil"))


@pytest.mark.parametrize(
    ("name", "damage", "place"),
    [
        (FILE, flip, 100),
        (FILE, flip, -1),
        (FILE, remove, 0),
        ("clients-000001-0.fcil", flip, -1),
        ("clients-000001-0.fcil", remove, 0),
        ("clients-000001-0.fcil", exchange, 0),
        ("proxy-000001.fcil", flip, -1),
        ("proxy-000001.fcil", remove, 0),
        ("proxy-000001.fcil", exchange, 0),
        ("records.jsonl", flip, 20),
        ("records.jsonl", remove, 0),
    ],
)
def test_damage_to_the_last_round_costs_that_round_and_nothing_else(
    half_done: Path, whole: Path, name: str, damage: Callable[[Path, int], None], place: int
) -> None:
    damage(half_done / name, place)
    with Run.resume(half_done) as run:
        (warning,) = run.warnings
        assert str(half_done / name) in warning
        assert warning.endswith(f"continuing from {PREVIOUS}, after round 0")
        list(run.rounds())
        run.finish()
    assert outcome(half_done) == outcome(whole)
    assert files_of_states(half_done) == files_of_states(whole)
    with Run.resume(half_done) as again:
        assert again.warnings == []


def test_damage_to_both_checkpoints_is_told_and_changes_nothing(half_done: Path) -> None:
    for name in (FILE, PREVIOUS):
        flip(half_done / name, -1)
    before = {path.name: path.read_bytes() for path in half_done.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        Run.resume(half_done)
    message = str(caught.value)
    assert all(f"{half_done / name} is damaged" in message for name in (FILE, PREVIOUS))
    assert message.endswith("restore the files from a copy, or run again in another directory")
    with pytest.raises(CheckpointError, match=f"{half_done} holds a run, and {half_done / FILE} is damaged"):
        Run.start(tiny(), half_done)
    with pytest.raises(CheckpointError, match=f"{half_done / FILE} is damaged"):
        read_summary(half_done)
    assert {path.name: path.read_bytes() for path in half_done.iterdir()} == before


def test_records_that_neither_checkpoint_knows_are_told_by_resume_and_show(whole: Path) -> None:
    path = whole / "records.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    for content in (b"", second, first + first + second + second, b"{}\n[1]\n", b"\xff\xfe\n" * 2):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{path} is damaged"):
            read_summary(whole)
    path.write_bytes(second)
    with pytest.raises(CheckpointError, match=f"{whole} cannot be resumed: {path} is damaged"):
        Run.resume(whole)
    path.write_bytes(first + second)
    with Run.resume(whole) as run:  # nobody holds the directory
        assert run.finished


def test_a_full_disk_loses_the_round_that_did_not_fit_and_nothing_else(
    half_done: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {path.name: path.read_bytes() for path in half_done.iterdir() if path.name != "records.jsonl"}
    with monkeypatch.context() as patch, Run.resume(half_done) as run:
        patch.setattr("os.replace", refuse)
        with pytest.raises(FileError) as caught:
            list(run.rounds())
    message = str(caught.value)
    assert "cannot be written: No space left on device; the rounds before round 2 are kept" in message
    assert message.endswith(f"continue with: fcil resume {half_done}")
    assert {path.name: path.read_bytes() for path in half_done.iterdir() if path.name != "records.jsonl"} == kept
    with Run.resume(half_done) as resumed:
        assert resumed.warnings == []
        assert [record.round for record in resumed.rounds()] == [2]
        resumed.finish()
    assert outcome(half_done) == outcome(whole)


def test_a_start_that_finds_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.replace

    def full(source: Path, target: Path) -> None:
        refuse() if Path(target).name == FILE else honest(source, target)

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(FileError, match=f"{FILE} cannot be written: No space left on device"):
        Run.start(tiny(), tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [FILE, "records.jsonl", "config.json", "summary.json", "model.safetensors"])
def test_a_directory_in_a_file_s_place_gets_a_sentence(whole: Path, name: str) -> None:
    (whole / name).unlink()
    (whole / name).mkdir()
    said = f"{whole / name} cannot be (read|written): Is a directory"
    with pytest.raises(FileError, match=said), Run.resume(whole) as run:
        run.finish()


def test_a_name_that_is_too_long_is_refused_even_if_the_data_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"directory cannot be made: .*File name too long"):
        Run.start(tiny(), tmp_path / ("n" * 300), load=refuse)


# --- data that has moved ------------------------------------------------------------------------------------------


def write_data(path: Path, shade: int = 0) -> Path:
    images = np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8, 1) + np.uint8(shade)
    labels = np.arange(12) % 3
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return path


def test_a_run_follows_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "old.npz")
    folder = tmp_path / "run"
    with Run.start(tiny(data={"source": "npz", "path": "old.npz"}), folder) as run:
        next(run.rounds())
    assert read_json(folder / "config.json")["data"]["path"] == str(tmp_path / "old.npz")
    (tmp_path / "old.npz").rename(tmp_path / "new.npz")
    write_data(tmp_path / "other.npz", shade=1)
    with pytest.raises(DataError, match=r"old\.npz .*; if the data has moved, resume with the setting data\.path=NEW"):
        Run.resume(folder)
    with pytest.raises(CheckpointError, match=r"the data set .*other\.npz is not the one the run began with"):
        Run.resume(folder, ["data.path=other.npz"])
    assert read_json(folder / "config.json")["data"]["path"] == str(tmp_path / "old.npz")
    with Run.resume(folder, ["data.path=new.npz"]) as resumed:
        assert resumed.warnings == []
    monkeypatch.chdir(folder)
    with Run.resume(folder) as again:
        assert again.config.data.path == str(tmp_path / "new.npz")
        assert [record.round for record in again.rounds()] == [2]
    with pytest.raises(CheckpointError, match="holds this run already"):
        Run.start(tiny(data={"source": "npz", "path": "elsewhere.npz"}), folder)


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({}, "serial"),  # too little work for workers
        ({"model": {"width": 64}, "train": {"epochs": 200}}, "processes"),
        ({"model": {"width": 64}, "train": {"epochs": 200}, "run": {"workers": 1}}, "serial"),
        ({"model": {"width": 64}, "train": {"epochs": 200}, "run": {"engine": "serial"}}, "serial"),
    ],
)
def test_workers_are_used_where_they_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], engine: str
) -> None:
    monkeypatch.setattr("fcil.experiment.run.default_workers", lambda device: 2)
    with Run.start(tiny(**changes), tmp_path / "run") as run:
        assert type(run.engine).__name__ == {"serial": "SerialEngine", "processes": "ProcessEngine"}[engine]
