from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

import fcil.experiment.checkpoint as checkpoint_module
from fcil.core.errors import CheckpointError, DamagedError, FileError
from fcil.core.files import write_sealed
from fcil.core.messages import Message, encode
from fcil.data.exemplar_memory import Memory
from fcil.experiment.checkpoint import (
    FILE,
    PART,
    PREVIOUS,
    PROXY,
    Checkpoint,
    ClientStates,
    ProxyFile,
    load_checkpoint,
    load_clients,
    load_proxy,
    machine_facts,
    require_checkpoint,
    save_checkpoint,
)
from fcil.federation.class_catalogue import Catalogue
from fcil.federation.server import ServerState
from fcil.federation.simulated_clients import ClientsTable
from fcil.methods.client import ClientState
from fcil.methods.server import plain_server


def some_state(round: int) -> ServerState:
    return ServerState(
        round=round,
        model={"head.weight": torch.rand(2, 4)},
        catalogue=Catalogue(("4", "7"), (2,), 1),
        role_state=plain_server().init(),
        previous={"head.bias": torch.rand(2)},
        waiting=("9",),
    )


def some_checkpoint(round: int = 3) -> Checkpoint:
    table = ClientsTable(
        digests=("digest",),
        clients=torch.tensor([0, 3]),
        rounds=torch.tensor([2, 1]),
        entropy=torch.tensor([0.5, float("nan")], dtype=torch.float64),
        held=torch.tensor([[0, -1, -1], [-1, -1, -1]], dtype=torch.int32),
    )
    facts = machine_facts(1, "cpu")
    return Checkpoint('{"seed": 1}', "digest of no line", "digest", facts, some_state(round), table)


def at(checkpoint: Checkpoint, round: int) -> Checkpoint:
    """Return what would follow a checkpoint after some more rounds."""
    return replace(checkpoint, server=some_state(round))


def client_state(*samples: int) -> ClientState:
    return ClientState(torch.tensor(samples), torch.tensor([5]), Memory((4,), (torch.tensor([8]),)), (4,))


def test_a_checkpoint_reads_back_to_the_same_bytes(tmp_path: Path) -> None:
    states = {0: client_state(1, 2), 3: ClientState()}
    written = save_checkpoint(tmp_path, some_checkpoint(), states, {0, 3}, proxy=client_state(6))
    read = load_checkpoint(tmp_path)
    assert encode(read) == encode(written)
    assert read.proxy is not None
    assert read.proxy.name == "proxy-000003.fcil"
    assert read.server.catalogue == Catalogue(("4", "7"), (2,), 1)
    found = load_clients(tmp_path, read)
    assert encoded(found) == encoded(states)
    proxy = load_proxy(tmp_path, read)
    assert proxy is not None
    assert encode(proxy) == encode(client_state(6))


def test_data_of_a_program_is_continued_by_the_program() -> None:
    kept = some_checkpoint()
    assert kept.advice(Path("runs/x")) == "`fcil resume runs/x`"
    given_data = replace(kept, config='{"data": {"source": "python"}}')
    assert given_data.advice(Path("runs/x")) == "the same call of fcil.run, with resume=True,"


def test_the_proxy_s_state_is_nowhere_but_in_its_own_file(tmp_path: Path) -> None:
    secret = 0x5EC2E7_5EC2E7  # stands in the file as it is in memory
    save_checkpoint(tmp_path, some_checkpoint(), {0: client_state(1)}, {0}, proxy=client_state(secret))
    holds = [path.name for path in tmp_path.iterdir() if secret.to_bytes(8, "little") in path.read_bytes()]
    assert holds == ["proxy-000003.fcil"]


def test_a_run_without_a_proxy_has_no_file_of_it(tmp_path: Path) -> None:
    assert save_checkpoint(tmp_path, some_checkpoint(), {}, set()).proxy is None
    assert load_proxy(tmp_path, load_checkpoint(tmp_path)) is None
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def part_names(folder: Path) -> list[str]:
    return sorted(path.name for pattern in (PART, PROXY) for path in folder.glob(f"{pattern}*"))


def named(checkpoint: Checkpoint) -> list[str]:
    return [part.name for part in checkpoint.files]


def encoded(states: dict[int, Message]) -> dict[int, bytes]:
    return {client: encode(state) for client, state in states.items()}


def assert_holds(folder: Path, checkpoint: Checkpoint, states: dict[int, Message], proxy: Message) -> None:
    """Check that all states of a checkpoint can be read and are these."""
    assert encoded(load_clients(folder, checkpoint)) == encoded(states)
    found = load_proxy(folder, checkpoint)
    assert found is not None
    assert encode(found) == encode(proxy)


def test_a_round_writes_the_states_it_changed_and_nothing_more(tmp_path: Path) -> None:
    states = {client: client_state(client) for client in range(8)}
    first = save_checkpoint(tmp_path, some_checkpoint(1), states, set(states))
    states[2] = client_state(99)
    second = save_checkpoint(tmp_path, at(first, 2), states, {2})
    assert named(second) == ["clients-000001-0.fcil", "clients-000002-0.fcil"]
    assert [part.states for part in second.parts] == [8, 1]
    third = save_checkpoint(tmp_path, at(second, 3), states, set())
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
        before = dict(states)
        states.update({client: client_state(number, client) for client in changed})
        checkpoint = at(checkpoint, number)
        checkpoint = save_checkpoint(folder, checkpoint, states, changed, client_state(number))
        kept = [load_checkpoint(folder, name) for name in (FILE, PREVIOUS) if (folder / name).exists()]
        assert part_names(folder) == sorted({name for read in kept for name in named(read)})
        assert sum(part.states for part in kept[0].parts) <= 2 * len(states)
        assert len(kept) == min(number, 2)
        for read, held in zip(kept, (states, before), strict=False):
            assert_holds(folder, read, held, client_state(read.server.round))


@pytest.mark.parametrize(("limit", "sizes"), [(1 << 20, [5]), (2000, [2, 3]), (1, [1, 1, 1, 1, 1])])
def test_states_that_are_too_many_for_one_file_are_cut_into_several(
    tmp_path: Path, limit: int, sizes: list[int]
) -> None:
    states = {client: client_state(*range(client + 1)) for client in range(5)}
    save_checkpoint(tmp_path, some_checkpoint(), states, set(states), limit=limit)
    read = load_checkpoint(tmp_path)
    assert [part.states for part in read.parts] == sizes
    assert part_names(tmp_path) == named(read) == [f"clients-000003-{number}.fcil" for number in range(len(sizes))]
    assert encoded(load_clients(tmp_path, read)) == encoded(states)


@pytest.mark.parametrize("dying", [PART, PROXY, FILE])
def test_a_write_that_fails_leaves_both_checkpoints_whole_and_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: str
) -> None:
    states = {0: client_state(1), 1: client_state(2)}
    first = save_checkpoint(tmp_path, some_checkpoint(1), states, {0, 1}, client_state(1))
    states[0] = client_state(3)
    second = save_checkpoint(tmp_path, at(first, 2), states, {0}, client_state(2))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(path: Path, content: bytes, former: Path | None = None) -> str:
        if path.name.startswith(dying):
            raise FileError("No space left on device")
        return write_sealed(path, content, former)

    newer = {client: client_state(7) for client in states}
    monkeypatch.setattr(checkpoint_module, "write_sealed", fails)
    for changed in ({1}, {0, 1}):  # a part that adds, then one that replaces all
        with pytest.raises(FileError, match="No space"):
            save_checkpoint(tmp_path, at(second, 3), newer, changed, client_state(3))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_kill_before_any_write_or_removal_leaves_whole_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die before the first, the second, ... change of a name in the folder, until none is left to die before."""
    rename, unlink, happened = os.replace, Path.unlink, list[str]()
    states: list[dict[int, Message]] = [{0: client_state(number)} for number in range(5)]
    for last in count():
        folder = tmp_path / str(last)
        folder.mkdir()
        saved = some_checkpoint(0)
        for number in (1, 2, 3):
            saved = save_checkpoint(folder, at(saved, number), states[number], {0}, client_state(number))
        happened.clear()

        def change(name: str, last: int = last) -> None:
            if len(happened) == last:
                raise KeyboardInterrupt
            happened.append(name)

        def dying_rename(source: Path, target: Path) -> None:
            change(target.name)
            rename(source, target)

        def dying_unlink(path: Path, missing_ok: bool = False) -> None:
            change(f"no {path.name}")
            unlink(path, missing_ok)

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr("os.replace", dying_rename)
            patch.setattr(Path, "unlink", dying_unlink)
            save_checkpoint(folder, at(saved, 4), states[4], {0}, client_state(4))
        there = [name for name in (FILE, PREVIOUS) if (folder / name).exists()]
        assert there
        for name in there:
            read = load_checkpoint(folder, name)
            assert_holds(folder, read, states[read.server.round], client_state(read.server.round))
        if len(happened) < last:
            break
    assert happened[:4] == ["clients-000004-0.fcil", "proxy-000004.fcil", PREVIOUS, FILE]
    gone = ["clients-000001-0.fcil", "clients-000002-0.fcil", "proxy-000002.fcil"]
    assert sorted(happened[4:]) == [f"no {name}" for name in gone]


@pytest.mark.parametrize(("kind", "load"), [("clients-000003-0", load_clients), ("proxy-000003", load_proxy)])
def test_a_missing_damaged_or_foreign_file_of_states_is_named(
    tmp_path: Path, kind: str, load: Callable[[Path, Checkpoint], object]
) -> None:
    save_checkpoint(tmp_path, some_checkpoint(), {0: client_state(1)}, {0}, client_state(1))
    path = tmp_path / f"{kind}.fcil"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(DamagedError, match=f"{path} is damaged: its content does not match its digest"):
        load(tmp_path, load_checkpoint(tmp_path))
    for foreign in (ClientStates({"0": client_state(2)}), ProxyFile(client_state(2))):  # one of them of another kind
        write_sealed(path, encode(foreign))
        with pytest.raises(DamagedError, match=f"{path} is not the file that the checkpoint names"):
            load(tmp_path, load_checkpoint(tmp_path))
    path.unlink()
    with pytest.raises(DamagedError, match=f"{path} is missing"):
        load(tmp_path, load_checkpoint(tmp_path))


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
