"""Envelopes: what is put in comes out, and whatever else comes is refused in one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

import fcil
from fcil.core.errors import FederationError
from fcil.core.messages import (
    Announcement,
    Broadcast,
    CodecError,
    Message,
    Missing,
    Order,
    Reply,
    RoundContext,
    decode,
    encode,
    model_digest,
)
from fcil.core.messages.codec import DEFAULT_LIMIT, FRAME
from fcil.deployment.transport.messages import (
    ANSWER_HEADER,
    BOX_HEADER,
    OLDEST,
    PROTOCOL,
    REQUEST_HEADER,
    Answer,
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
    TeacherChoice,
    Terms,
    TrainRequest,
    TrainResult,
    as_bytes,
    as_tensor,
    common_protocol,
    decode_message,
    decode_model,
    encode_message,
    encode_model,
    release,
)
from fcil.federation.class_catalogue import LONGEST_ID, MOST_ANNOUNCED, MOST_CLASSES

LIMIT = 1 << 20
TERMS = Terms("a1b2c3d4", "{}")
MODEL = {"head.weight": torch.arange(6.0).view(2, 3), "steps": torch.tensor(7)}

texts = st.text(max_size=8)
digests = st.lists(texts, max_size=4).map(tuple)
boxes = st.lists(st.binary(max_size=50).map(lambda data: Sealed(as_tensor(data))), max_size=3).map(tuple)
moments = st.builds(RoundContext, st.integers(0, 99), digests, st.just((1, 2)), st.integers(0, 9))
orders = st.builds(Order, st.integers(), st.booleans())
requests: st.SearchStrategy[Message] = st.one_of(
    st.builds(IdentifyRequest, st.builds(Terms, texts, texts)),
    st.builds(TrainRequest, st.just(TERMS), st.builds(Broadcast, moments, texts), orders),
    st.builds(EvaluateRequest, st.just(TERMS), moments, texts, st.booleans()),
    st.builds(ProxyRequest, st.just(TERMS), moments, texts, texts, boxes, boxes),
    st.builds(Answer, digests, st.builds(Identity, texts, texts)),
    st.builds(Answer, digests, st.builds(Missing, digests)),
    st.builds(Answer, digests, st.builds(Refusal, texts)),
    st.builds(ProxyResult, st.just(()), digests, st.dictionaries(texts, st.floats(allow_nan=False))),
)


@given(requests)
def test_what_is_put_into_an_envelope_comes_out_again(message: Message) -> None:
    found = decode_message(encode_message(message), type(message), LIMIT)
    assert type(found) is type(message)
    assert encode(found) == encode(message)


@given(st.binary(max_size=300))
def test_bytes_are_held_as_they_are(data: bytes) -> None:
    assert as_bytes(as_tensor(data)) == data


@examples(20)
@given(st.data())
def test_a_cut_or_changed_envelope_is_refused_or_read_as_a_request_but_never_crashes(data: st.DataObject) -> None:
    whole = encode_message(Answer(("a" * 32,), Identity("berlin")))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(FederationError):
        decode_message(cut, Answer, LIMIT)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    try:
        decode_message(changed, Answer, LIMIT)
    except FederationError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(500), b"fcil protocol " + b"x" * 500])
def test_garbage_is_no_request(garbage: bytes) -> None:
    with pytest.raises(FederationError, match="this is not a message of fcil: it begins with b'"):
        decode_message(garbage, Request, LIMIT)


@pytest.mark.parametrize(
    "line",
    [
        f"fcil protocol {PROTOCOL + 1}-{PROTOCOL + 3} release 99.0.1",
        f"fcil protocol 1-{OLDEST - 1} release 0.0.1",
        f"fcil protocol {PROTOCOL} release {fcil.__version__}",
        f"fcil protocol {OLDEST}-x release 1",
    ],
)
def test_another_release_is_refused_by_a_sentence_that_names_both(line: str) -> None:
    content = encode_message(IdentifyRequest(TERMS)).partition(b"\n")[2]
    with pytest.raises(FederationError) as caught:
        decode_message(f"{line}\n".encode() + content, Request, LIMIT)
    assert f"({line}, here {release()})" in str(caught.value)
    assert "install releases on both sides that share a protocol" in str(caught.value)
    with pytest.raises(FederationError, match="another release"):
        decode_message(f"{line}\n".encode() + b"in whatever way that one writes", Request, LIMIT)


def test_releases_that_share_a_protocol_understand_each_other() -> None:
    content = encode_message(IdentifyRequest(TERMS)).partition(b"\n")[2]
    spoken = {(1, OLDEST): OLDEST, (OLDEST, PROTOCOL): PROTOCOL, (PROTOCOL, PROTOCOL + 5): PROTOCOL, (2, 99): PROTOCOL}
    for (oldest, latest), common in spoken.items():
        data = f"fcil protocol {oldest}-{latest} release 9.9.9\n".encode() + content
        assert decode_message(data, Request, LIMIT) == IdentifyRequest(TERMS)
        assert common_protocol(data) == common


def test_the_page_of_upgrades_names_the_protocols() -> None:
    page = (Path(__file__).parents[2] / "docs" / "releases.md").read_text("utf-8")
    assert f"now {OLDEST} to {PROTOCOL}." in page


def test_a_first_line_is_shown_without_what_a_terminal_would_obey() -> None:
    with pytest.raises(FederationError) as caught:
        decode_message(b"fcil protocol \x1b[31m\xff\n", Request, LIMIT)
    assert "\x1b" not in str(caught.value)


def test_an_envelope_may_not_be_larger_than_the_limit_nor_declare_to_be() -> None:
    request = encode_message(IdentifyRequest(TERMS))
    size = len(request) - len(release()) - 1
    assert decode_message(request, IdentifyRequest, size) == IdentifyRequest(TERMS)
    with pytest.raises(FederationError, match=f"declares {size} bytes, over the limit of {size - 1}"):
        decode_message(request, IdentifyRequest, size - 1)
    start = len(release()) + 1
    boasting = request[: start + 10] + struct.pack("<Q", 1 << 50) + request[start + 18 :]
    with pytest.raises(FederationError, match="over the limit"):
        decode_message(boasting, IdentifyRequest, LIMIT)


def hollow(header: int) -> bytes:
    """Return a message whose header has about so many bytes, and says nothing with them."""
    text = b"[" + b"[]," * (header // 3) + b"[]]"
    return FRAME.pack(b"FCIL", 1, len(text), 10) + text + struct.pack("<Q", 2) + b"{}"


@pytest.mark.parametrize(
    ("kind", "most"),
    [(Request, REQUEST_HEADER), (Answer, ANSWER_HEADER), (SealedContent, BOX_HEADER), (TeacherChoice, BOX_HEADER)],
)
def test_a_header_that_no_message_needs_is_refused_before_it_is_read(
    kind: type[Message], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kind.header_limit == most  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "header_limit", 3000)  # in the place of a quarter of a gigabyte
    with pytest.raises(
        FederationError, match=r"a message cannot be read: .* a header of 3\d\d\d bytes, over its limit"
    ):
        decode_message(f"{release()}\n".encode() + hollow(3000), kind, DEFAULT_LIMIT)
    with pytest.raises(CodecError, match="over its limit of 3000"):
        decode(hollow(3000), kind)


IDS = tuple(f"{number:032x}" for number in range(MOST_CLASSES))  # as a site derives them from names
MADE_UP = ("\N{SNAKE}" * LONGEST_ID,)  # a hostile site's: JSON has 12 bytes for each character


@pytest.mark.parametrize(
    "message",
    [
        Answer((), TrainResult(reply=Reply(0, announced=IDS))),
        SealedContent("a1b2c3d4", 0, Announcement(IDS)),
        Answer((), ProxyResult(announced=IDS)),
        Answer((), ProxyResult(announced=MADE_UP * (2 * MOST_ANNOUNCED))),
        TrainRequest(
            TERMS, Broadcast(RoundContext(0, MADE_UP * MOST_CLASSES, tuple(range(1000)), 0), ""), Order(0, True)
        ),
        ProxyRequest(TERMS, RoundContext(0, IDS, (MOST_CLASSES,), 0), "", "", (Sealed(as_tensor(b"box")),) * 20_000),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_messages_of_an_honest_party_are_read(message: Message) -> None:
    kind = next(kind for kind in (Request, Answer, SealedContent) if isinstance(message, kind))
    data = encode(message)
    assert encode(decode(data, kind)) == data


def test_a_party_is_sent_requests_and_the_server_answers() -> None:
    with pytest.raises(FederationError, match="a Answer message where a Request was expected"):
        decode_message(encode_message(Answer((), Identity())), Request, LIMIT)


@pytest.mark.parametrize(("right", "total"), [([2], [1]), ([-1], [1]), ([0, 1], [1])])
def test_an_evaluation_counts_no_more_right_images_than_images(right: list[int], total: list[int]) -> None:
    honest = EvaluationResult(right=torch.tensor([1, 1]), total=torch.tensor([2, 1]))
    assert torch.equal(decode_message(encode_message(honest), EvaluationResult, LIMIT).total, honest.total)
    object.__setattr__(honest, "right", torch.tensor(right))
    object.__setattr__(honest, "total", torch.tensor(total))
    with pytest.raises(FederationError, match="a message cannot be read"):
        decode_message(encode_message(honest), EvaluationResult, LIMIT)


def test_a_model_is_the_one_that_its_digest_names() -> None:
    digest = model_digest(MODEL)
    parcel = decode_model(digest, encode_model(digest, MODEL), LIMIT)
    assert model_digest(parcel.model) == digest
    other = {**MODEL, "head.weight": MODEL["head.weight"] + 1}
    for data in (encode_model(digest, other), encode_model(model_digest(other), other)):
        with pytest.raises(FederationError, match=f"a model came that is not the one with the digest {digest}"):
            decode_model(digest, data, LIMIT)
    with pytest.raises(FederationError, match=f"the model {digest} cannot be read: truncated"):
        decode_model(digest, encode_model(digest, MODEL)[:-1], LIMIT)
    with pytest.raises(FederationError, match="over the limit of 50"):
        decode_model(digest, encode_model(digest, MODEL), 50)
