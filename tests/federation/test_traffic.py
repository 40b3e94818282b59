from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fcil.federation.traffic import MODELS_HELD, Ledger, count
from fcil.methods.server import Teachers
from fcil.wire import Broadcast, ModelParcel, Moment, Reply, Report, encode

MOMENT = Moment(round=4, catalogue=(1, 2, 3), blocks=(2, 3), rounds_since_growth=0)
MODELS = {name: {"weight": torch.rand(size)} for name, size in (("global", 50), ("best", 30), ("former", 20))}
BROADCAST = Broadcast(MOMENT, "global", MODELS, Teachers(last="former"), Teachers(current="best"))


def parcel(name: str) -> int:
    return len(encode(ModelParcel(name, MODELS[name])))


def letter(extras: bool) -> int:
    extra = (BROADCAST.server, BROADCAST.proxy) if extras else (None, None)
    return len(encode(Broadcast(MOMENT, "global", {}, *extra)))


def test_a_participant_gets_every_model_and_a_bystander_the_global_one_without_extras() -> None:
    participant = count(BROADCAST, {0}, [0], [], Ledger()).down
    bystander = count(BROADCAST, set(), [0], [], Ledger()).down
    assert participant == letter(extras=True) + parcel("global") + parcel("best") + parcel("former")
    assert bystander == letter(extras=False) + parcel("global")
    assert letter(extras=False) < letter(extras=True)


def test_a_round_is_the_sum_over_its_clients() -> None:
    traffic = count(BROADCAST, {2, 5}, [1, 2, 5], [], Ledger())
    everything = parcel("global") + parcel("best") + parcel("former")
    assert traffic.down == 2 * (letter(extras=True) + everything) + letter(extras=False) + parcel("global")


def test_a_model_already_held_is_not_sent_again() -> None:
    first = count(BROADCAST, {0}, [0, 1], [], Ledger())
    again = count(BROADCAST, {0, 1}, [0, 1], [], first.ledger)
    assert again.down == 2 * letter(extras=True) + parcel("best") + parcel("former")
    third = count(BROADCAST, {0, 1}, [0, 1], [], again.ledger)
    assert third.down == 2 * letter(extras=True)


def ledger(held: dict[int, tuple[str, ...]]) -> Ledger:
    digests = tuple(dict.fromkeys(digest for row in held.values() for digest in row))
    table = torch.full((max(held, default=-1) + 1, MODELS_HELD), -1, dtype=torch.int32)
    for client, row in held.items():
        table[client, : len(row)] = torch.tensor([digests.index(digest) for digest in row])
    return Ledger(digests, table)


def test_clients_hold_what_they_took_newest_first_and_no_more_than_the_bound() -> None:
    before = ledger({0: ("older",), 1: ("a", "b", "c"), 7: ("x",)})
    after = count(BROADCAST, {0}, [0, 1], [], before).ledger
    held = {client: after.of(client) for client in range(9) if after.of(client)}
    assert held == {0: ("global", "best", "former"), 1: ("global", "a", "b"), 7: ("x",)}
    assert sorted(after.digests) == ["a", "b", "best", "former", "global", "x"]  # nobody has "older" or "c" any more


def test_a_model_that_fell_out_of_the_bound_is_sent_again() -> None:
    only = Broadcast(MOMENT, "global", {"global": MODELS["global"]})
    held = ledger({0: ("global",)})
    for name in ("a", "b", "c"):
        held = count(Broadcast(MOMENT, name, {name: MODELS["best"]}), set(), [0], [], held).ledger
    assert count(only, set(), [0], [], held).down == count(only, set(), [0], [], Ledger()).down


def test_the_given_ledger_stays_as_it_was() -> None:
    before = ledger({0: ("older",)})
    count(BROADCAST, {0}, [0], [], before)
    assert before.of(0) == ("older",)


NAMES = ["a", "b", "c", "d"]
rounds = st.lists(
    st.tuples(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), st.sets(st.integers(0, 4))),
    max_size=6,
)


@given(rounds, st.sets(st.integers(0, 4)))
def test_the_ledger_is_what_a_list_a_client_would_be(
    played: list[tuple[list[str], set[int]]], participants: set[int]
) -> None:
    kept, plain = Ledger(), {client: [] for client in range(5)}  # type: ignore[var-annotated]
    for names, asked in played:
        models = {name: {"weight": torch.zeros(10)} for name in names}
        traffic = count(Broadcast(MOMENT, names[0], models), participants, sorted(asked), [], kept)
        sent = 0
        for client in asked:
            takes = names if client in participants else names[:1]
            sent += sum(name not in plain[client] for name in takes)
            plain[client] = list(dict.fromkeys([*takes, *plain[client]]))[:MODELS_HELD]
        kept = traffic.ledger
        assert {client: list(kept.of(client)) for client in range(5)} == plain
        letters = len(encode(Broadcast(MOMENT, names[0], {})))
        parcels = len(encode(ModelParcel("a", {"weight": torch.zeros(10)})))
        assert traffic.down == len(asked) * letters + sent * parcels


def test_answers_cost_their_encoded_parts() -> None:
    report = Report({"weight": torch.rand(40)}, samples=7)
    upload = ModelParcel("prototype", {"gradient": torch.rand(9)})
    replies = [
        Reply(0, report=report, uploads=(upload, upload)),
        Reply(1),
        Reply(2, announced=(8, 9)),
    ]
    announcement = len(encode(Reply(2, announced=(8, 9))))
    expected = len(encode(report)) + 2 * len(encode(upload)) + announcement
    assert count(BROADCAST, {0}, [0, 1, 2], replies, Ledger()).up == expected
