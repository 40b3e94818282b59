"""Masked sums between real sites: folders, keys, three turns over a transport, and whoever drops out in between."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.analytic import assert_every_picture_counts_once
from support.consortium import SITES, Build, Consortium, Tamper, contents, small_config

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Message
from fcil.deployment.client.masked_reports import MASKS
from fcil.deployment.keys.sealing import Secret
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.server.masked_turns import KEYS
from fcil.deployment.server.run import ServedRun
from fcil.deployment.transport.messages import (
    KeysRequest,
    KeysResult,
    Request,
    TrainRequest,
    TrainResult,
    UnmaskRequest,
)
from fcil.experiment.warnings import Watch
from fcil.federation.masking.fixed_point import Form
from fcil.federation.masking.opening import UNMASK
from fcil.federation.round_record import RoundRecord

CROWD = ("deployment.min_sites=3", "scenario.participants=4")
MASKED = ("federation.aggregator=masked", *CROWD)
PICTURES = 6


def stocked(made: Consortium, *sites: str, name: str = "ant", first: int = 0) -> Consortium:
    for site in sites or SITES:
        start = 100 * SITES.index(site) + first
        made.add(site, name, *range(start, start + PICTURES))
    return made


def failed(record: RoundRecord) -> list[tuple[int, str]]:
    return [(failure["client"], failure["stage"]) for failure in record.failures]


# --- the result, and what the server has of it ---------------------------------------------------------------------


def held_by(found: object) -> Iterator[bytes]:
    """Yield the bytes of all arrays and byte strings that an object refers to, on whatever way."""
    seen, ahead = {id(found)}, [found]
    while ahead:
        here = ahead.pop()
        if isinstance(here, torch.Tensor):
            yield here.detach().numpy().tobytes()
        elif isinstance(here, np.ndarray | bytes | bytearray | memoryview):
            yield bytes(here)
        if type(here).__module__.startswith(("fcil", "support", "builtins", "collections")) and not isinstance(
            here, type | type(gc)
        ):
            for other in gc.get_referents(here):
                if id(other) not in seen and not callable(other):
                    seen.add(id(other))
                    ahead.append(other)


def pieces(vector: np.typing.NDArray[np.uint64], size: int = 4) -> Iterator[bytes]:
    """Yield runs of numbers that are no zeros, as bytes."""
    for start in range(0, len(vector) - size, 97):
        part = vector[start : start + size]
        if part.all():
            yield part.tobytes()


@pytest.mark.numeric
def test_a_round_ends_as_without_masks_and_no_report_is_anywhere_at_the_server(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_numbers, made_reports = Form.numbers, list[Any]()

    def noted(form: Form, report: Any) -> Any:
        found = plain_numbers(form, report)
        made_reports.append((found.copy(), {name: tensor.clone() for name, tensor in report.model.items()}))
        return found

    monkeypatch.setattr(Form, "numbers", noted)
    masked, plain = (stocked(build("finetune", *settings, rounds=2, sites=SITES)) for settings in (MASKED, CROWD))
    memory: list[bytes] = []

    def look(request: Request) -> None:
        if isinstance(request, UnmaskRequest):
            memory.extend(held_by([masked.run, masked.server]))

    masked.wire.before = look
    for made in (masked, plain):
        records = made.play()
        assert [(record.reports, record.failures, record.not_applied) for record in records][1:] == [(4, [], "")]
        assert made.run is not None
    assert masked.run is not None
    assert plain.run is not None
    for name, value in plain.run.state.server.model.items():
        torch.testing.assert_close(masked.run.state.server.model[name], value, rtol=2**-22, atol=2**-24)
    assert len(made_reports) == 8, "each site's report of both rounds"
    wire = [one.content + b"".join(one.parcels.values()) for one in masked.wire.sent]
    seen = [*wire, *(content for _, content in masked.wire.received), *contents(masked.place / "run").values()]
    everything = b"".join([*seen, *memory])
    for vector, model in made_reports[4:]:
        found = list(pieces(vector))
        assert len(found) > 20
        assert not any(piece in everything for piece in found)
        for name, tensor in model.items():
            if tensor.is_floating_point() and tensor.numel() >= 8:
                assert tensor.numpy().tobytes() not in everything, name
    sums = next(iter(masked.run.state.server.model.values())).numpy().tobytes()
    assert sums in everything, "the search finds what is there"


def test_what_is_clipped_is_counted_and_said_once(build: Build) -> None:
    made = stocked(build("finetune", *MASKED, "federation.masked.range=0.0001", rounds=2, sites=SITES))
    records = made.play()
    assert records[1].clipped > 0
    (sentence,) = Watch().see(records[1])
    assert "were clipped, since a masked sum has no room for them; a larger federation.masked.range" in sentence


# --- drop-outs ------------------------------------------------------------------------------------------------------


def once(kind: type[Message], act: Callable[[], object]) -> Tamper:
    """Return what does something once, after an answer of a kind was given; the answer stays as it is."""
    done: list[bool] = []

    def tamper(answer: Any) -> None:
        if isinstance(answer, kind) and not done and getattr(answer, "message", True):
            done.append(True)
            act()

    return tamper


def test_who_is_killed_between_two_turns_costs_the_round_nothing_and_every_picture_counts_once(build: Build) -> None:
    """Four sites, of which three make a sum; a site that starts again has new keys, and drops out of the round."""
    made = stocked(build("analytic", *MASKED, "federation.min_participants=3", rounds=9, sites=SITES))
    wire, found = made.wire, dict[int, RoundRecord]()

    def kill(name: str, kind: type[Message]) -> Callable[[], object]:
        return lambda: wire.tampered.update({SITES.index(name): once(kind, lambda: made.reopen(name))})

    def kill_two() -> None:
        for name in ("aachen", "cork"):
            kill(name, KeysResult)()

    acts: dict[int, Callable[[], object]] = {
        2: kill("berlin", KeysResult),  # after the keys, before the report
        3: kill("cork", TrainResult),  # after the report, before the unmasking
        4: lambda: wire.silent.add(3),  # before the keys
        5: lambda: (wire.silent.clear(), made.add("delft", "bee", 1, 2, 3)),
        6: kill_two,
    }
    for record in made.rounds():
        found[record.round] = record
        wire.tampered.clear()
        acts.get(record.round, lambda: None)()
    assert (found[3].reports, failed(found[3]), found[3].not_applied) == (3, [(1, MASKS)], "")
    assert "was restarted" in found[3].failures[0]["reason"]
    assert (found[4].reports, failed(found[4]), found[4].not_applied) == (4, [(2, UNMASK)], "")
    assert (found[5].participants, found[5].reports, failed(found[5])) == ([0, 1, 2], 3, [(3, KEYS)])
    assert (found[7].reports, failed(found[7])) == (0, [(0, MASKS), (2, MASKS)])
    assert (
        found[7].not_applied == "the masked sum does not open: 2 of 4 participants have reported; a masked sum needs 3"
    )
    assert all((found[number].reports, found[number].failures) == (4, []) for number in (1, 2, 6, 8, 9))
    assert_every_picture_counts_once(made)


class PowerCutError(Exception):
    """The end of the server's process."""


def cut(made: Consortium, kind: type[Request], round: int) -> None:
    """Let the server end before it sends the first request of a kind in a round, and start it again from its disk."""

    def before(request: Request) -> None:
        if isinstance(request, kind) and made.rounds_played == round:
            raise PowerCutError

    made.wire.before = before
    with pytest.raises(PowerCutError):
        list(made.rounds())
    made.wire.before = lambda _: None
    made.serve()


@pytest.mark.parametrize("kind", [TrainRequest, UnmaskRequest])
def test_a_server_that_is_killed_between_two_turns_goes_on_with_the_reports_that_were_made(
    build: Build, kind: type[Request]
) -> None:
    """The sites are the same ones, so that the round has the same keys, and every answer is the one given before."""
    made = stocked(build("analytic", *MASKED, rounds=4, sites=SITES))
    cut(made, kind, 1)
    before = len(made.wire.answers(TrainResult))
    records = list(made.rounds())
    assert all((record.reports, record.failures, record.not_applied) == (4, [], "") for record in records)
    if kind is UnmaskRequest:
        again = made.wire.answers(TrainResult)[before : before + 4]
        assert [one.reply.report.model["sum"].tolist() for one in again] == [
            one.reply.report.model["sum"].tolist() for one in made.wire.answers(TrainResult)[before - 4 : before]
        ]
        assert all(any("sent again" in line for line in said) for said in made.said.values())
    assert_every_picture_counts_once(made)


def test_a_round_that_was_begun_with_other_partners_has_no_second_report_and_is_passed_over(build: Build) -> None:
    """The server is killed after the reports; when it asks again, one site has started anew, so no round can be opened
    with the same partners: the samples wait for the next one."""
    made = stocked(build("analytic", *MASKED, rounds=5, sites=SITES))
    cut(made, UnmaskRequest, 1)
    made.reopen("berlin")
    asked = len(made.wire.requests(TrainRequest))
    records = list(made.rounds())
    assert records[0].not_applied == "sites have begun it with other partners, and fewer than 3 are left"
    assert {stage for _, stage in failed(records[0])} == {KEYS}
    assert all("reports once" in failure["reason"] for failure in records[0].failures)
    orders = [call.order.participate for call in made.wire.requests(TrainRequest)[asked:]]
    assert not any(orders[:4])
    assert all((record.reports, record.failures, record.not_applied) == (4, [], "") for record in records[1:])
    assert_every_picture_counts_once(made)


def test_answers_that_are_lost_are_asked_for_again_while_nobody_has_reported(build: Build) -> None:
    """All answers to one turn are lost; the round is tried again with the same keys, and each site trains once."""
    made = stocked(build("finetune", *MASKED, rounds=3, sites=SITES))
    rounds = made.rounds()
    next(rounds)
    made.wire.before = lambda request: (
        made.wire.deaf.update(range(4)) if isinstance(request, TrainRequest) and not made.wire.losses else None
    )
    record = next(rounds)
    assert (record.reports, record.failures, made.wire.losses) == (4, [], 4)
    (said,) = [line for line in made.warned if "is tried again" in line]
    assert "0 of 4 participants have reported" in said or "0 participants answered" in said
    assert [sum("round 2: " in line for line in made.said[site]) for site in range(4)] == [1] * 4


def test_too_few_sites_with_keys_are_waited_for_and_a_round_is_not_used_up(build: Build) -> None:
    made = stocked(build("finetune", *MASKED, rounds=2, sites=SITES[:3]))
    rounds = made.rounds()
    next(rounds)
    made.wire.before = lambda request: made.wire.silent.add(1) if isinstance(request, KeysRequest) else None
    with pytest.raises(FederationError, match=r"round 2 waits: 2 of 3 sites connected; deployment.patience is over"):
        next(rounds)
    (said,) = [line for line in made.warned if "tried again" in line]
    assert "2 sites are ready for a masked sum, 3 must be (site berlin: no answer in time)" in said
    made.wire.before = lambda _: None
    made.wire.silent.clear()
    made.serve()
    assert [(record.round, record.reports) for record in made.rounds()] == [(2, 3)]


# --- who may take part ----------------------------------------------------------------------------------------------


def test_a_site_with_another_secret_is_left_out_by_name(build: Build) -> None:
    made = stocked(build("finetune", *MASKED, rounds=2, sites=SITES))
    made.parties[2].close()
    made.join("cork", secret=Secret(b"x" * 32))
    records = made.play()
    for record in records:
        assert (record.reports, record.participants, failed(record)) == (3, [0, 1, 3], [(2, KEYS)])
    assert "site cork: its key is unknown to the others" in records[0].failures[0]["reason"]


def test_a_site_that_asks_for_more_partners_refuses_the_terms(build: Build, tmp_path: Path) -> None:
    made = stocked(build("finetune", *MASKED, rounds=1, sites=()), *SITES)
    made.limits = PartyLimits(hold_out_images=1, least=4)
    for name in SITES:
        made.join(name)
    with pytest.raises(FederationError, match="round 1 waits: 0 of 3 sites"):
        made.play()
    said = "federation.min_participants: found 1, this party takes masked sums over at least 4 sites"
    assert all(any(said in line for line in lines) for lines in made.said.values())


def test_the_owner_reads_that_the_server_learns_sums_alone(build: Build) -> None:
    made = stocked(
        build("finetune", *MASKED, "federation.min_participants=4", "deployment.min_sites=4", rounds=1, sites=SITES)
    )
    made.play()
    (sent,) = [line for line in made.said[0] if line.startswith("sent")]
    assert "to the server in a sum over at least 4 sites: the trained model, the number of training images" in sent
    assert "for this site alone: counts of right hold-out images" in sent
    assert any(line.endswith("by masked, in a sum over at least 4 sites") for line in made.said[0])


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        (
            "finetune",
            ["deployment.min_sites=2"],
            "deployment.min_sites: found 2, .* at least 3: with federation.aggreg",
        ),
        ("finetune", ["scenario.participants=2"], "scenario.participants: found 2, should be at least 3"),
        ("finetune", ["federation.min_participants=4"], "deployment.min_sites: found 3, should be at least 4"),
        ("finetune", ["scenario.participants=2000"], "scenario.participants: found 2000, should be at most 1024"),
        ("glfc", [], "federation.aggregator: masked cannot hide what method.name glfc sends to a proxy"),
        ("lga", [], "federation.aggregator: masked cannot hide what method.name lga sends to a proxy"),
        ("glfc", ["federation.averaging=samples"], "federation.aggregator: masked cannot hide"),
    ],
)
def test_what_cannot_be_masked_between_sites_is_refused_before_it_begins(
    tmp_path: Path, method: str, settings: list[str], said: str
) -> None:
    config = small_config(method, *MASKED, *settings)
    with pytest.raises(ConfigError, match=said):
        ServedRun.start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
