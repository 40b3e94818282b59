"""A masked round among honest and dishonest parties, without any transport."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.core.errors import FederationError
from fcil.core.messages import decode, encode
from fcil.federation.masking.messages import (
    Masks,
    Session,
    Unmask,
    as_bytes,
    as_key,
    fewest_alive,
    row,
    threshold_of,
)
from fcil.federation.masking.primitives import Ring, add_stream
from fcil.federation.masking.server import MaskingServer
from fcil.federation.masking.site import MaskingSite

SECRET, FEDERATION = b"s" * 32, "f" * 32
LENGTH = 5


def covered(numbers: Ring, masks: Masks, undo: bool = False) -> Ring:
    found = numbers.copy()
    for seeds, negative in ((masks.added, undo), (masks.subtracted, not undo)):
        for place in range(len(seeds)):
            add_stream(found, row(seeds, place), negative)
    return found


@dataclass
class Parties:
    """The sites of a round by number, and its server."""

    sites: dict[int, MaskingSite]
    server: MaskingServer

    @classmethod
    def of(cls, numbers: Collection[int], least: int = 3, round: int = 0) -> Parties:
        sites = {number: MaskingSite(FEDERATION, SECRET, least) for number in numbers}
        return cls(sites, MaskingServer(session_of(sites, round)))

    def open(self) -> None:
        for number, site in self.sites.items():
            self.server.take_message(number, site.message(self.server.session, number))

    def masks(self, number: int) -> Masks:
        return self.sites[number].masks(self.server.partners(number))


def session_of(sites: dict[int, MaskingSite], round: int = 0, model: str = "m") -> Session:
    return Session.of(FEDERATION, round, model, {number: site.voucher for number, site in sites.items()})


def reports(numbers: Collection[int]) -> dict[int, Ring]:
    draw = np.random.default_rng(2021)
    return {number: draw.integers(0, 2**64, LENGTH, dtype=np.uint64) for number in numbers}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_sum_of_those_who_report_opens_whoever_drops_out(data: st.DataObject) -> None:
    """Drop-outs before the upload, after it, and both, above the threshold."""
    numbers = sorted(data.draw(st.sets(st.integers(0, 99), min_size=3, max_size=7)))
    threshold = threshold_of(len(numbers))
    least = fewest_alive(len(numbers), 3)
    alive = data.draw(st.permutations(numbers))[: data.draw(st.integers(least, len(numbers)))]
    helping = data.draw(st.permutations(alive))[: data.draw(st.integers(threshold, len(alive)))]
    parties, values = Parties.of(numbers), reports(numbers)
    parties.open()
    sent = {number: covered(values[number], parties.masks(number)) for number in alive}
    question = parties.server.ask(alive)
    for number in helping:
        parties.server.take_shares(number, parties.sites[number].shares(question))
    total = sum(sent.values(), np.zeros(LENGTH, dtype=np.uint64))
    wanted = sum((values[number] for number in alive), np.zeros(LENGTH, dtype=np.uint64))
    assert (covered(total, parties.server.masks(), undo=True) == wanted).all()
    for number in alive:
        assert not (sent[number] == values[number]).any()


def test_every_message_is_the_same_after_its_way() -> None:
    parties = Parties.of(range(3))
    parties.open()
    for number in range(3):
        parties.masks(number)
    question = parties.server.ask(range(3))
    answer = parties.sites[0].shares(question)
    first = parties.server.messages[0]
    for message in (parties.server.session, first, parties.server.partners(1), question, answer):
        assert encode(decode(encode(message), type(message))) == encode(message)
    assert decode(encode(parties.server.session), Session).digest == parties.server.session.digest


def test_one_mask_is_not_another() -> None:
    """Each circumstance of a round changes every mask: its number, its model and its participants."""
    sites = {number: MaskingSite(FEDERATION, SECRET) for number in range(4)}
    sessions = [session_of(sites), session_of(sites, 1), session_of(sites, model="n")]
    assert len({session.digest for session in sessions}) == 3
    del sites[3]
    assert session_of(sites).digest not in {session.digest for session in sessions}


# --- what a site refuses -------------------------------------------------------------------------------------------


def test_a_site_takes_no_sum_over_fewer_than_it_asks_for() -> None:
    parties = Parties.of(range(4), least=5)
    with pytest.raises(FederationError, match="4 participants is asked for; this site takes at least 5"):
        parties.open()


def test_a_site_takes_no_sum_over_more_than_have_room() -> None:
    site = MaskingSite(FEDERATION, SECRET)
    session = Session.of(FEDERATION, 0, "m", dict.fromkeys(range(1025), site.voucher))
    with pytest.raises(FederationError, match="1024 participants at most, not 1025"):
        site.message(session, 0)


@pytest.mark.parametrize("lie", ["another secret", "another federation", "another key"])
def test_a_key_that_no_site_vouches_for_is_refused(lie: str) -> None:
    sites = {number: MaskingSite(FEDERATION, SECRET) for number in range(3)}
    stranger = {
        "another secret": MaskingSite(FEDERATION, b"t" * 32).voucher,
        "another federation": MaskingSite("g" * 32, SECRET).voucher,
        "another key": replace(sites[2].voucher, key=as_key(b"k" * 32)),
    }[lie]
    session = Session.of(FEDERATION, 0, "m", {0: sites[0].voucher, 1: sites[1].voucher, 2: stranger})
    with pytest.raises(FederationError, match="the key of participant 2 is unknown"):
        sites[0].message(session, 0)


def test_one_site_in_the_place_of_two_is_refused() -> None:
    sites = {number: MaskingSite(FEDERATION, SECRET) for number in range(2)}
    session = Session.of(FEDERATION, 0, "m", {0: sites[0].voucher, 1: sites[1].voucher, 2: sites[1].voucher})
    with pytest.raises(FederationError, match="one key for two participants"):
        sites[0].message(session, 0)


def test_a_site_knows_its_own_key_and_its_federation() -> None:
    sites = {number: MaskingSite(FEDERATION, SECRET) for number in range(4)}
    others = {number: sites[number].voucher for number in range(3)}
    with pytest.raises(FederationError, match="another key for this site"):
        sites[3].message(Session.of(FEDERATION, 0, "m", others), 0)
    with pytest.raises(FederationError, match="another federation"):
        sites[0].message(Session.of("g" * 32, 0, "m", others), 0)


def test_a_message_of_another_round_is_refused() -> None:
    """A replayed key: the boxes of a round open in that round alone."""
    parties = Parties.of(range(3))
    parties.open()
    old = parties.server.messages[2]
    later = Parties(parties.sites, MaskingServer(session_of(parties.sites, 1)))
    later.open()
    with pytest.raises(FederationError, match="another masked round"):
        later.server.take_message(2, old)
    later.server.messages[2] = old  # by a server that does not care
    with pytest.raises(FederationError, match="participant 2: a sealed share does not open"):
        later.masks(0)


def test_keys_and_shares_cannot_be_exchanged_by_the_server() -> None:
    parties = Parties.of(range(3))
    parties.open()
    honest = parties.server.partners(0)
    for forged in (
        replace(honest, keys=honest.keys[torch.tensor([0, 2, 1])]),
        replace(honest, boxes=honest.boxes[torch.tensor([0, 2, 1])]),
        replace(honest, digests=honest.digests[torch.tensor([0, 2, 1])]),
        replace(honest, boxes=parties.server.partners(1).boxes),
    ):
        with pytest.raises(FederationError, match="does not open"):
            parties.sites[0].masks(forged)
    with pytest.raises(FederationError, match="another key of this site"):
        parties.sites[0].masks(replace(honest, keys=honest.keys.flip(0)))
    parties.sites[0].masks(honest)


def test_a_round_is_opened_once() -> None:
    """After a site has masked a report, the same round with other partners or another model is refused."""
    parties = Parties.of(range(4))
    parties.open()
    three = {number: site for number, site in parties.sites.items() if number < 3}
    parties.sites[3].message(session_of(parties.sites), 3)  # the same message as often as it is asked for
    parties.sites[2].message(session_of(three), 2)  # nothing was masked so far
    parties.masks(0)
    for again in (session_of(three), session_of(parties.sites, model="n")):
        with pytest.raises(FederationError, match="opens a round once"):
            parties.sites[0].message(again, 0)
    parties.sites[0].message(session_of(three, 1), 0)


def test_masks_are_the_same_for_the_same_keys_and_refused_for_others() -> None:
    parties = Parties.of(range(3))
    parties.open()
    first = parties.masks(0)
    assert torch.equal(parties.masks(0).added, first.added)
    parties.sites[1] = MaskingSite(FEDERATION, SECRET)
    with pytest.raises(FederationError, match="other keys than before"):
        parties.sites[0].masks(replace(parties.server.partners(0), keys=parties.server.partners(0).keys.flip(1)))


def test_masks_are_used_once() -> None:
    """The difference of two reports with the same masks would be in the clear."""
    parties = Parties.of(range(3))
    parties.open()
    parties.masks(0)
    parties.sites[0].spend(parties.server.session.digest)
    with pytest.raises(FederationError, match="masks are used once"):
        parties.masks(0)
    parties.sites[0].shares(question(parties, range(3), ()))


def opened(count: int = 6, least: int = 3) -> Parties:
    parties = Parties.of(range(count), least)
    parties.open()
    for number in range(count):
        parties.masks(number)
    return parties


def question(parties: Parties, alive: Collection[int], dropped: Collection[int]) -> Unmask:
    return Unmask(parties.server.session.digest, *(torch.tensor(sorted(each)).long() for each in (alive, dropped)))


@pytest.mark.parametrize(
    ("alive", "dropped", "said"),
    [
        ({0, 1, 2, 3, 4, 5}, {5}, "participant 5 is named both as alive and as dropped out"),
        ({0, 1, 2, 3, 4}, set(), "other participants than the round began with"),
        ({0, 1, 2, 3, 4, 5}, {6}, "other participants than the round began with"),
        ({1, 2, 3, 4, 5}, {0}, "this site has reported and is named as dropped out"),
        ({0, 1, 2}, {3, 4, 5}, "3 participants have reported; this site unmasks sums over 4 on"),
    ],
)
def test_unmasking_that_would_tell_a_report_is_refused(alive: set[int], dropped: set[int], said: str) -> None:
    parties = opened()
    with pytest.raises(FederationError, match=said):
        parties.sites[0].shares(question(parties, alive, dropped))
    parties.sites[0].shares(question(parties, range(6), ()))


def test_a_round_is_unmasked_once() -> None:
    """The same question has the same answer; another one would tell the difference of two sums."""
    parties = opened()
    first = parties.sites[0].shares(question(parties, range(6), ()))
    assert torch.equal(parties.sites[0].shares(question(parties, range(6), ())).shares, first.shares)
    with pytest.raises(FederationError, match="unmasks a round once"):
        parties.sites[0].shares(question(parties, range(5), (5,)))


def test_shares_are_given_after_the_report_and_by_who_knows_the_round() -> None:
    parties = Parties.of(range(3))
    parties.open()
    with pytest.raises(FederationError, match="before this site has sent a report"):
        parties.sites[0].shares(question(parties, range(3), ()))
    with pytest.raises(FederationError, match="it was restarted"):
        MaskingSite(FEDERATION, SECRET).shares(question(parties, range(3), ()))


@pytest.mark.parametrize("participants", range(3, 13))
@pytest.mark.parametrize("least", [3, 5, 7])
def test_no_lie_about_drop_outs_opens_a_sum_of_fewer_than_the_least(participants: int, least: int) -> None:
    """A server that tells each site something else can have so many keys at most, and no two secrets of one site."""
    alive, threshold = fewest_alive(participants, least), threshold_of(participants)
    assert 2 * threshold > participants, "a site's two secrets take two thirds each, and a site answers once"
    if alive > participants:
        assert participants < least
        return
    keys = participants * (participants - alive) // threshold
    assert participants - keys >= least
    assert alive >= max(threshold, least)


# --- what the server refuses ---------------------------------------------------------------------------------------


def test_a_wrong_share_is_found_and_the_sum_opens_without_it() -> None:
    parties, values = Parties.of(range(4)), reports(range(4))
    parties.open()
    sent = [covered(values[number], parties.masks(number)) for number in range(4)]
    asked = parties.server.ask(range(4))
    wrong = parties.sites[3].shares(asked)
    wrong.shares[1, 5] ^= 1
    with pytest.raises(FederationError, match="wrong share of participant 1"):
        parties.server.take_shares(3, wrong)
    for number in range(3):
        parties.server.take_shares(number, parties.sites[number].shares(asked))
    total = sent[0] + sent[1] + sent[2] + sent[3]
    assert (covered(total, parties.server.masks(), undo=True) == values[0] + values[1] + values[2] + values[3]).all()


def test_a_dealer_whose_shares_give_no_secret_is_named() -> None:
    parties = opened(3)
    parties.server.messages[1] = replace(parties.server.messages[1], seed=as_key(bytes(32)))
    asked = parties.server.ask(range(3))
    for number in range(3):
        parties.server.take_shares(number, parties.sites[number].shares(asked))
    with pytest.raises(FederationError, match="participant 1 has dealt shares that give no seed"):
        parties.server.masks()


def test_too_few_reports_or_shares_end_a_round_with_a_sentence() -> None:
    parties = opened()
    with pytest.raises(FederationError, match="3 of 6 participants have reported; a masked sum needs 4"):
        parties.server.ask(range(3))
    asked = parties.server.ask(range(6))
    parties.server.take_shares(0, parties.sites[0].shares(asked))
    with pytest.raises(FederationError, match="1 participants help to unmask the sum; 4 must"):
        parties.server.masks()


def test_the_server_alone_opens_nothing() -> None:
    """Without shares, nothing that the server has seen derives a mask: the lasting keys and secrets are the sites'."""
    parties = opened(3)
    known = [as_bytes(message.key) for message in parties.server.messages.values()]
    known += [as_bytes(message.seed) for message in parties.server.messages.values()]
    seeds = {row(parties.masks(number).added, 0) for number in range(3)}
    assert not seeds & set(known)
    assert len(seeds) == 3
