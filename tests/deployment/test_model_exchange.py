"""The server's mail: models go to those who lack them, every byte is weighed, and answers are what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from support.in_process import InProcessTransport

from fcil.core.errors import FederationError
from fcil.core.messages import Message, Missing, model_digest
from fcil.deployment.transport.base import ConnectedParty
from fcil.deployment.transport.messages import (
    Answer,
    Ended,
    IdentifyRequest,
    Identity,
    Refusal,
    Terms,
    encode_message,
    encode_model,
)
from fcil.deployment.transport.model_exchange import ROOM, TURNS, ModelExchange

REQUEST = IdentifyRequest(Terms("a1b2", "{}"))
MODELS = {model_digest(model): model for model in ({"weight": torch.full((3,), value)} for value in (0.0, 1.0, 2.0))}
A, B, C = MODELS


class Fake:
    """A party that answers by a script, and keeps what came."""

    def __init__(self, *script: Message | bytes) -> None:
        self.script = list(script)
        self.came: list[tuple[bytes, dict[str, bytes]]] = []

    def handle(self, data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        self.came.append((data, dict(parcels)))
        answer = self.script[min(len(self.came), len(self.script)) - 1]
        return _encoded(answer)

    @property
    def parcels(self) -> list[list[str]]:
        return [list(parcels) for _, parcels in self.came]


def _encoded(answer: Message | bytes) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return encode_message(answer if isinstance(answer, Answer) else Answer((), answer))


def asked(
    *parties: Fake, wanted: Callable[[int], tuple[str, ...]] = lambda _: (), exchange: ModelExchange | None = None
) -> tuple[ModelExchange, dict[int, Identity | FederationError]]:
    transport = InProcessTransport(
        {one: (ConnectedParty(one, f"p{one}", "site"), fake.handle) for one, fake in enumerate(parties)}
    )
    if exchange is None:
        exchange = ModelExchange(transport)
    found = exchange.ask(dict.fromkeys(range(len(parties)), REQUEST), wanted, MODELS, Identity, "group", 1.0)
    return exchange, dict(found)


def test_a_party_is_sent_the_models_that_it_did_not_say_to_hold() -> None:
    exchange, _ = asked(one := Fake(Answer((A,), Identity())), other := Fake(Identity()))
    exchange.drain_traffic()
    _, answers = asked(one, other, wanted=lambda party: (A, B) if party == 0 else (A,), exchange=exchange)
    assert one.parcels == [[], [B]]
    assert other.parcels == [[], [A]]
    assert [type(answer) for answer in answers.values()] == [Identity, Identity]
    assert other.came[1][1][A] == encode_model(A, MODELS[A])


def test_what_it_lacks_all_the_same_goes_with_the_same_request_again() -> None:
    one = Fake(Answer((A, B), Identity()), Answer((A,), Missing((B, C))), Answer((A, B), Identity()))
    exchange, _ = asked(one)
    _, answers = asked(one, wanted=lambda _: (A, B), exchange=exchange)
    assert one.parcels == [[], [], [B, C]], "it said to hold A and B, and then that it had lost B"
    assert one.came[2][0] == one.came[1][0] == encode_message(REQUEST)
    assert answers == {0: Identity()}


def test_a_party_that_lacks_what_it_was_sent_is_given_up() -> None:
    _, answers = asked(one := Fake(Missing((B,))), wanted=lambda _: (A, B))
    assert "it asks for models that it was sent" in str(answers[0])
    assert one.parcels == [[A, B]]


def test_every_byte_is_weighed_once() -> None:
    answer = Answer((A,), Identity("berlin"))
    exchange, _ = asked(Fake(answer), Fake(answer), wanted=lambda party: (A, B)[: party + 1])
    request, parcels = len(encode_message(REQUEST)), [len(encode_model(one, MODELS[one])) for one in (A, B)]
    assert exchange.drain_traffic() == (2 * len(encode_message(answer)), 2 * request + 2 * parcels[0] + parcels[1])
    assert exchange.drain_traffic() == (0, 0)


@pytest.mark.parametrize("digest", ["0" * 32, "../../etc/passwd"])
def test_who_asks_for_what_nobody_named_gets_nothing(digest: str) -> None:
    _, answers = asked(one := Fake(Missing((digest,))))
    assert "asks for models that it was sent or that its request does not name" in str(answers[0])
    assert one.parcels == [[]]


def test_who_keeps_asking_for_models_is_left_alone_in_the_end() -> None:
    _, answers = asked(one := Fake(Missing((A,)), Missing((B,)), Missing((C,))))
    assert str(answers[0]) == f"it asked for models {TURNS} times"
    assert len(one.came) == TURNS


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Refusal("I will not"), "it refuses: I will not"),
        (Ended(), "it answers with Ended, expected Identity"),
        (encode_message(REQUEST), "a message cannot be read: a IdentifyRequest message where a Answer was expected"),
        (b"no", "this is not a message of fcil: it begins with b'no'"),
        (encode_message(Answer((), Identity()))[:-3], "a message cannot be read: truncated message"),
    ],
    ids=["refusal", "another kind", "a request", "garbage", "truncated"],
)
def test_what_is_no_answer_costs_nobody_else_anything(answer: Message | bytes, sentence: str) -> None:
    _, answers = asked(Fake(answer), Fake(Identity("berlin")))
    assert isinstance(answers[0], FederationError)
    assert str(answers[0]).startswith(sentence)
    assert answers[1] == Identity("berlin")


def test_an_answer_may_hold_a_few_models_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcil.deployment.transport.model_exchange.ROOM", 400)
    assert ROOM > 400
    _, answers = asked(Fake(Identity("x" * 100)), Fake(Identity("x" * 1000)))
    assert isinstance(answers[0], Identity)
    assert f"over the limit of {400 + 4 * 12}" in str(answers[1])


def test_of_what_a_party_says_to_hold_only_so_much_is_remembered() -> None:
    exchange, _ = asked(Fake(Answer(tuple(map(str, range(1000))), Identity())))
    assert len(exchange.held[0]) == 16
