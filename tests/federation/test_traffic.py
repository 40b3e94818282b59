from __future__ import annotations

import torch

from fcil.federation.traffic import MODELS_HELD, ModelParcel, count
from fcil.methods.server import Teachers
from fcil.wire import Broadcast, Moment, Reply, Report, encode

MOMENT = Moment(round=4, catalogue=(1, 2, 3), blocks=(2, 3), rounds_since_growth=0)
MODELS = {name: {"weight": torch.rand(size)} for name, size in (("global", 50), ("best", 30), ("former", 20))}
BROADCAST = Broadcast(MOMENT, "global", MODELS, Teachers(last="former"), Teachers(current="best"))


def parcel(name: str) -> int:
    return len(encode(ModelParcel(name, MODELS[name])))


def letter(extras: bool) -> int:
    extra = (BROADCAST.server, BROADCAST.proxy) if extras else (None, None)
    return len(encode(Broadcast(MOMENT, "global", {}, *extra)))


def test_a_participant_gets_every_model_and_a_bystander_the_global_one_without_extras() -> None:
    participant = count(BROADCAST, {0}, [0], [], {}).down
    bystander = count(BROADCAST, set(), [0], [], {}).down
    assert participant == letter(extras=True) + parcel("global") + parcel("best") + parcel("former")
    assert bystander == letter(extras=False) + parcel("global")
    assert letter(extras=False) < letter(extras=True)


def test_a_round_is_the_sum_over_its_clients() -> None:
    traffic = count(BROADCAST, {2, 5}, [1, 2, 5], [], {})
    everything = parcel("global") + parcel("best") + parcel("former")
    assert traffic.down == 2 * (letter(extras=True) + everything) + letter(extras=False) + parcel("global")


def test_a_model_already_held_is_not_sent_again() -> None:
    first = count(BROADCAST, {0}, [0, 1], [], {})
    again = count(BROADCAST, {0, 1}, [0, 1], [], first.held)
    assert again.down == 2 * letter(extras=True) + parcel("best") + parcel("former")
    third = count(BROADCAST, {0, 1}, [0, 1], [], again.held)
    assert third.down == 2 * letter(extras=True)


def test_clients_hold_what_they_took_newest_first_and_no_more_than_the_bound() -> None:
    held = count(BROADCAST, {0}, [0, 1], [], {"0": ("older",), "1": ("a", "b", "c"), "7": ("x",)}).held
    assert MODELS_HELD == 3
    assert held == {"0": ("global", "best", "former"), "1": ("global", "a", "b"), "7": ("x",)}


def test_a_model_that_fell_out_of_the_bound_is_sent_again() -> None:
    only = Broadcast(MOMENT, "global", {"global": MODELS["global"]})
    held = {"0": ("global",)}
    for name in ("a", "b", "c"):
        held = count(Broadcast(MOMENT, name, {name: MODELS["best"]}), set(), [0], [], held).held
    assert count(only, set(), [0], [], held).down == count(only, set(), [0], [], {}).down


def test_the_given_holdings_stay_as_they_were() -> None:
    held = {"0": ("older",)}
    count(BROADCAST, {0}, [0], [], held)
    assert held == {"0": ("older",)}


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
    assert count(BROADCAST, {0}, [0, 1, 2], replies, {}).up == expected
