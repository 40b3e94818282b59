"""A site and a proxy answer requests: each as often as it is asked, and none that breaks what was agreed on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.consortium import PROXY, Consortium, Keyring, contents, small_config
from support.folders import age

from fcil.core.errors import CheckpointError, FederationError
from fcil.core.messages import (
    Announcement,
    Message,
    Missing,
    Order,
    RoundContext,
    Teachers,
    decode,
    encode,
    model_digest,
)
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.client.site import SiteParty
from fcil.deployment.keys.sealing import make_signing_key, seal, unseal
from fcil.deployment.party import TERMS, Party
from fcil.deployment.party_store import ANSWER, MODELS, MOST_PARCELS, STAMPS
from fcil.deployment.proxy import ProxyRunner
from fcil.deployment.signed_teachers import read_choice, signed_choice
from fcil.deployment.transport.messages import (
    BOX_HEADER,
    Answer,
    EndRequest,
    EvaluateRequest,
    EvaluationResult,
    IdentifyRequest,
    Identity,
    ProxyRequest,
    ProxyResult,
    Refusal,
    Request,
    Sealed,
    SealedContent,
    TrainRequest,
    TrainResult,
    as_bytes,
    as_tensor,
    decode_message,
    encode_message,
    encode_model,
    release,
)

pytestmark = pytest.mark.xdist_group("party")  # they share a federation, which each of them goes on with
PLAYED = 4  # rounds before the one that is asked for
KEPT = (STAMPS, ANSWER, TERMS, "index.fcil")


@dataclass
class Paused:
    """A federation whose server has asked for a round that nobody has answered yet; the newest block has teachers."""

    made: Consortium
    calls: list[TrainRequest]  # to aachen, by round
    parcels: dict[str, bytes]  # that go with the last one

    @property
    def call(self) -> TrainRequest:
        return self.calls[-1]

    @property
    def site(self) -> SiteParty:
        return self.made.site("aachen")

    @property
    def proxy(self) -> ProxyRunner:
        party = self.made.parties[PROXY]
        assert isinstance(party, ProxyRunner)
        return party

    def ask(self, request: Message | bytes, parcels: dict[str, bytes] | None = None, name: str = "aachen") -> Message:
        """Return what a party answers to a request."""
        data = request if isinstance(request, bytes) else encode_message(request)
        found = self.made.handler(name)(data, self.parcels if parcels is None else parcels)
        return decode_message(found, Answer, DEFAULT_LIMIT).content

    def refused(self, request: Message | bytes, parcels: dict[str, bytes] | None = None, name: str = "aachen") -> str:
        """Return the sentence with which a party refuses a request; nothing that it keeps has changed."""
        before = self._kept(name)
        answer = self.ask(request, parcels, name)
        assert isinstance(answer, Refusal), answer
        assert self._kept(name) == before
        assert "\n" not in answer.sentence
        return answer.sentence

    def _kept(self, name: str) -> dict[str, bytes]:
        return {file: data for file, data in contents(self.made.state(name)).items() if file in KEPT}


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Paused]:
    config = small_config("glfc", "deployment.attempts=1", rounds=9)
    made = Consortium(tmp_path_factory.mktemp("paused"), keyring, config, ("aachen", "berlin"))
    for site in ("aachen", "berlin"):
        made.add(site, "ant", *range(6))
    rounds = made.rounds()
    for number in range(PLAYED):
        next(rounds)
        if number == 1:
            made.add("aachen", "bee", *range(6))
            made.add("berlin", "bee", *range(20, 26))
    made.wire.silent = {0, 1}
    with pytest.raises(FederationError):
        next(rounds)
    made.wire.silent = set()
    calls = made.wire.requests(TrainRequest, 0)
    (envelope,) = [one for one in made.wire.sent if one.content == encode_message(calls[-1])]
    yield Paused(made, calls, dict(envelope.parcels))
    made.close()


def test_the_round_that_was_asked_for_has_signed_teachers_and_is_played(paused: Paused) -> None:
    call = paused.call
    assert (call.broadcast.context.round, len(call.broadcast.context.blocks)) == (PLAYED, 2)
    assert None not in (call.broadcast.teachers.current, call.broadcast.teachers.last)
    answer = paused.ask(call)
    assert isinstance(answer, TrainResult)
    assert answer.reply is not None
    assert answer.reply.report is not None
    assert b"Diagnostics" not in encode(answer), "they are its own"


def following(paused: Paused, later: int = 1, **changed: Any) -> TrainRequest:
    """Return a call for a later round, with a broadcast that is changed."""
    context = later_context(paused, later)
    assert paused.call.choice is not None
    choosing = replace(read_choice(paused.call.choice), round=context.round)
    broadcast = replace(paused.call.broadcast, context=context, **changed)
    return replace(paused.call, broadcast=broadcast, choice=signed_choice(choosing, paused.proxy.keys.signing))


def later_context(paused: Paused, later: int) -> RoundContext:
    """Return the context some rounds later, when no class has come."""
    context = paused.call.broadcast.context
    since = context.rounds_since_growth + later
    return replace(context, round=context.round + later, rounds_since_growth=since)


# --- the same request again ----------------------------------------------------------------------------------------


def test_a_lost_answer_is_given_again_to_the_byte_whatever_happened_meanwhile(paused: Paused) -> None:
    made, request = paused.made, encode_message(paused.call)
    first = made.handler("aachen")(request, paused.parcels)
    assert made.handler("aachen")(request, paused.parcels) == first
    made.reopen("aachen")
    assert made.handler("aachen")(request, {}) == first
    (new,) = made.add("aachen", "ant", 77)
    assert made.handler("aachen")(request, {}) == first
    new.unlink()


def opened(played: Message, paused: Paused) -> list[bytes]:
    """Return what a site's boxes hold."""
    assert isinstance(played, TrainResult)
    assert played.reply is not None
    assert played.sealed is not None
    boxes = [played.sealed, *(box for box in played.reply.uploads if isinstance(box, Sealed))]
    return [unseal(as_bytes(box.box), paused.proxy.keys.sealing) for box in boxes]


def test_a_site_that_was_killed_before_it_kept_its_answer_plays_the_same_again(paused: Paused) -> None:
    """The images that came meanwhile belong to the next round; only the boxes are sealed anew."""
    made = paused.made
    first = paused.ask(paused.call)
    made.parties[0].close()
    (paused.site.folder / ANSWER).unlink()
    (new,) = made.add("aachen", "ant", 78)
    made.join("aachen")
    again = paused.ask(paused.call)
    new.unlink()
    assert isinstance(first, TrainResult)
    assert isinstance(again, TrainResult)
    assert first.reply is not None
    assert again.reply is not None
    assert encode(replace(again.reply, uploads=())) == encode(replace(first.reply, uploads=()))
    assert opened(again, paused) == opened(first, paused)
    assert first.sealed is not None
    assert again.sealed is not None
    assert as_bytes(again.sealed.box) != as_bytes(first.sealed.box)


def test_so_does_the_proxy(paused: Paused) -> None:
    made = paused.made
    requests = [one for one in made.wire.sent if one.to == PROXY]
    last = requests[-1]
    first = made.handler("proxy")(last.content, {})
    made.reopen("proxy")
    assert made.handler("proxy")(last.content, {}) == first
    made.parties[PROXY].close()
    (made.state("proxy") / ANSWER).unlink()
    made.join("proxy")
    again = made.handler("proxy")(last.content, {})
    answer = decode_message(again, Answer, DEFAULT_LIMIT).content
    assert isinstance(answer, ProxyResult)
    assert again == first, "a signature has no randomness"
    boxes = decode(last.content.partition(b"\n")[2], ProxyRequest)
    assert len(boxes.uploads) == 2
    number = boxes.context.round
    rebuilt = encode(made.parties[PROXY].store.before(number + 1))
    turned = replace(boxes, uploads=boxes.uploads[::-1], announcements=boxes.announcements[::-1])
    made.parties[PROXY].close()
    (made.state("proxy") / ANSWER).unlink()
    made.join("proxy")
    assert made.handler("proxy")(encode_message(turned), {}) == first, "whatever the order of the boxes"
    assert encode(made.parties[PROXY].store.before(number + 1)) == rebuilt, "and so are the images"


def test_the_proxy_ends_a_round_when_its_owners_seconds_are_over(paused: Paused) -> None:
    """The server names the evaluations and restarts of a rebuilding, which may be a million each."""
    last = [one for one in paused.made.wire.sent if one.to == PROXY][-1]
    first = encode(paused.ask(last.content, {}, "proxy"))
    (paused.made.state("proxy") / ANSWER).unlink()
    paused.made.reopen("proxy")
    paused.ask(IdentifyRequest(paused.call.terms), {}, "proxy")
    machine = paused.proxy.machine
    assert machine.seconds == paused.proxy.limits.seconds
    machine.seconds = -1.0
    assert paused.refused(last.content, {}, "proxy") == "the round takes longer than this party's limit seconds, -1"
    machine.seconds = 3600.0
    assert encode(paused.ask(last.content, {}, "proxy")) == first


def test_a_failure_is_no_answer_for_good(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    call = replace(paused.call, order=Order(0, False), choice=None, broadcast=paused.call.broadcast.for_bystanders())
    (paused.site.folder / ANSWER).unlink(missing_ok=True)
    paused.ask(paused.call)  # a site has its role once it has trained
    with monkeypatch.context() as patched:
        patched.setattr(paused.site.role, "round", broken)
        answer = paused.ask(call)
        assert isinstance(answer, TrainResult)
        assert answer.failure is not None
    again = paused.ask(call)
    assert isinstance(again, TrainResult)
    assert again.reply is not None


def broken(*_: object) -> None:
    raise OSError("/home/berlin/scans/patient-7.png is gone")


# --- who may ask for what -----------------------------------------------------------------------------------------


def test_terms_stay_as_they_were_agreed_on(paused: Paused) -> None:
    terms = paused.call.terms
    recipe = json.loads(terms.recipe)
    recipe["config"]["perturb_noise"] = 0.0
    recipe["train"]["epochs"] = 50
    changed = replace(paused.call, terms=replace(terms, recipe=json.dumps(recipe)))
    sentence = paused.refused(changed)
    assert sentence.startswith("the server has changed its terms since this party joined: config.perturb_noise (0.1 ")
    assert "train.epochs (1 there, 50 here)" in sentence
    assert "changed its terms" in paused.refused(
        ProxyRequest(changed.terms, changed.broadcast.context, "", ""), {}, "proxy"
    )
    paused.made.reopen("aachen")
    assert paused.refused(changed) == sentence, "over a restart, too"
    assert paused.refused(replace(paused.call, terms=replace(terms, recipe="{")))


def test_another_federation_is_refused(paused: Paused) -> None:
    terms = replace(paused.call.terms, federation="f" * 32)
    for name in ("aachen", "proxy"):
        sentence = paused.refused(IdentifyRequest(terms), {}, name)
        ours = paused.call.terms.federation[:8]
        assert f"belongs to the federation {ours}, and the server runs ffffffff; name another --state" in sentence


@pytest.mark.parametrize("name", ["aachen", "proxy"])
def test_requests_for_others_are_refused(paused: Paused, name: str) -> None:
    context, terms = paused.call.broadcast.context, paused.call.terms
    foreign: Request = paused.call if name == "proxy" else ProxyRequest(terms, context, "", "")
    who = "proxy" if name == "proxy" else "site"
    assert paused.refused(foreign, {}, name) == f"a {who} does not answer a {type(foreign).__name__}"


def test_what_is_no_request_is_refused(paused: Paused) -> None:
    whole = encode_message(paused.call)
    assert "this is not a message of fcil" in paused.refused(b"\x80garbage")
    assert "truncated message" in paused.refused(whole[:-1])
    older = whole.replace(release().encode(), b"fcil protocol 1 release 0.0.1", 1)
    sentence = paused.refused(older)
    assert "fcil protocol 1 release 0.0.1" in sentence
    assert release() in sentence


def test_a_round_long_past_is_refused(paused: Paused) -> None:
    paused.ask(paused.call)
    sentence = paused.refused(paused.calls[PLAYED - 2], {})
    assert f"asks for round {PLAYED - 1}, but this site has gone on to round {PLAYED + 1}" in sentence


def test_a_request_with_a_message_that_nobody_knows_is_refused(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Surprise(Message):
        number: int

    broadcast = replace(paused.call.broadcast, extra=Surprise(1))
    request = encode_message(replace(paused.call, broadcast=broadcast))
    (name,) = [key for key, kind in Message.registry.items() if kind is Surprise]
    monkeypatch.delitem(Message.registry, name)
    assert f"unknown message type '{name}'" in paused.refused(request)


def test_pools_that_a_round_names_are_asked_for_and_nothing_is_played_without_them(paused: Paused) -> None:
    answer = paused.ask(following(paused, pools=("0" * 32,)))
    assert isinstance(answer, Missing)
    assert answer.digests == ("0" * 32,)


def test_a_model_that_is_not_the_one_with_its_digest_is_refused(paused: Paused) -> None:
    digest = paused.call.broadcast.model
    paused.ask(paused.call)
    other = {name: tensor + 1 for name, tensor in paused.site.store.model(digest).items()}
    fresh = model_digest(other)
    broadcast = replace(paused.call.broadcast, model=fresh)
    for data in (encode_model(fresh, paused.site.store.model(digest)), b"FCIL", encode_model(fresh, other)[:-4]):
        sentence = paused.refused(replace(paused.call, broadcast=broadcast), {fresh: data})
        assert fresh in sentence
        assert fresh not in paused.site.store.held


def test_a_request_with_more_models_than_a_round_needs_fills_no_disk(paused: Paused) -> None:
    models = [{"weight": torch.full((2,), float(number))} for number in range(MOST_PARCELS + 1)]
    parcels = {model_digest(model): encode_model(model_digest(model), model) for model in models}
    broadcast = replace(paused.call.broadcast, pools=("1" * 32,))  # a request that was not answered before
    sentence = paused.refused(replace(paused.call, broadcast=broadcast), parcels)
    assert f"comes with {MOST_PARCELS + 1} models" in sentence
    assert not set(parcels) & set(paused.site.store.held)


def test_a_model_that_no_network_fits_costs_a_round_and_no_more(paused: Paused) -> None:
    strange = {"weight": torch.zeros(2)}
    digest = model_digest(strange)
    answer = paused.ask(following(paused, model=digest), {**paused.parcels, digest: encode_model(digest, strange)})
    assert isinstance(answer, TrainResult)
    assert answer.reply is None
    assert answer.failure is not None
    assert answer.failure.reason == "the model does not have an output for each class of the catalogue"
    assert isinstance(paused.ask(paused.call), TrainResult)


# --- the signed choice --------------------------------------------------------------------------------------------

WRONG = f"the teachers of round {PLAYED + 1} are not those that the proxy has signed"


def resigned(paused: Paused, **changed: object) -> TrainRequest:
    """Return the call with a choice that says something else and that the proxy itself has signed."""
    assert paused.call.choice is not None
    choosing = replace(read_choice(paused.call.choice), **changed)
    return replace(paused.call, choice=signed_choice(choosing, paused.proxy.keys.signing))


def test_a_choice_that_another_key_has_signed_is_refused(paused: Paused) -> None:
    assert paused.call.choice is not None
    forged = signed_choice(read_choice(paused.call.choice), make_signing_key())
    assert "does not carry the proxy's signature" in paused.refused(replace(paused.call, choice=forged), {})
    content = replace(paused.call.choice, content=forged.content, signature=forged.signature.flip(0))
    assert "does not carry the proxy's signature" in paused.refused(replace(paused.call, choice=content), {})


@pytest.mark.parametrize(
    "changed", [{"round": PLAYED - 1}, {"round": PLAYED + 1}, {"blocks": 1}, {"federation": "f" * 32}]
)
def test_a_choice_for_another_round_block_or_federation_is_refused(paused: Paused, changed: dict[str, object]) -> None:
    assert isinstance(paused.ask(resigned(paused)), TrainResult), "signed anew, it is as good as before"
    assert paused.refused(resigned(paused, **changed), {}) == WRONG


def test_the_choice_of_the_round_before_cannot_be_used_again(paused: Paused) -> None:
    former = paused.calls[PLAYED - 1]
    assert former.choice is not None
    broadcast = replace(paused.call.broadcast, teachers=former.broadcast.teachers)
    assert paused.refused(replace(paused.call, choice=former.choice, broadcast=broadcast), {}) == WRONG


def test_the_server_cannot_exchange_the_teachers(paused: Paused) -> None:
    current, last = paused.call.broadcast.teachers.current, paused.call.broadcast.teachers.last
    assert current is not None
    for teachers in (
        Teachers(last, current),
        Teachers(current, None),
        Teachers(),
        Teachers(replace(current, digest=paused.call.broadcast.model[::-1]), last),
        Teachers(replace(current, outputs=1), last),
    ):
        changed = replace(paused.call, broadcast=replace(paused.call.broadcast, teachers=teachers))
        assert paused.refused(changed, {}) == WRONG


def test_nor_leave_the_choice_out(paused: Paused) -> None:
    without = replace(paused.call, choice=None)
    sentence = f"round {PLAYED + 1} comes without the proxy's choice of teachers"
    assert paused.refused(without, {}) == sentence
    assert paused.refused(replace(without, order=Order(0, False)), {}) == sentence, "a bystander is given no teachers"
    bare = replace(without, broadcast=replace(without.broadcast, teachers=Teachers()))
    assert paused.refused(bare, {}) == sentence
    begun = replace(without.broadcast, context=replace(without.broadcast.context, round=0))
    assert "comes without the proxy's choice" in paused.refused(replace(without, broadcast=begun), {})


# --- how a party begins -------------------------------------------------------------------------------------------


def joining(paused: Paused, place: Path, method: str, **keys: object) -> tuple[SiteParty, IdentifyRequest]:
    """Return a site that has just connected to a federation of another method, and the first request to it."""
    recipe = json.loads(paused.call.terms.recipe)
    shown = small_config(method)
    recipe |= {"method": method, "config": shown.method.model_dump(mode="json")}
    (place / "data").mkdir()
    party = SiteParty(replace(paused.made.keys.sites["cork"], **keys), place / "data", place / "state", lambda _: None)  # type: ignore[arg-type]
    return party, IdentifyRequest(replace(paused.call.terms, recipe=json.dumps(recipe)))


def first_answer(party: Party, request: Request) -> Message:
    party.accept(request.terms.digest)
    answer = decode_message(party.handle(encode_message(request), {}), Answer, DEFAULT_LIMIT).content
    party.close()
    return answer


def test_a_site_without_the_proxys_keys_cannot_take_part_where_there_is_a_proxy(paused: Paused, tmp_path: Path) -> None:
    answer = first_answer(*joining(paused, tmp_path, "glfc", proxy=None))
    assert isinstance(answer, Refusal)
    assert answer.sentence.startswith(
        "the method glfc sends prototypes to a proxy, and this site's keys have no proxy."
    )
    assert not (tmp_path / "state" / TERMS).exists(), "nothing was agreed on"


def test_it_can_where_there_is_none(paused: Paused, tmp_path: Path) -> None:
    answer = first_answer(*joining(paused, tmp_path, "icarl", proxy=None))
    assert answer == Identity("cork", "site")
    assert (tmp_path / "state" / TERMS).exists()


def test_the_oracle_is_refused(paused: Paused, tmp_path: Path) -> None:
    party, request = joining(paused, tmp_path, "icarl")
    recipe = json.loads(request.terms.recipe)
    recipe["config"]["detector"] = "oracle"
    answer = first_answer(party, IdentifyRequest(replace(request.terms, recipe=json.dumps(recipe))))
    assert isinstance(answer, Refusal)
    assert answer.sentence == "method.detector: the oracle knows a simulation's truth; a real site has none"


@pytest.mark.parametrize("recipe", ["", "[]", "{}", '{"method": "glfc"}', '{"method": 1}', "[" * 100_000])
def test_terms_that_make_no_sense_are_refused(paused: Paused, tmp_path: Path, recipe: str) -> None:
    party, request = joining(paused, tmp_path, "icarl")
    answer = first_answer(party, IdentifyRequest(replace(request.terms, recipe=recipe)))
    assert isinstance(answer, Refusal)
    assert answer.sentence


def test_a_proxy_says_that_a_method_needs_none(paused: Paused, tmp_path: Path) -> None:
    _, request = joining(paused, tmp_path, "icarl")
    answer = first_answer(ProxyRunner(paused.made.keys.proxy, tmp_path / "proxy", lambda _: None), request)
    assert isinstance(answer, Refusal)
    assert answer.sentence == "the method icarl needs no proxy; the federation goes on without this one"


def test_a_folder_in_use_is_refused_before_anything_in_it_is_touched(paused: Paused) -> None:
    stray = paused.site.folder / MODELS / f"{'0' * 32}.fcil"
    stray.write_bytes(b"on its way")
    with pytest.raises(CheckpointError, match="is in use by another process"):
        SiteParty(paused.site.keys, paused.site.place, paused.site.folder, lambda _: None)
    assert stray.exists()
    stray.unlink()


# --- other requests ------------------------------------------------------------------------------------------------


def test_an_evaluation_counts_the_hold_out_by_output(paused: Paused) -> None:
    context, digest = later_context(paused, 1), paused.call.broadcast.model
    paused.ask(paused.call)
    lacking = paused.ask(EvaluateRequest(paused.call.terms, context, "0" * 32))
    assert isinstance(lacking, Missing)
    answer = paused.ask(EvaluateRequest(paused.call.terms, context, digest))
    assert isinstance(answer, EvaluationResult)
    assert answer.total.tolist() == [1, 1], "one image of six is held out of each class"


def test_a_model_that_was_lost_while_the_site_ran_is_refused_once_and_then_sent_again(paused: Paused) -> None:
    digest = paused.call.broadcast.model
    paused.ask(paused.call)
    exam = EvaluateRequest(paused.call.terms, later_context(paused, 2), digest, last=True)
    paused.made.reopen("aachen")
    shutil.rmtree(paused.site.folder / MODELS)
    sentence = paused.refused(exam, {})
    assert sentence == "FileError; this party's own log says more"
    lacking = paused.ask(exam, {})
    assert isinstance(lacking, Missing)
    assert digest not in paused.site.store.held
    assert isinstance(paused.ask(exam), EvaluationResult)


def test_a_farewell_ends_it(paused: Paused) -> None:
    berlin = paused.made.site("berlin")
    assert not berlin.dismissed
    paused.ask(EndRequest(paused.call.terms), {}, "berlin")
    assert berlin.dismissed


def test_an_unreadable_file_is_told_to_the_site_alone(paused: Paused) -> None:
    spoilt = paused.made.data("berlin") / "ant" / "broken-scan.png"
    spoilt.write_bytes(b"no picture")
    age(spoilt, 60)
    call = replace(paused.calls[-1], order=Order(1, True))
    answer = paused.ask(call, paused.parcels, "berlin")
    assert isinstance(answer, TrainResult)
    assert b"broken-scan" not in encode(answer)
    assert any("broken-scan.png is left out" in line for line in paused.made.said[1])


def test_the_proxy_leaves_out_boxes_of_another_round(paused: Paused) -> None:
    """A server that hands in a former round's box again would let a prototype count twice."""
    call, proxy = paused.call, paused.proxy
    former = SealedContent(call.terms.federation, call.broadcast.context.round - 1, Announcement(("an old id",)))
    present = SealedContent(call.terms.federation, call.broadcast.context.round, Announcement(("a new id",)))
    foreign = SealedContent("another federation", call.broadcast.context.round, Announcement(("a foreign id",)))
    boxes = [Sealed(as_tensor(seal(encode(one), proxy.keys.public.sealing))) for one in (former, present, foreign)]
    found = proxy._opened(boxes, Announcement, call.broadcast.context.round)
    assert [one.classes for one in found] == [("a new id",)]


def test_the_proxy_leaves_out_a_box_that_would_fill_its_memory(paused: Paused) -> None:
    call, proxy = paused.call, paused.proxy
    number = call.broadcast.context.round
    present = SealedContent(call.terms.federation, number, Announcement(("a new id",)))
    wordy = SealedContent(call.terms.federation, number, Announcement(("",) * (BOX_HEADER // 3)))
    boxes = [Sealed(as_tensor(seal(encode(one), proxy.keys.public.sealing))) for one in (wordy, present)]
    found = proxy._opened(boxes, Announcement, number)
    assert [one.classes for one in found] == [("a new id",)]
    said = [line for lines in paused.made.said.values() for line in lines]
    assert any(f"left out: the message declares a header of {BOX_HEADER // 1000}" in line for line in said)
