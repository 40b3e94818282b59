"""Who learns what between real sites: neither secret nor name nor image reaches the server, and no sender the proxy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.consortium import CLASSES, PROXY, SITES, Consortium, Keyring, contents, picture, small_config
from support.traces import forms, numbers, of_secret

from fcil.core.errors import FileError
from fcil.core.messages import Stream, decode, encode
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.core.messages.types import message_fields
from fcil.deployment.client.site import SiteParty
from fcil.deployment.keys.sealing import STEP, SealError, Secret, unseal
from fcil.deployment.transport.messages import (
    Answer,
    EvaluateRequest,
    IdentifyRequest,
    ProxyRequest,
    Refusal,
    Request,
    Sealed,
    SealedContent,
    TrainRequest,
    TrainResult,
    as_bytes,
    decode_message,
    encode_message,
)

USED = CLASSES[:3]
SEEDS = range(6)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Consortium]:
    """Return a federation with a proxy and two blocks of classes, run to its end."""
    made = Consortium(tmp_path_factory.mktemp("played"), keyring, small_config("glfc", rounds=5))
    for site in SITES[:3]:
        made.add(site, "ant", *SEEDS)
    made.add("cork", "bee", *SEEDS)
    made.wire.order = lambda answers: answers[::-1]
    made.play({2: lambda: made.add("aachen", "cow", *SEEDS)})
    assert made.run is not None
    assert made.server is not None
    made.run.finish()
    made.server.dismiss()
    yield made
    made.close()


def private(made: Consortium) -> dict[str, set[bytes]]:
    """Return what the server must never see, by what it is."""
    found = {
        **of_secret(made.keys.proxy.secret),
        "the proxy's root": numbers(made.keys.proxy.root),
        "the proxy's private keys": forms(made.keys.proxy.sealing) | forms(made.keys.proxy.signing),
        "names of files": {f"{name}-{seed:03}".encode() for name in USED for seed in SEEDS} | {b".png"},
        "names of classes": {f'"{name}"'.encode() for name in USED} | {f"/{name}/".encode() for name in USED},
        "images": {picture(name, seed).tobytes() for name in USED for seed in SEEDS},
        "places": {str(made.place / "data").encode(), str(made.place / "state").encode()},
    }
    for name in SITES[:3]:
        root = made.keys.sites[name].root
        found[f"the root of {name}"] = numbers(root)
        number, begun = SITES.index(name), [made.site(name).store.begun(played) for played in (3, 4)]
        seeds = [Stream(root, "client", one.task).seed(one.round, number) for one in begun if one is not None]
        assert len(seeds) == 2
        found[f"seeds of {name}"] = set().union(*map(numbers, seeds))
        found[f"nonces of {name}"] = set().union(*(numbers(one.nonce) for one in begun if one is not None))
    return found


def everything(made: Consortium) -> dict[str, bytes]:
    """Return all that the server ever had in its hands: its folders, and every byte that it sent or received."""
    seen = {f"run/{name}": data for name, data in contents(made.place / "run").items()}
    seen |= {f"keys/{name}": data for name, data in contents(made.keys.place / "server").items()}
    for place, envelope in enumerate(made.wire.sent):
        seen[f"sent {place}"] = envelope.content + b"".join(envelope.parcels.values())
    return seen | {f"received {place}": data for place, (_, data) in enumerate(made.wire.received)}


def test_nothing_private_is_in_anything_that_the_server_has_sent_received_or_kept(played: Consortium) -> None:
    seen = everything(played)
    for what, values in private(played).items():
        for where, data in seen.items():
            assert not any(value in data for value in values), f"{what} in {where}"


def test_the_search_finds_what_does_lie_somewhere(played: Consortium) -> None:
    wanted = private(played)
    at_site = b"".join(contents(played.state("aachen")).values())
    assert any(value in at_site for value in wanted["names of files"])
    assert any(value in at_site for value in wanted["images"])
    assert any(value in at_site for value in wanted["names of classes"]), "its own final model names them"
    keys = b"".join(contents(played.keys.place / "aachen").values())
    for what in ("the secret", "the root of aachen"):
        assert any(value in keys for value in wanted[what]), what
    at_server = b"".join(everything(played).values())
    assert played.keys.proxy.secret.class_id("ant").encode() in at_server, "ids it does have"
    assert b"berlin" in at_server


def test_prototypes_are_at_the_proxy_alone(played: Consortium) -> None:
    state = played.parties[PROXY].store.latest
    assert state is not None
    probes = [image.numpy().tobytes() for image in state.state.probes.images]  # type: ignore[attr-defined]
    assert probes
    seen = everything(played)
    assert any(probes[0] in data for data in contents(played.state("proxy")).values())
    assert not any(probe in data for probe in probes for data in seen.values())


# --- sealed boxes -------------------------------------------------------------------------------------------------


def boxes_of(made: Consortium) -> tuple[list[bytes], list[bytes]]:
    """Return the boxes with uploads and those with class ids that the server has relayed."""
    calls = made.wire.requests(ProxyRequest)
    uploads = [as_bytes(box.box) for call in calls for box in call.uploads]
    return uploads, [as_bytes(box.box) for call in calls for box in call.announcements]


def test_with_all_that_the_server_has_no_box_opens(played: Consortium) -> None:
    uploads, notices = boxes_of(played)
    assert len(uploads) == 3 + 1 + 1, "a prototype for each class that is new to a site"
    assert len(notices) == 3 * 5
    kept = {**contents(played.keys.place / "server"), **contents(played.place / "run")}
    candidates = set[bytes]()
    for name, data in kept.items():
        candidates |= {bytes.fromhex(found.decode()) for found in re.findall(rb"\b[0-9a-f]{64}\b", data)}
        if not name.endswith((".fcil", ".safetensors")):
            candidates |= {data[place : place + 32] for place in range(len(data) - 31)}
    candidates |= {hashlib.sha256(data).digest() for data in kept.values()}
    candidates.add(played.keys.proxy.public.sealing)
    assert len(candidates) > 1000
    for candidate in candidates:
        with pytest.raises(SealError):
            unseal(notices[0], candidate)
    key = played.keys.proxy.sealing
    assert all(unseal(box, key) for box in (*uploads, *notices)), "the proxy's key opens all of them"


def test_a_box_tells_nothing_by_its_size(played: Consortium) -> None:
    uploads, notices = boxes_of(played)
    smallest = STEP + 48  # with the sender's one-time key, and a tag
    assert {len(box) for box in notices} == {smallest}, "whether classes are announced or not"
    assert all((len(box) - smallest) % STEP == 0 for box in uploads)
    announced = [decode(unseal(box, played.keys.proxy.sealing), SealedContent).message.classes for box in notices]
    assert sorted(map(len, announced)) == [0] * 11 + [1, 1, 1, 2]
    assert {name for found in announced for name in found} == {played.keys.proxy.secret.class_id(name) for name in USED}


def test_every_site_sends_a_box_for_class_ids_in_every_round_and_none_in_the_open(played: Consortium) -> None:
    answers = played.wire.answers(TrainResult)
    assert len(answers) == 3 * 5
    for answer in answers:
        assert isinstance(answer.sealed, Sealed)
        assert answer.reply.announced == ()
        assert b"Diagnostics" not in encode(answer)
        assert all(isinstance(upload, Sealed) for upload in answer.reply.uploads)


# --- the proxy learns no sender -----------------------------------------------------------------------------------


def test_a_request_to_the_proxy_has_no_place_for_a_sender(played: Consortium) -> None:
    fields = {"terms", "context", "sent", "averaged", "uploads", "announcements"}
    fields |= {"allowed", "candidates"}  # how many new classes each box may have, and the server's own teachers
    assert set(message_fields(ProxyRequest)) == fields
    assert set(message_fields(Sealed)) == {"box"}
    for call in played.wire.requests(ProxyRequest):
        bare = encode(replace(call, uploads=(), announcements=()))
        assert not any(name.encode() in bare for name in SITES)
        assert b'"client"' not in bare
        assert b'"Order"' not in bare
    requests = [decode_message(one.content, Request, DEFAULT_LIMIT) for one in played.wire.sent if one.to == PROXY]
    assert {type(request).__name__ for request in requests} == {"IdentifyRequest", "ProxyRequest", "EndRequest"}


def test_boxes_lie_in_the_order_of_their_content_whoever_was_first(played: Consortium) -> None:
    """Answers came in reverse; a box's hash is random, so the order says nothing of numbers or of speed."""
    several = 0
    for call in played.wire.requests(ProxyRequest):
        for boxes in (call.uploads, call.announcements):
            hashes = [hashlib.sha256(encode(box)).digest() for box in boxes]
            assert hashes == sorted(hashes)
            several += len(hashes) > 1
    assert several >= 5
    received = [as_bytes(answer.sealed.box) for answer in played.wire.answers(TrainResult)]
    relayed = boxes_of(played)[1]
    assert sorted(received) == sorted(relayed)
    assert received != relayed


# --- texts of failures --------------------------------------------------------------------------------------------

PRIVATE = "/home/berlin/scans/patient-7.png"


def raising(error: Exception) -> object:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it


def last_call(made: Consortium, number: int = 0) -> TrainRequest:
    call = made.wire.requests(TrainRequest, number)[-1]
    assert isinstance(call, TrainRequest)
    return call


def answer_of(made: Consortium, request: TrainRequest | EvaluateRequest, name: str = "aachen") -> bytes:
    return made.handler(name)(encode_message(request), {})


@pytest.mark.parametrize("where", ["role", "folder", "images", "hold-out"])
@pytest.mark.parametrize("kind", [OSError, FileError, ValueError])
def test_what_goes_wrong_at_a_site_reaches_the_server_without_its_text(
    played: Consortium, monkeypatch: pytest.MonkeyPatch, where: str, kind: type[Exception]
) -> None:
    site, call = played.site("aachen"), last_call(played)
    fault = raising(kind(f"{PRIVATE} is gone"))
    request: TrainRequest | EvaluateRequest = call
    if site.broken:  # by the fault before this one
        site._restart()
        site._agree(call.terms)
    monkeypatch.setattr(site.store, "_answered", None)  # as if it was not answered yet
    monkeypatch.setattr(site.store, "evaluated", None)
    if where == "hold-out":
        request = played.wire.requests(EvaluateRequest, 0)[-1]
        monkeypatch.setattr(type(site.data), "hold_out_indices", property(fault))
    elif where == "role":
        monkeypatch.setattr(site.role, "round", fault)
    elif where == "folder":
        monkeypatch.setattr(site.data, "freeze", fault)
    else:
        monkeypatch.setattr(site.data.samples, "pixels", fault)
        monkeypatch.setattr(site.local.inference, "_cache", {})
    before = len(played.said[0])
    data = answer_of(played, request)
    assert PRIVATE.encode() not in data
    assert b"patient" not in data
    answer = decode_message(data, Answer, DEFAULT_LIMIT).content
    if isinstance(answer, TrainResult):
        assert answer.failure is not None
        assert re.fullmatch(f"{kind.__name__}; (the site|this party)'s own log says more", answer.failure.reason)
    else:
        assert isinstance(answer, Refusal)
        assert answer.sentence == f"{kind.__name__}; this party's own log says more"
    assert any(PRIVATE in line for line in played.said[0][before:]), "its own people read all of it"


def test_an_image_that_vanishes_while_the_folder_is_read_is_no_failure(
    played: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = played.add("berlin", "elk", 1)
    call = last_call(played, 1)
    context = call.broadcast.context
    later = replace(context, round=40, rounds_since_growth=context.rounds_since_growth + 40 - context.round)
    broadcast = replace(call.broadcast, context=later)
    bystander = replace(call, broadcast=broadcast.for_bystanders(), order=replace(call.order, participate=False))
    monkeypatch.setattr("fcil.deployment.client.ingest.find_images", vanishing(path))
    data = answer_of(played, replace(bystander, choice=None), "berlin")
    answer = decode_message(data, Answer, DEFAULT_LIMIT).content
    assert isinstance(answer, TrainResult)
    assert answer.failure is None
    assert not path.exists()
    assert b"elk" not in data


def vanishing(path: Path) -> object:
    from fcil.deployment.client.scan import find_images

    def found(*arguments: object) -> object:
        entries = list(find_images(*arguments))  # type: ignore[arg-type]
        path.unlink()
        return entries

    return found


@pytest.mark.parametrize("fault", ["another secret", "no data", "another hold-out"])
def test_a_site_that_cannot_begin_tells_the_server_neither_places_nor_classes(played: Consortium, fault: str) -> None:
    """Its own log names the folder, and the class whose id has changed."""
    party = played.site("cork")
    party.close()
    place, said = played.place, list[str]()
    keys = replace(party.keys, secret=Secret(bytes(32))) if fault == "another secret" else party.keys
    data = place / "nowhere" if fault == "no data" else party.place
    again = SiteParty(keys, data, party.folder, said.append, 0.3 if fault == "another hold-out" else 0.1)
    answer = again.handle(encode_message(IdentifyRequest(last_call(played).terms)), {})
    again.close()
    played.join("cork")
    assert isinstance(decode_message(answer, Answer, DEFAULT_LIMIT).content, Refusal)
    for private_text in (str(place), "ant is", "bee is"):
        assert private_text.encode() not in answer
    assert any(str(place) in line for line in said)
