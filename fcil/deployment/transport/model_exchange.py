"""Requests to parties with the models that each of them lacks, and their answers, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fcil.core.errors import FederationError
from fcil.core.messages import Message, Missing, ModelState
from fcil.deployment.transport.base import Envelope, Transport
from fcil.deployment.transport.messages import (
    OLDEST,
    Answer,
    Refusal,
    Request,
    common_protocol,
    decode_message,
    encode_message,
    encode_model,
    release_of,
)

A = TypeVar("A", bound=Message)
ROOM = 64 << 20  # bytes of an answer beside its models
MODELS_ANSWERED = 4  # models' worth of tensors that an answer may hold
TURNS = 3  # times that a party may ask for models before it answers


class PartyRefusedError(FederationError):
    """A party has refused a request."""


@dataclass
class PartyTraffic:
    """A party's answers since the last count: seconds until the last one, bytes up and down, samples, its release."""

    seconds: float = 0.0
    up: int = 0
    down: int = 0
    samples: int | None = None
    release: str = ""


class ModelExchange:
    """Sends requests, remembers which models each party holds, and counts bytes in both directions."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.held: dict[int, tuple[str, ...]] = {}
        self.protocols: dict[int, int] = {}  # the latest that both sides speak
        self.up = 0
        self.down = 0
        self.parties: dict[int, PartyTraffic] = {}

    def ask(
        self,
        requests: Mapping[int, Request],
        wanted: Callable[[int], Iterable[str]],
        models: Mapping[str, ModelState],
        expected: type[A],
        group: str,
        deadline: float,
    ) -> Iterator[tuple[int, A | FederationError]]:
        """Send each party its request and yield the contents of the answers as they come.

        `wanted` names the models that a party needs. Those that it did not hold at its last answer are sent with the
        request. A party that still lacks one answers `Missing`, and gets the request again with that model.
        """
        limit = ROOM + MODELS_ANSWERED * max((_size(model) for model in models.values()), default=0)
        packed: dict[str, bytes] = {}
        began = time.monotonic()
        open_requests = dict(requests)
        missing = {
            party: [name for name in wanted(party) if name not in self.held.get(party, ())] for party in requests
        }
        for _ in range(TURNS):
            envelopes = []
            for party, request in open_requests.items():
                for digest in missing[party]:
                    if digest not in packed:
                        packed[digest] = encode_model(digest, models[digest])
                parcels = {digest: packed[digest] for digest in missing[party]}
                envelopes.append(Envelope(party, encode_message(request), parcels))
            for one in envelopes:
                size = len(one.content) + sum(map(len, one.parcels.values()))
                self.down += size
                self._of(one.to).down += size
            open_requests = {}
            for party, found in self.transport.exchange(envelopes, group, deadline, limit):
                self._of(party).seconds += time.monotonic() - began
                answer = found if isinstance(found, FederationError) else self._read(party, found, expected, limit)
                if isinstance(answer, Missing):
                    names = [digest for digest in answer.digests if digest in models]
                    if set(names) <= set(missing[party]):  # these were sent just now
                        yield (
                            party,
                            FederationError("it asks for models that it was sent or that its request does not name"),
                        )
                        continue
                    missing[party], open_requests[party] = names, requests[party]
                else:
                    yield party, answer
            if not open_requests:
                return
        for party in open_requests:
            yield party, FederationError(f"it asked for models {TURNS} times")

    def knows(self, party: int, request: type[Request]) -> bool:
        """Return whether a party, by its last answer, runs a release that has a kind of request."""
        return self.protocols.get(party, OLDEST) >= request.protocol

    def _read(self, party: int, data: bytes, expected: type[A], limit: int) -> A | Missing | FederationError:
        """Return the content of an answer, or the error that it stands for."""
        self.up += len(data)
        self._of(party).up += len(data)
        try:
            self.protocols[party] = common_protocol(data)
            answer = decode_message(data, Answer, limit)
        except FederationError as error:
            return error
        self.held[party] = answer.held[:16]
        self._of(party).release = release_of(data)
        content = answer.content
        if isinstance(content, Refusal):
            return PartyRefusedError(f"it refuses: {content.sentence}")
        if isinstance(content, (expected, Missing)):
            return content
        return FederationError(f"it answers with {type(content).__name__}, expected {expected.__name__}")

    def _of(self, party: int) -> PartyTraffic:
        return self.parties.setdefault(party, PartyTraffic())

    def drain_parties(self) -> dict[int, PartyTraffic]:
        """Return the answers of each party since the last call."""
        found, self.parties = self.parties, {}
        return found

    def drain_traffic(self) -> tuple[int, int]:
        """Return the bytes received and sent since the last call."""
        traffic, self.up, self.down = (self.up, self.down), 0, 0
        return traffic


def _size(model: ModelState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.values())
