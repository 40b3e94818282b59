"""A site's files: the same after a restart at any time, and within their limits."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from fcil.core.errors import DamagedError, FederationError, FileError
from fcil.core.messages import ModelParcel, encode, model_digest
from fcil.deployment.party_store import ANSWER, MODELS, MOST_PARCELS, STAMPS, DiskStore
from fcil.federation.client import MODELS_HELD, Stamped
from fcil.methods.client import ClientState


def parcel(number: int) -> ModelParcel:
    model = {"weight": torch.full((2, 2), float(number))}
    return ModelParcel(model_digest(model), model)


PARCELS = [parcel(number) for number in range(6)]
NAMES = [one.digest for one in PARCELS]


def stamped(round: int) -> Stamped:
    return Stamped(round, ClientState(latest=torch.arange(round)), round / 7)


def files(store: DiskStore) -> set[str]:
    return {path.stem for path in (store.folder / MODELS).iterdir()}


def test_it_keeps_the_state_of_two_rounds_over_a_restart(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "state")
    assert store.before(0) is None
    for number in range(3):
        store.keep(stamped(number))
    for kept in (store, DiskStore(tmp_path / "state")):
        for asked, found in ((3, 2), (2, 1)):
            before = kept.before(asked)
            assert before is not None
            assert encode(before) == encode(stamped(found))
        with pytest.raises(FederationError, match="asks for round 2, but this site has gone on to round 3"):
            kept.before(1)


def test_samples_are_taken_back_in_later_rounds_and_a_round_is_repeated_as_it_was(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.withdraw(torch.tensor([7]))
    store.keep(stamped(3))
    store.withdraw(torch.tensor([1, 2]))
    store.keep(stamped(4))
    for kept in (store, DiskStore(tmp_path)):
        assert [kept.withdrawn(number).tolist() for number in (0, 3, 4, 5)] == [[7], [7], [7, 1, 2], [7, 1, 2]]


def test_a_round_played_again_overrules_what_it_left_before(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.keep(stamped(0))
    store.keep(stamped(1))
    again = Stamped(1, ClientState(latest=torch.tensor([9])))
    store.keep(again)
    latest, before = DiskStore(tmp_path).before(2), DiskStore(tmp_path).before(1)
    assert latest is not None
    assert before is not None
    assert (encode(latest), encode(before)) == (encode(again), encode(stamped(0)))


def test_models_are_kept_in_the_order_of_their_use_and_others_removed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    for one in PARCELS[:4]:
        store.receive(one)
    assert store.lacks(NAMES[:5]) == (NAMES[4],)
    store.use(NAMES[2:0:-1])
    assert store.held == (NAMES[2], NAMES[1], NAMES[0])
    assert files(store) == set(store.held)
    store.use(NAMES[:3])
    store.receive(PARCELS[5])
    store.use([NAMES[5], NAMES[2], NAMES[0], NAMES[1]])
    assert len(store.held) == 4 > MODELS_HELD, "more where a broadcast needs more at once"
    assert DiskStore(tmp_path).held == store.held


def test_a_model_that_was_received_and_never_used_is_forgotten_by_a_restart(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.receive(PARCELS[0])
    store.use(NAMES[:1])
    store.receive(PARCELS[1])
    assert store.held == tuple(NAMES[:2])
    again = DiskStore(tmp_path)
    assert again.held == (NAMES[0],)
    assert files(again) == {NAMES[0]}


def test_models_that_no_round_uses_do_not_add_up(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.receive(PARCELS[0])
    store.use(NAMES[:1])
    many = [parcel(number) for number in range(10, 10 + 2 * MOST_PARCELS)]
    for one in many:
        store.receive(one)
    newest = [one.digest for one in many[-MOST_PARCELS:]]
    assert store.held == (NAMES[0], *newest), "what is in use stays"
    assert files(store) == set(store.held)
    assert set(store._cache) == set(store.held), "nor in memory"
    store.use(newest[:MODELS_HELD])
    assert files(store) == set(newest[:MODELS_HELD])


def test_half_of_a_file_that_a_kill_has_left_is_removed(tmp_path: Path) -> None:
    DiskStore(tmp_path)
    left = [tmp_path / MODELS / f".{NAMES[0]}.fcil.part", tmp_path / f".{STAMPS}.part"]
    for path in left:
        path.write_bytes(b"half of")
    DiskStore(tmp_path)
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_model_that_was_lost_is_asked_for_again(tmp_path: Path, how: str) -> None:
    DiskStore(tmp_path).receive(PARCELS[0])
    store = DiskStore(tmp_path)
    store.receive(PARCELS[0])
    store.use(NAMES[:1])
    store = DiskStore(tmp_path)
    path = tmp_path / MODELS / f"{NAMES[0]}.fcil"
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match="is missing or damaged; the next request asks the server for it"):
        store.model(NAMES[0])
    assert store.lacks(NAMES[:1]) == (NAMES[0],)
    store.receive(PARCELS[0])
    store.use(NAMES[:1])
    assert torch.equal(DiskStore(tmp_path).model(NAMES[0])["weight"], PARCELS[0].model["weight"])


def test_the_last_answer_is_given_to_its_request_alone(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    assert store.answered(b"first") is None
    store.answer(b"first", b"\0one")
    store.answer(b"second", b"\0two")
    for kept in (store, DiskStore(tmp_path)):
        assert kept.answered(b"second") == b"\0two"
        assert kept.answered(b"first") is None


@pytest.mark.parametrize("name", [STAMPS, ANSWER])
def test_damage_is_told_and_not_played_on(tmp_path: Path, name: str) -> None:
    store = DiskStore(tmp_path)
    store.keep(stamped(0))
    store.answer(b"request", b"answer")
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedError, match=name):
        DiskStore(tmp_path)


def test_a_file_in_the_place_of_its_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(FileError, match="state/models cannot be made a folder"):
        DiskStore(tmp_path / "state")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), st.integers(0, 2)),
        st.tuples(st.just("receive"), st.integers(0, 5)),
        st.tuples(st.just("use"), st.lists(st.integers(0, 5), max_size=4, unique=True)),
        st.tuples(st.just("answer"), st.integers(0, 3)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=14,
)


@examples(25)
@given(steps)
def test_whatever_is_done_in_whatever_order_it_holds_what_it_says_it_holds(taken: list[tuple[str, object]]) -> None:
    """The reference is a plain model of the store: two states, a list of digests by use, and the last answer."""
    with tempfile.TemporaryDirectory() as place:
        store = DiskStore(Path(place))
        states: list[int] = []
        used: list[str] = []
        fresh: list[str] = []
        answer: int | None = None
        for what, value in taken:
            if what == "keep":
                assert isinstance(value, int)
                number = (states[-1] if states else 0) + value  # 0: the latest round again
                store.keep(stamped(number))
                states = [*[one for one in states if one < number][-1:], number]
            elif what == "receive":
                assert isinstance(value, int)
                if NAMES[value] not in (*used, *fresh):
                    store.receive(PARCELS[value])
                    fresh.append(NAMES[value])
            elif what == "use":
                assert isinstance(value, list)
                held = [NAMES[one] for one in value if NAMES[one] in (*used, *fresh)]
                store.use(held)
                used = list(dict.fromkeys((*held, *used, *fresh)))[: max(MODELS_HELD, len(held))]
                fresh = []
            elif what == "answer":
                assert isinstance(value, int)
                store.answer(b"request %d" % value, b"answer %d" % value)
                answer = value
            else:
                store, fresh = DiskStore(Path(place)), []
            assert store.held == (*used, *fresh)
            assert files(store) == set(store.held)
            for digest in store.held:
                assert model_digest(store.model(digest)) == digest
            for number in range(4):
                wanted = b"answer %d" % number if number == answer else None
                assert store.answered(b"request %d" % number) == wanted
            for number, kept in zip((9, states[-1] if states else 9), reversed(states), strict=False):
                before = store.before(number)
                assert before is not None
                assert encode(before) == encode(stamped(kept))
