"""Masked sums between real sites against a server that lies and against a site that does."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.consortium import SITES, Build, Consortium

from fcil.core.messages import Message, Order, encode
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.client.masked_reports import MASKS
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.server.masked_turns import KEYS, MaskedRound
from fcil.deployment.transport.messages import (
    Answer,
    KeysRequest,
    KeysResult,
    Refusal,
    Request,
    TrainRequest,
    TrainResult,
    UnmaskRequest,
    decode_message,
    encode_message,
    encode_model,
)
from fcil.federation.masking.messages import KeyMessage, Session, Unmask, Unmasked, Voucher, digest_of
from fcil.federation.masking.opening import UNMASK
from fcil.federation.masking.site import MaskingSite
from fcil.federation.server import Opened

MASKED = ("federation.aggregator=masked", "deployment.min_sites=3", "scenario.participants=4")
AACHEN = 0


@dataclass
class LyingServer:
    """A masked round whose keys are exchanged; from here on the server may ask what it likes."""

    made: Consortium
    opened: Opened
    round: MaskedRound

    @classmethod
    def of(cls, made: Consortium) -> LyingServer:
        runner = made.server or made.serve()
        runner.membership.wait_for_parties(0)
        assert made.run is not None
        opened = runner.server.open(runner.server.grow(made.run.state.server, ()), None)
        assert runner.masked is not None
        return cls(made, opened, runner.masked.begin(opened, range(len(SITES))))

    @property
    def session(self) -> Session:
        assert self.round.server is not None
        return self.round.server.session

    @property
    def vouchers(self) -> dict[int, Voucher]:
        assert self.made.server is not None
        assert self.made.server.masked is not None
        return dict(self.made.server.masked.vouchers)

    def ask(self, request: Request, site: int = AACHEN) -> Any:
        models = {digest: encode_model(digest, model) for digest, model in self.opened.models.items()}
        answer = self.made.handler(SITES[site])(encode_message(request), models)
        return decode_message(answer, Answer, DEFAULT_LIMIT).content

    def keys(self, vouchers: dict[int, Voucher], sent: str = "", round: int = 0) -> Any:
        """Ask for the keys of a round with these partners."""
        session = Session.of(self.terms.masked, round, sent or digest_of(self.opened.broadcast), vouchers)
        return self.ask(KeysRequest(self.terms, AACHEN, session))

    @property
    def terms(self) -> Any:
        assert self.made.run is not None
        return self.made.run.terms

    def call(self, site: int = AACHEN) -> TrainRequest:
        return TrainRequest(self.terms, self.opened.broadcast, Order(site, True), None, self.round.partners(site))

    def question(self, alive: Collection[int], dropped: Collection[int]) -> UnmaskRequest:
        numbers = [torch.tensor(sorted(each), dtype=torch.int64) for each in (alive, dropped)]
        return UnmaskRequest(self.terms, Unmask(self.session.digest, *numbers))


@pytest.fixture
def lying(build: Build) -> LyingServer:
    return LyingServer.of(build("finetune", *MASKED, sites=SITES))


def refusal(answer: Message) -> str:
    assert isinstance(answer, Refusal)
    return answer.sentence


def without_masks(answer: Message) -> str:
    """Return why a site has no masks, once it is sure that it sends no report."""
    assert isinstance(answer, TrainResult)
    assert answer.reply is None
    assert answer.failure is not None
    assert answer.failure.stage == MASKS
    return answer.failure.reason


# --- a server that lies -----------------------------------------------------------------------------------------------


def test_a_server_cannot_be_its_sites_partner(lying: LyingServer) -> None:
    """Keys that it made, keys of a site under other terms, and keys of another federation are unknown."""
    terms = replace(lying.terms, recipe=lying.terms.recipe.replace('"range": 8.0', '"range": 1024.0'))
    assert terms.recipe != lying.terms.recipe
    secret = lying.made.keys.sites["berlin"].secret.masking
    for stranger in (
        MaskingSite(lying.terms.masked, b"guess" * 8).voucher,
        MaskingSite(terms.masked, secret).voucher,
        MaskingSite(replace(lying.terms, federation="f" * 32).masked, secret).voucher,
    ):
        answer = lying.keys({**lying.vouchers, 2: stranger})
        assert (answer.message, answer.strangers) == (None, (2,))
    assert lying.keys(lying.vouchers).message is not None


def test_a_site_takes_no_sum_of_fewer_than_its_own_limit(build: Build) -> None:
    made = build("finetune", *MASKED, "federation.min_participants=4", "deployment.min_sites=4", sites=())
    made.limits = PartyLimits(least=4)
    for name in SITES:
        made.join(name)
    lying = LyingServer.of(made)
    three = {site: voucher for site, voucher in lying.vouchers.items() if site < 3}
    said = refusal(lying.keys(three))
    assert said == "a sum over 3 participants is asked for; this site takes at least 4"


def test_a_site_reports_once_in_a_round_whatever_is_asked_and_also_after_a_restart(lying: LyingServer) -> None:
    first = lying.ask(lying.call())
    assert first.reply is not None
    again = lying.ask(lying.call())
    assert encode(again) == encode(first), "the same request has the same answer"
    longer = replace(lying.call(), terms=replace(lying.terms, rounds=99))
    assert encode(lying.ask(longer)) == encode(first), "also where more rounds are planned than before"
    assert sum("a masked report is sent" in line for line in lying.made.said[AACHEN]) == 1
    three = {site: voucher for site, voucher in lying.vouchers.items() if site < 3}
    for answer in (lying.keys(three), lying.keys(lying.vouchers, sent="something else")):
        assert (answer.spent, answer.message) == (True, None)
    lying.made.reopen("aachen")
    fresh = lying.ask(KeysRequest(lying.terms, AACHEN)).voucher
    answer = lying.keys({**lying.vouchers, AACHEN: fresh})
    assert (answer.spent, answer.message) == (True, None)
    assert encode(lying.ask(longer)) == encode(first), "the masked report is on its disk"
    assert "other partners" in refusal(lying.ask(replace(lying.call(), partners=replace(longer.partners, session="s"))))


def test_all_participants_have_been_sent_the_same_model_and_classes_or_there_is_no_report(build: Build) -> None:
    """Otherwise each site's sums could stand in rows of their own, where the sum hides nothing."""
    made = build("finetune", *MASKED, sites=SITES)
    for name in ("ant", "bee"):
        made.add("aachen", name, *range(6))
    next(made.rounds())
    lying = LyingServer.of(made)
    call, broadcast = lying.call(), lying.opened.broadcast
    assert broadcast.context.classes == 2
    other = replace(broadcast, context=replace(broadcast.context, catalogue=broadcast.context.catalogue[::-1]))
    lies = {
        "with another model or other classes": replace(call, broadcast=other),
        "without the keys of its participants": replace(call, partners=None),
        "this site is participant 0 of the masked round, not 2": replace(call, order=Order(2, True)),
        "does not know the masked round": replace(call, partners=replace(call.partners, session="s")),
        "another key of this site": replace(call, partners=replace(call.partners, keys=call.partners.keys.flip(0))),
        "a sealed share does not open": replace(
            call, partners=replace(call.partners, boxes=call.partners.boxes.flip(0))
        ),
    }
    for why, lie in lies.items():
        assert why in without_masks(lying.ask(lie))
    assert lying.ask(call).reply is not None


def test_keys_of_a_round_before_are_refused(lying: LyingServer) -> None:
    """A replayed key: the server knows nothing of it, but it could have been stolen since."""
    old = lying.call().partners
    later = lying.keys(lying.vouchers, round=1).message
    assert isinstance(later, KeyMessage)
    assert "does not know the masked round" in without_masks(lying.ask(lying.call()))
    context = replace(lying.opened.broadcast.context, round=1)
    broadcast = replace(lying.opened.broadcast, context=context)
    session = Session.of(lying.terms.masked, 1, digest_of(broadcast), lying.vouchers)
    own = lying.ask(KeysRequest(lying.terms, AACHEN, session)).message
    assert old is not None
    keys = old.keys.clone()
    keys[AACHEN] = own.key
    replayed = replace(old, session=session.digest, keys=keys)
    call = replace(lying.call(), broadcast=broadcast, partners=replayed)
    assert "does not open: it is of another round" in without_masks(lying.ask(call))


def test_a_server_that_lies_about_who_dropped_out_opens_nothing(lying: LyingServer) -> None:
    whole = lying.question(range(4), ())
    assert "before this site has sent a report" in refusal(lying.ask(whole))
    lying.ask(lying.call())
    for question, why in (
        (lying.question(range(4), (3,)), "participant 3 is named both as alive and as dropped out"),
        (lying.question((1, 2, 3), (0,)), "this site has reported and is named as dropped out"),
        (lying.question((0, 1), (2, 3)), "2 participants have reported; this site unmasks sums over 3 on"),
        (lying.question((0, 1, 2), ()), "other participants than the round began with"),
    ):
        assert why in refusal(lying.ask(question))
    assert isinstance(lying.ask(whole), Unmasked)
    assert "unmasks a round once" in refusal(lying.ask(lying.question((0, 1, 2), (3,))))
    lying.made.reopen("aachen")
    assert "it was restarted" in refusal(lying.ask(whole))


def test_turns_of_masked_rounds_are_refused_where_reports_are_not_masked(build: Build) -> None:
    made = build("finetune", sites=SITES[:1])
    assert made.serve().membership is not None
    assert made.run is not None
    answer = made.handler("aachen")(encode_message(KeysRequest(made.run.terms, 0)), {})
    said = refusal(decode_message(answer, Answer, DEFAULT_LIMIT).content)
    assert said == "reports of this federation are not masked"


# --- a site that lies -------------------------------------------------------------------------------------------------


def spoilt(answer: Any) -> Message | None:
    """Return shares of which one is another number."""
    if not isinstance(answer, Unmasked):
        return None
    shares = answer.shares.clone()
    shares[2, 7] ^= 1
    return replace(answer, shares=shares)


def keys_like(change: Callable[[KeysResult], KeysResult]) -> Callable[[Any], Message | None]:
    return lambda answer: change(answer) if isinstance(answer, KeysResult) and answer.message else None


def renewed(answer: Any) -> Message | None:
    """Return another lasting key every time."""
    stranger = MaskingSite("f", b"s" * 32).voucher
    return KeysResult(stranger) if isinstance(answer, KeysResult) else None


def resized(answer: Any) -> Message | None:
    """Return a report of other numbers than a masked one has."""
    if not isinstance(answer, TrainResult) or answer.reply is None or answer.reply.report is None:
        return None
    report = replace(answer.reply.report, model={"sum": answer.reply.report.model["sum"][1:]})
    return replace(answer, reply=replace(answer.reply, report=report))


TRICKS: dict[str, tuple[Callable[[Any], Message | None], str, int, str]] = {
    "a wrong share": (spoilt, UNMASK, 4, "it sends a wrong share of participant 2"),
    "no share": (lambda it: Refusal("no") if isinstance(it, Unmasked) else None, UNMASK, 4, "it refuses: no"),
    "keys for other rounds": (
        keys_like(lambda it: replace(it, message=it.message and replace(it.message, session="s"))),
        KEYS,
        3,
        "it answers another masked round",
    ),
    "no keys": (keys_like(lambda it: replace(it, message=None)), KEYS, 3, "it sends no keys"),
    "partners denied": (
        keys_like(lambda it: replace(it, message=None, strangers=(0, 2, 3))),
        KEYS,
        3,
        "keys of 0, 2, 3",
    ),
    "a key a time": (renewed, KEYS, 3, "another lasting key each time"),
    "another report": (resized, "update", 3, "is refused: it has sum as"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_site_that_lies_is_named_and_the_others_have_their_sum(build: Build, trick: str) -> None:
    tamper, stage, reports, said = TRICKS[trick]
    made = build("finetune", *MASKED, rounds=1, sites=SITES)
    made.wire.tampered[1] = tamper
    (record,) = made.play()
    assert (record.reports, record.not_applied) == (reports, "")
    assert [(failure["client"], failure["stage"]) for failure in record.failures] == [(1, stage)]
    assert said in record.failures[0]["reason"]
    assert json.dumps(record.failures).count("berlin") == 1
