"""The server works with whoever is there: late joiners, the silent, odd folders; it weighs and measures it all."""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from typing import Any

import pytest
from support.consortium import PROXY, SITES, Build, Consortium
from support.folders import age

from fcil.cli.federation.parties import _final_accuracy
from fcil.core.errors import FederationError
from fcil.core.messages import Message, Missing
from fcil.deployment.client import image_folder
from fcil.deployment.client import ingest as ingest_module
from fcil.deployment.party_store import MODELS
from fcil.deployment.server.evaluation import UNTOLD
from fcil.deployment.transport.messages import (
    EvaluateRequest,
    EvaluationResult,
    IdentifyRequest,
    Identity,
    ProxyRequest,
    ProxyResult,
    Refusal,
    TrainRequest,
    TrainResult,
)
from fcil.federation.round_record import BUSY, RoundRecord, client_tallies, measured
from fcil.reporting.terminal.progress import _answered

RELEASED = -3  # the messages about the last release, to three sites, come after the last record


def stocked(made: Consortium, *sites: str, name: str = "ant", count: int = 6) -> Consortium:
    """Put images of a class into the folders of some sites."""
    for site in sites or SITES[:3]:
        first = 100 * SITES.index(site)
        made.add(site, name, *range(first, first + count))
    return made


def no_counts(answer: Message) -> EvaluationResult | None:
    """Return the evaluation of a site that tells of no class."""
    if not isinstance(answer, EvaluationResult):
        return None
    return EvaluationResult(answer.right * 0, answer.total * 0)


def trained(record: RoundRecord) -> tuple[int, int, int]:
    return record.clients, len(record.participants), record.reports


# --- who is there -------------------------------------------------------------------------------------------------


def test_sites_may_join_late_and_leave_and_come_back(build: Build) -> None:
    made = stocked(build("icarl", "scenario.participants=4", rounds=6), *SITES[:4])
    acts = {2: lambda: made.join("delft"), 3: lambda: made.wire.away.add(1), 5: made.wire.away.clear}
    records = made.play(acts)
    assert [trained(record) for record in records] == [(3, 3, 0), (3, 3, 3), (4, 4, 4), (3, 3, 3), (3, 3, 3), (4, 4, 4)]
    assert all(record.failures == [] for record in made.journal)
    assert [len(made.wire.requests(IdentifyRequest, number)) for number in range(4)] == [1, 1, 1, 1], (
        "each is asked once"
    )
    assert 1 not in records[3].participants


def test_a_class_that_two_sites_bring_in_the_same_round_has_one_output(build: Build) -> None:
    made = stocked(build(rounds=5))
    records = made.play({2: lambda: stocked(made, "aachen", "berlin", name="bee")})
    assert [record.classes for record in records] == [0, 1, 1, 2, 2]
    assert [record.task for record in records] == [0, 0, 0, 1, 1]
    assert made.run is not None
    identity = made.keys.sites["aachen"].secret.class_id
    assert made.run.state.server.catalogue.classes == (identity("ant"), identity("bee"))
    assert [calls.broadcast.context.blocks for calls in made.wire.requests(TrainRequest, 0)][-1] == (1, 2)


def test_it_waits_for_enough_sites_and_says_so_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build("icarl", "deployment.patience=1000", rounds=1, sites=("aachen",))
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            made.join("berlin")

    monkeypatch.setattr("fcil.deployment.server.rounds.time.sleep", pause)
    (record,) = made.play()
    assert record.clients == 2
    assert made.warned == ["round 1 waits: 1 of 2 sites connected"]


@pytest.mark.parametrize(
    ("method", "away", "lacking"),
    [
        ("icarl", {1, 2}, "1 of 2 sites"),
        ("glfc", {PROXY}, "no proxy"),
        ("glfc", {0, 1, PROXY}, "1 of 2 sites and no proxy"),
    ],
)
def test_patience_is_over_but_once(build: Build, method: str, away: set[int], lacking: str) -> None:
    made = build(method, "deployment.attempts=3")
    made.wire.away = away
    with pytest.raises(FederationError) as caught:
        made.play()
    assert str(caught.value) == f"round 1 waits: {lacking} connected; deployment.patience is over"
    assert made.warned == []


# --- the silent ---------------------------------------------------------------------------------------------------


def test_a_round_goes_on_without_a_silent_site_which_is_greeted_again(build: Build) -> None:
    made = stocked(build(rounds=5))
    acts = {2: lambda: made.wire.silent.add(1), 4: made.wire.silent.clear}
    records = made.play(acts)
    assert [record.reports for record in records] == [0, 3, 2, 2, 3]
    assert [record.clients for record in records] == [3, 3, 3, 2, 3], "it is not counted on while it is silent"
    (failure,) = records[2].failures
    assert failure == {"client": 1, "round": 3, "stage": "answer", "reason": "site berlin: no answer in time"}
    assert records[3].failures == records[4].failures == []
    assert len(made.wire.requests(IdentifyRequest, 1)) == 3, "at first, in vain, and when it was back"
    assert len(made.wire.requests(TrainRequest, 1)) == 4


def test_a_round_with_too_few_participants_is_tried_again_and_then_given_up(build: Build) -> None:
    made = stocked(build("icarl", "deployment.attempts=3", "federation.min_participants=2"))
    refuse = Refusal("my disk is full")
    made.wire.tampered = {one: lambda answer: refuse if isinstance(answer, TrainResult) else None for one in (0, 2)}
    with pytest.raises(FederationError) as caught:
        made.play()
    assert len(made.wire.requests(TrainRequest, 0)) == 3
    assert "1 participants answered, federation.min_participants asks for 2" in str(caught.value)
    for number, name in ((0, "aachen"), (2, "cork")):
        assert f"client {number} failed in round 1 at stage refusal: site {name}: it refuses: my disk is" in str(
            caught.value
        )
        assert f"client {number} is site {name}" in str(caught.value)
    assert len(made.warned) == 2
    assert all(warning.startswith("round 1 is tried again: 1 participants") for warning in made.warned)


def test_a_round_that_failed_once_is_played_with_those_who_are_left(build: Build) -> None:
    made = stocked(build("icarl", "federation.min_participants=2", rounds=2))
    list(zip(range(1), made.rounds(), strict=False))
    made.wire.silent = {0, 1}
    made.wire.order = lambda answers: [made.wire.silent.clear(), *answers][1:]
    (record,) = list(made.rounds())
    assert record.reports == 3
    assert record.failures == []


def test_a_silent_proxy_lets_the_round_be_tried_again(build: Build) -> None:
    made = stocked(build("glfc", rounds=2))
    list(zip(range(1), made.rounds(), strict=False))
    made.wire.deaf = {PROXY}
    (record,) = list(made.rounds())
    assert record.reports == 3
    assert made.warned == ["round 2 is tried again: the proxy: no answer in time"]
    down = sum(len(one.content) + sum(map(len, one.parcels.values())) for one in made.wire.sent[:RELEASED])
    assert sum(one.bytes_down for one in made.journal) == down, "of the attempt that failed too"
    assert record.traffic["proxy"][1] > 0
    assert "the server asks for the last answer again; it is sent again" in made.said[0]


def test_a_proxy_whose_measures_are_no_numbers_cannot_spoil_the_record(build: Build) -> None:
    made = build("glfc", rounds=1)
    made.wire.tampered[PROXY] = lambda answer: (
        ProxyResult(answer.choices, (), {"score": float("nan"), "probes": 1.0})
        if isinstance(answer, ProxyResult)
        else None
    )
    made.play()
    assert made.journal[0].proxy == {"probes": 1.0}


def test_a_proxy_cannot_name_teachers_that_nobody_has(build: Build) -> None:
    made = stocked(build("glfc", "deployment.attempts=1", rounds=3))
    made.play()
    assert made.server is not None
    choices = made.wire.answers(ProxyResult)[-1].choices
    other = stocked(build("glfc", "deployment.attempts=1", "seed=5", rounds=1))
    other.wire.tampered[PROXY] = lambda answer: ProxyResult(choices) if isinstance(answer, ProxyResult) else None
    with pytest.raises(FederationError, match="the proxy names teachers that the server does not have"):
        other.play()


def test_who_does_not_answer_a_greeting_as_it_should_is_left_out(build: Build) -> None:
    made = stocked(build(rounds=2))
    made.wire.tampered[1] = lambda answer: TrainResult() if isinstance(answer, Identity) else None
    records = made.play()
    assert [record.clients for record in records] == [2, 2]
    assert made.warned == ["berlin is left out: it answers with TrainResult, expected Identity"], "said once"


# --- odd folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["icarl", "glfc"])
def test_no_folder_stops_a_federation(build: Build, method: str) -> None:
    """An empty one, one with an unreadable image, and one with a single image of a class."""
    made = build(method, rounds=3)
    stocked(made, "aachen")
    spoilt = made.data("aachen") / "ant" / "spoilt.png"
    spoilt.write_bytes(b"no picture")
    age(spoilt, 60)
    made.add("cork", "bee", 0)
    records = made.play()
    assert [record.failures for record in records] == [[], [], []]
    assert [record.classes for record in records] == [0, 2, 2]
    assert [record.reports for record in records] == [0, 2, 2], "who has no image answers without a model"
    assert sum("spoilt.png is left out" in line for line in made.said[0]) == 1
    assert any("0 images in the newest arrival" in line for line in made.said[1])
    record = made.journal[-1]
    assert record.total == [1], "of a single image none is held out"


def test_where_nobody_has_a_hold_out_no_accuracy_is_written_down_and_that_is_said(build: Build) -> None:
    made = build("icarl", "deployment.evaluate_every=1", rounds=3, sites=())
    made.hold_out = 0.0
    for site in ("aachen", "berlin"):
        made.join(site)
    records = stocked(made, "aachen").play()
    assert all(record.total == [] and not record.ends_task for record in records)
    assert made.warned == [UNTOLD], "it is told once"
    assert made.run is not None
    assert len(made.journal) == 3
    assert made.run.finish()["last"] is None


def test_a_block_without_hold_out_leaves_the_blocks_after_it_without_accuracy(build: Build) -> None:
    made = build("icarl", "deployment.evaluate_every=1", rounds=6)
    made.add("aachen", "ant", 0)
    made.play({2: lambda: stocked(made, "berlin", name="bee"), 4: lambda: stocked(made, "cork")})
    totals = [record.total for record in made.journal]
    assert totals[:5] == [[]] * 5
    found = [measured(record) for record in made.journal]
    assert [one and (one.covered, one.classes) for one in found] == [None, None, None, (1, 2), (2, 2), (2, 2)]
    (warning,) = [line for line in made.warned if "covers" in line]
    assert "the accuracy after round 4 covers 1 of 2 classes, 1 hold-out images" in warning
    assert made.run is not None
    assert _final_accuracy(made.run).startswith("accuracy on the sites' hold-out images: ")


def test_an_older_accuracy_is_printed_with_its_round_and_its_coverage(build: Build) -> None:
    made = build("icarl", "deployment.evaluate_every=2", "federation.merge_rounds=9", rounds=7)
    made.add("aachen", "ant", 0)
    stocked(made, "berlin", name="bee")
    silence = {6: lambda: made.wire.tampered.update({1: no_counts})}
    made.play(silence)
    assert made.run is not None
    last = made.journal[-1]
    assert (last.total, last.per_class) == ([], {})
    sentence = _final_accuracy(made.run)
    assert re.fullmatch(
        r"accuracy on the sites' hold-out images after round 6 of 7: \d+\.\d %, on 1 images of 1 of 2 classes; per .*",
        sentence,
    ), sentence


def test_a_site_that_reads_many_files_is_busy_and_has_not_failed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stocked(build("icarl", rounds=5))
    plain, gate = ingest_module._Scan.read, threading.Event()

    def slowly(scan: Any, entry: Any) -> None:
        if entry.class_name == "bee":
            gate.wait()
        plain(scan, entry)

    monkeypatch.setattr(ingest_module._Scan, "read", slowly)
    monkeypatch.setattr(image_folder, "READING", 0.3)

    def all_read() -> None:
        gate.set()
        monkeypatch.setattr(image_folder, "READING", 60.0)

    records = made.play({2: lambda: stocked(made, "berlin", name="bee"), 3: all_read})
    busy = records[2].failures
    assert [(failure["client"], failure["stage"]) for failure in busy] == [(1, BUSY)]
    assert re.fullmatch(r"site berlin: reading \d of 6 new files", busy[0]["reason"])
    assert _answered(records[2]) == f"2 of 3 sites answered, berlin is busy: {busy[0]['reason'][13:]}"
    assert client_tallies(records)[1]["failed"] == 0
    assert [record.reports for record in records] == [0, 3, 2, 3, 3]
    assert records[4].classes == 2, "the class came as a whole"
    assert [arrival[:1] for arrival in made.said[1] if "busy" in arrival] == ["r"]


# --- accuracy -----------------------------------------------------------------------------------------------------


def test_the_model_is_examined_now_and_then_before_a_new_block_and_at_the_end(build: Build) -> None:
    made = stocked(build("icarl", "deployment.evaluate_every=4", rounds=7))
    records = made.play({5: lambda: stocked(made, "berlin", name="bee")})
    assert [record.round for record in records if record.total] == [4, 6, 7]
    assert [record.total for record in records if record.total] == [[3], [3], [3, 1]]
    assert [call.last for call in made.wire.requests(EvaluateRequest, 0)] == [False, False, True]
    assert [record.round for record in records if record.ends_task] == [6, 7]
    assert made.journal == records


def test_a_site_that_misses_the_evaluation_is_not_counted_and_greeted_again(build: Build) -> None:
    made = stocked(build("icarl", "deployment.evaluate_every=2", rounds=3))
    rounds = made.rounds()
    next(rounds)
    refuse = Refusal("busy")
    made.wire.tampered[2] = lambda answer: None if isinstance(answer, TrainResult | Identity | Missing) else refuse
    record = next(rounds)
    assert record.total == [2]
    assert made.warned == ["site cork does not take part in the evaluation: it refuses: busy"]
    made.wire.tampered.clear()
    assert next(rounds).total == [3]
    assert len(made.wire.requests(IdentifyRequest, 2)) == 2


# --- models travel by digest --------------------------------------------------------------------------------------


def test_no_site_is_sent_a_model_twice_and_every_byte_is_in_the_records(build: Build) -> None:
    made = stocked(build("icarl", "deployment.evaluate_every=1", rounds=4))
    made.play()
    sent = Counter((envelope.to, digest) for envelope in made.wire.sent for digest in envelope.parcels)
    assert set(sent.values()) == {1}, "the model of an evaluation is the next round's"
    assert len({digest for _, digest in sent}) == 5, "before the first class, and after each round with one; grown once"
    down = sum(len(one.content) + sum(map(len, one.parcels.values())) for one in made.wire.sent[:RELEASED])
    up = sum(len(content) for _, content in made.wire.received[:RELEASED])
    assert sum(record.bytes_down for record in made.journal) == down
    assert sum(record.bytes_up for record in made.journal) == up
    for record in made.journal:
        assert set(record.traffic) == ({"train", "evaluate"} if record.classes else {"train"})
        assert sum(up for up, _ in record.traffic.values()) == record.bytes_up
        assert sum(down for _, down in record.traffic.values()) == record.bytes_down


def test_a_site_that_lost_its_models_gets_them_again_and_they_are_weighed(build: Build) -> None:
    made = stocked(build("icarl", "deployment.evaluate_every=1", rounds=4))
    rounds = made.rounds()
    for _ in range(2):
        next(rounds)
    made.parties[1].close()
    shutil.rmtree(made.state("berlin") / MODELS)
    made.join("berlin")
    before = len(made.wire.sent)
    record = next(rounds)
    requests = [one for one in made.wire.sent[before:] if one.to == 1]
    assert [len(one.parcels) for one in requests] == [0, 1, 1], "as before; what it then lacks; and the evaluation's"
    assert requests[0].content == requests[1].content
    (lacking,) = made.wire.answers(Missing)
    assert lacking.digests == tuple(requests[1].parcels)
    assert record.reports == 3
    down = sum(len(one.content) + sum(map(len, one.parcels.values())) for one in made.wire.sent[before:])
    assert record.bytes_down == down


def test_the_proxy_is_sent_each_model_once(build: Build) -> None:
    made = stocked(build("glfc", rounds=4))
    made.play()
    parcels = [set(one.parcels) for one in made.wire.sent if one.to == PROXY]
    calls = made.wire.requests(ProxyRequest)
    assert len(calls) == 4
    assert (
        sum(map(len, parcels))
        == len(set().union(*parcels))
        == len({one for call in calls for one in (call.sent, call.averaged)})
    )
