from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

import fcil.checkpoint as checkpoint_module
from fcil.checkpoint import (
    FILE,
    PART,
    PREVIOUS,
    Checkpoint,
    has_checkpoint,
    load_checkpoint,
    load_clients,
    machine_facts,
    require_checkpoint,
    save_checkpoint,
)
from fcil.data.memory import Memory
from fcil.errors import CheckpointError, DamagedError, FileError
from fcil.federation.catalogue import Catalogue
from fcil.federation.rounds import FederationState
from fcil.federation.traffic import Ledger
from fcil.files import write_sealed
from fcil.methods.rehearsal import ClientState
from fcil.methods.server import ServerState
from fcil.wire import Message, encode


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
    return Checkpoint('{"seed": 1}', "digest", machine_facts(1, "cpu"), state, entropy, "digest of no line")


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


def named(checkpoint: Checkpoint) -> list[str]:
    return [part.name for part in checkpoint.parts]


def encoded(states: dict[int, Message]) -> dict[int, bytes]:
    return {client: encode(state) for client, state in states.items()}


def test_a_round_writes_the_states_it_changed_and_nothing_more(tmp_path: Path) -> None:
    states = {client: client_state(client) for client in range(8)}
    first = save_checkpoint(tmp_path, some_checkpoint(1), states, set(states))
    states[2] = client_state(99)
    second = save_checkpoint(tmp_path, replace(first, federation=some_checkpoint(2).federation), states, {2})
    assert named(second) == ["clients-000001-0.fcil", "clients-000002-0.fcil"]
    assert [part.states for part in second.parts] == [8, 1]
    third = save_checkpoint(tmp_path, replace(second, federation=some_checkpoint(3).federation), states, set())
    assert part_names(tmp_path) == named(third) == named(second)
    found = load_clients(tmp_path, load_checkpoint(tmp_path))
    assert {client: state.latest.tolist() for client, state in found.items()} == {  # type: ignore[attr-defined]
        client: [99 if client == 2 else client] for client in range(8)
    }


@examples(10)
@given(st.lists(st.sets(st.integers(0, 4)), max_size=9))
def test_the_parts_stand_for_the_newest_states_and_those_before_and_stay_in_proportion(
    tmp_path_factory: pytest.TempPathFactory, changes: list[set[int]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    checkpoint, states = some_checkpoint(0), dict[int, Message]()
    for number, changed in enumerate(changes, start=1):
        before = encoded(states)
        states.update({client: client_state(number, client) for client in changed})
        checkpoint = replace(checkpoint, federation=some_checkpoint(number).federation)
        checkpoint = save_checkpoint(folder, checkpoint, states, changed)
        kept = [load_checkpoint(folder, name) for name in (FILE, PREVIOUS) if (folder / name).exists()]
        assert part_names(folder) == sorted({name for read in kept for name in named(read)})
        assert sum(part.states for part in kept[0].parts) <= 2 * len(states)
        assert [encoded(load_clients(folder, read)) for read in kept] == [encoded(states), before][: len(kept)]


@pytest.mark.parametrize(("limit", "sizes"), [(1 << 20, [5]), (2000, [2, 3]), (1, [1, 1, 1, 1, 1])])
def test_states_that_are_too_many_for_one_file_are_cut_into_several(
    tmp_path: Path, limit: int, sizes: list[int]
) -> None:
    states = {client: client_state(*range(client + 1)) for client in range(5)}
    save_checkpoint(tmp_path, some_checkpoint(), states, set(states), limit)
    read = load_checkpoint(tmp_path)
    assert [part.states for part in read.parts] == sizes
    assert part_names(tmp_path) == named(read) == [f"clients-000003-{number}.fcil" for number in range(len(sizes))]
    assert encoded(load_clients(tmp_path, read)) == encoded(states)


@pytest.mark.parametrize("dying", ["clients-", FILE])
def test_a_write_that_fails_leaves_both_checkpoints_whole_and_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: str
) -> None:
    states = {0: client_state(1), 1: client_state(2)}
    first = save_checkpoint(tmp_path, some_checkpoint(1), states, {0, 1})
    states[0] = client_state(3)
    second = save_checkpoint(tmp_path, replace(first, federation=some_checkpoint(2).federation), states, {0})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(path: Path, content: bytes, former: Path | None = None) -> str:
        if path.name.startswith(dying):
            raise FileError("No space left on device")
        return write_sealed(path, content, former)

    newer = {client: client_state(7) for client in states}
    monkeypatch.setattr(checkpoint_module, "write_sealed", fails)
    for changed in ({1}, {0, 1}):  # a part that adds, then one that replaces all
        with pytest.raises(FileError, match="No space"):
            save_checkpoint(tmp_path, replace(second, federation=some_checkpoint(3).federation), newer, changed)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_kill_before_the_new_name_is_given_leaves_the_former_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {0: client_state(1)}
    first = save_checkpoint(tmp_path, some_checkpoint(1), states, {0})
    replace_file = checkpoint_module.write_sealed.__globals__["os"].replace

    def dies(source: Path, target: Path) -> None:
        if target.name == FILE:
            raise KeyboardInterrupt
        replace_file(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", dies)
        save_checkpoint(tmp_path, replace(first, federation=some_checkpoint(2).federation), {0: client_state(9)}, {0})
    assert has_checkpoint(tmp_path)
    assert not (tmp_path / FILE).exists()
    former = load_checkpoint(tmp_path, PREVIOUS)
    assert encode(former) == encode(first)
    assert encoded(load_clients(tmp_path, former)) == encoded({0: client_state(1)})


def test_a_missing_damaged_or_foreign_part_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, some_checkpoint(), {0: client_state(1)}, {0})
    path = tmp_path / "clients-000003-0.fcil"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(DamagedError, match=f"{path} is damaged: its content does not match its digest"):
        load_clients(tmp_path, load_checkpoint(tmp_path))
    write_sealed(path, encode(checkpoint_module.ClientStates({"0": client_state(2)})))
    with pytest.raises(DamagedError, match=f"{path} is not the file that the checkpoint names"):
        load_clients(tmp_path, load_checkpoint(tmp_path))
    path.unlink()
    with pytest.raises(DamagedError, match=f"{path} is missing"):
        load_clients(tmp_path, load_checkpoint(tmp_path))


def refuse(*_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


def test_a_checkpoint_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(FileError, match="No space"):
            save_checkpoint(tmp_path, some_checkpoint(), {}, set())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match=f"{tmp_path} holds no {FILE}"):
        require_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-5],
        lambda data: b"",
        lambda data: b"PK" + data[2:],
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
    ids=["cut", "empty", "other", "bit of the header", "bit of a tensor"],
)
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    save_checkpoint(tmp_path, some_checkpoint(), {}, set())
    path = tmp_path / FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedError, match=f"{path} is damaged"):
        load_checkpoint(tmp_path)


def test_a_whole_file_that_is_no_checkpoint_of_this_version_is_not_called_damaged(tmp_path: Path) -> None:
    write_sealed(tmp_path / FILE, encode(client_state(1)))
    with pytest.raises(CheckpointError, match=r"cannot be read: a ClientState message where a Checkpoint was expected"):
        load_checkpoint(tmp_path)


def test_the_machine_is_its_threads_device_torch_and_processor() -> None:
    assert machine_facts(3, "cpu")["threads"] == "3"
    assert machine_facts(1, "cpu")["torch"] == torch.__version__
    assert set(machine_facts(1, "cpu")) == {"threads", "device", "torch", "processor"}
