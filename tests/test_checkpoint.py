from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fcil.checkpoint as checkpoint_module
from fcil.checkpoint import (
    FILE,
    PART,
    Checkpoint,
    dump_json,
    has_checkpoint,
    load_checkpoint,
    load_clients,
    machine_facts,
    save_checkpoint,
    write_atomically,
)
from fcil.config import Config, parse_config
from fcil.data.memory import Memory
from fcil.errors import CheckpointError
from fcil.experiment import Run, read_summary
from fcil.federation.catalogue import Catalogue
from fcil.federation.rounds import FederationState
from fcil.federation.traffic import Ledger
from fcil.methods.rehearsal import ClientState
from fcil.methods.server import ServerState
from fcil.results.records import read_records
from fcil.wire import encode, model_digest

TINY = {
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
    "method": {"name": "icarl"},
}


def tiny(**changes: Any) -> Config:
    return parse_config({**TINY, **changes})


def refuse(*_: object) -> NoReturn:
    raise OSError("no space left on device")


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def half_done(tmp_path: Path) -> Path:
    """Return the directory of a run that stopped after the first of its two rounds."""
    folder = tmp_path / "run"
    with Run.start(tiny(), folder) as run:
        next(run.rounds())
    return folder


def test_a_written_file_has_its_bytes_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_write_that_fails_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(failing, refuse)
        with pytest.raises(OSError, match="no space"):
            write_atomically(path, b"new, and much longer")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_file_reaches_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noting(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            steps.append(name)
            function(*arguments)

        return noted

    monkeypatch.setattr(os, "fsync", noting("fsync", fsync))
    monkeypatch.setattr(os, "replace", noting("replace", replace))
    write_atomically(tmp_path / "result.json", b"data")
    assert steps == ["fsync", "replace", "fsync"]


def some_checkpoint(round: int = 3) -> Checkpoint:
    state = FederationState(
        round=round,
        model={"head.weight": torch.rand(2, 4)},
        catalogue=Catalogue((4, 7), (2,), 1),
        server=ServerState(previous={"head.bias": torch.rand(2)}),
        proxy=None,
        waiting=(9,),
        ledger=Ledger(("digest",), torch.tensor([[0, -1, -1]], dtype=torch.int32)),
    )
    entropy = torch.tensor([0.5, float("nan")], dtype=torch.float64)
    return Checkpoint('{"seed": 1}', "digest", machine_facts(1, "cpu"), state, entropy)


def client_state(*samples: int) -> ClientState:
    return ClientState(torch.tensor(samples), torch.tensor([5]), Memory((4,), (torch.tensor([8]),)), (4,))


def test_a_checkpoint_reads_back_to_the_same_bytes(tmp_path: Path) -> None:
    states = {0: client_state(1, 2), 3: ClientState()}
    written = save_checkpoint(tmp_path, some_checkpoint(), states, {0, 3})
    read = load_checkpoint(tmp_path)
    assert encode(read) == encode(written)
    assert read.federation.catalogue == Catalogue((4, 7), (2,), 1)
    found = load_clients(tmp_path, read)
    assert {client: encode(state) for client, state in found.items()} == {
        client: encode(state) for client, state in states.items()
    }


def part_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{PART}*"))


def test_a_round_writes_the_states_it_changed_and_nothing_more(tmp_path: Path) -> None:
    states = {client: client_state(client) for client in range(8)}
    first = save_checkpoint(tmp_path, some_checkpoint(1), states, set(states))
    states[2] = client_state(99)
    second = save_checkpoint(tmp_path, replace(first, federation=some_checkpoint(2).federation), states, {2})
    assert (second.parts, second.part_sizes) == (("clients-000001.fcil", "clients-000002.fcil"), (8, 1))
    third = save_checkpoint(tmp_path, replace(second, federation=some_checkpoint(3).federation), states, set())
    assert part_names(tmp_path) == list(third.parts) == list(second.parts)
    found = load_clients(tmp_path, load_checkpoint(tmp_path))
    assert {client: state.latest.tolist() for client, state in found.items()} == {  # type: ignore[attr-defined]
        client: [99 if client == 2 else client] for client in range(8)
    }


@settings(max_examples=20)
@given(st.lists(st.sets(st.integers(0, 5)), max_size=12))
def test_the_parts_stand_for_the_newest_states_and_stay_in_proportion(
    tmp_path_factory: pytest.TempPathFactory, changes: list[set[int]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    checkpoint, states = some_checkpoint(0), {}
    for number, changed in enumerate(changes, start=1):
        states.update({client: client_state(number, client) for client in changed})
        checkpoint = replace(checkpoint, federation=some_checkpoint(number).federation)
        checkpoint = save_checkpoint(folder, checkpoint, states, changed)
        read = load_checkpoint(folder)
        assert part_names(folder) == list(read.parts)
        assert sum(read.part_sizes) <= 2 * len(states)
        found = load_clients(folder, read)
        assert {client: encode(state) for client, state in found.items()} == {
            client: encode(state) for client, state in states.items()
        }


@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("before", [1, 2])  # so that the next part adds to the former ones, or replaces them all
def test_a_kill_before_any_write_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, written: int
) -> None:
    states = {client: client_state(1) for client in range(3)}
    kept = some_checkpoint(0)
    for played in range(1, before + 1):
        state = some_checkpoint(played).federation
        kept = save_checkpoint(tmp_path, replace(kept, federation=state), states, set(states))
    newer, honest, writes = {**states, 0: client_state(7)}, checkpoint_module.write_atomically, iter(range(written))

    def dies(path: Path, data: bytes) -> None:
        if next(writes, None) is None:
            raise KeyboardInterrupt
        honest(path, data)

    monkeypatch.setattr(checkpoint_module, "write_atomically", dies)
    with pytest.raises(KeyboardInterrupt) if written < 2 else nullcontext():
        save_checkpoint(tmp_path, replace(kept, federation=some_checkpoint(9).federation), newer, {0})
    found = load_checkpoint(tmp_path)
    assert found.federation.round == (9 if written == 2 else before)
    assert len(found.parts) == (1 if before == 2 and written == 2 else before + (written == 2))
    expected = newer if written == 2 else states
    assert {client: encode(state) for client, state in load_clients(tmp_path, found).items()} == {
        client: encode(state) for client, state in expected.items()
    }


def test_a_missing_or_damaged_part_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, some_checkpoint(), {0: client_state(1)}, {0})
    path = tmp_path / "clients-000003.fcil"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=f"{path} cannot be read: truncated"):
        load_clients(tmp_path, load_checkpoint(tmp_path))
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
        load_clients(tmp_path, load_checkpoint(tmp_path))


def test_a_part_file_is_not_taken_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(tmp_path, some_checkpoint(), {}, set())
    assert not has_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=f"{tmp_path} holds no {FILE}"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: b"", lambda data: b"PK" + data[2:]])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    save_checkpoint(tmp_path, some_checkpoint(), {}, set())
    path = tmp_path / FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
        load_checkpoint(tmp_path)


def test_the_machine_is_its_threads_device_torch_and_processor() -> None:
    assert machine_facts(3, "cpu")["threads"] == "3"
    assert machine_facts(1, "cpu")["torch"] == torch.__version__
    assert set(machine_facts(1, "cpu")) == {"threads", "device", "torch", "processor"}


def test_json_keeps_the_order_of_its_keys_and_refuses_what_is_no_number() -> None:
    assert dump_json({"b": 1, "a": [2]}) == b'{\n  "b": 1,\n  "a": [\n    2\n  ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"loss": float("nan")})


def test_a_directory_that_holds_this_run_is_not_started_again(half_done: Path) -> None:
    before = {path.name: path.read_bytes() for path in half_done.iterdir()}
    with pytest.raises(CheckpointError, match=r"holds this run already.*fcil resume"):
        Run.start(tiny(), half_done)
    assert {path.name: path.read_bytes() for path in half_done.iterdir()} == before


def test_a_directory_that_holds_another_run_is_refused_with_the_difference(half_done: Path) -> None:
    with pytest.raises(CheckpointError, match=r"another run \(seed \(4 there, 5 here\)\)"):
        Run.start(tiny(seed=5), half_done)


def test_resuming_ends_where_the_whole_run_ends(half_done: Path, tmp_path: Path) -> None:
    with Run.start(tiny(), tmp_path / "whole") as whole:
        list(whole.rounds())
        expected = whole.finish()
    with Run.resume(half_done) as resumed:
        assert resumed.warnings == []
        assert resumed.state.round == 1
        assert [record.round for record in resumed.rounds()] == [1]
        assert resumed.finished
        found = resumed.finish()
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}
    assert model_digest(resumed.state.model) == model_digest(whole.state.model)
    assert (half_done / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert read_summary(half_done)[0] == found


def test_the_entropies_measured_last_are_there_after_a_resume(tmp_path: Path) -> None:
    with Run.start(tiny(), tmp_path / "run") as run:
        next(run.rounds())
    assert np.isfinite(run.store.entropy).any()
    with Run.resume(tmp_path / "run") as resumed:
        np.testing.assert_array_equal(resumed.store.entropy, run.store.entropy)


def test_records_beyond_the_checkpoint_are_dropped(half_done: Path) -> None:
    path = half_done / "records.jsonl"
    (line,) = path.read_text().splitlines()
    later = json.dumps({**json.loads(line), "round": 1})
    path.write_text(f"{line}\n{later}\n{later[:50]}")
    with Run.resume(half_done):
        assert [record["round"] for record in read_records(half_done)] == [0]


def test_another_configuration_is_refused_by_its_keys(half_done: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Run.resume(half_done, ["scenario.memory=9", "train.learning_rate=0.2"])
    message = str(caught.value)
    assert "scenario.memory (4 there, 9 here)" in message
    assert "train.learning_rate (0.1 there, 0.2 here)" in message
    assert "seed" not in message


def test_an_edited_configuration_file_is_refused_by_its_keys(half_done: Path) -> None:
    path = half_done / "config.json"
    document = json.loads(path.read_text())
    document["scenario"]["participants"] = 1
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"scenario\.participants \(2 there, 1 here\)"):
        Run.resume(half_done)


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
    from fcil.data.sources import SOURCES, digits

    def smudged() -> Any:
        source = digits.load_digits()
        source.train.images[0, 0, 0, 0] ^= 1
        return source

    monkeypatch.setitem(SOURCES, "digits", smudged)
    with pytest.raises(CheckpointError, match="the data set digits is not the one the run began with"):
        Run.resume(half_done)


@pytest.mark.parametrize("missing", ["config.json", FILE])
def test_a_directory_without_a_run_is_named(half_done: Path, missing: str) -> None:
    (half_done / missing).unlink()
    with pytest.raises(CheckpointError, match=f"{half_done}.*{missing}|{half_done} holds no {missing}"):
        Run.resume(half_done)


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


def test_a_resume_that_is_refused_lets_go_of_the_directory(half_done: Path) -> None:
    path = half_done / "records.jsonl"
    whole = path.read_text()
    path.write_text("nonsense\n" + whole)
    with pytest.raises(CheckpointError, match=r"records\.jsonl, line 1"):
        Run.resume(half_done)
    path.write_text(whole)
    with Run.resume(half_done) as run:
        assert run.state.round == 1


def test_a_kill_at_any_write_of_a_round_leaves_a_run_that_can_be_resumed(
    half_done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, Run.resume(half_done) as run:
        patch.setattr("os.replace", refuse)
        with pytest.raises(OSError, match="no space"):
            list(run.rounds())
    assert [record["round"] for record in read_records(half_done)] == [0, 1]
    with Run.resume(half_done) as resumed:
        assert resumed.state.round == 1
        assert [record.round for record in resumed.rounds()] == [1]
    assert [record["round"] for record in read_records(half_done)] == [0, 1]


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
    monkeypatch.setattr("fcil.experiment.default_workers", lambda device: 2)
    with Run.start(tiny(**changes), tmp_path / "run") as run:
        assert type(run.engine).__name__ == {"serial": "SerialEngine", "processes": "ProcessEngine"}[engine]
