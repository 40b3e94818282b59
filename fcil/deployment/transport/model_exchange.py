"""Requests to parties with the models that each of them lacks, and their answers, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from fcil.core.errors import FederationError
from fcil.core.messages import Message, Missing, ModelState
from fcil.deployment.transport.base import Envelope, Transport
from fcil.deployment.transport.messages import (
    Answer,
    Refusal,
    Request,
    decode_message,
    encode_message,
    encode_model,
)

A = TypeVar("A", bound=Message)
ROOM = 64 << 20  # bytes of an answer beside its models
MODELS_ANSWERED = 4  # models' worth of tensors that an answer may hold
TURNS = 3  # times that a party may ask for models before it answers


class ModelExchange:
    """Sends requests, remembers which models each party holds, and counts bytes in both directions."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.held: dict[int, tuple[str, ...]] = {}
        self.up = 0
        self.down = 0

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
            self.down += sum(len(one.content) + sum(map(len, one.parcels.values())) for one in envelopes)
            open_requests = {}
            for party, found in self.transport.exchange(envelopes, group, deadline, limit):
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

    def _read(self, party: int, data: bytes, expected: type[A], limit: int) -> A | Missing | FederationError:
        """Return the content of an answer, or the error that it stands for."""
        self.up += len(data)
        try:
            answer = decode_message(data, Answer, limit)
        except FederationError as error:
            return error
        self.held[party] = answer.held[:16]
        content = answer.content
        if isinstance(content, Refusal):
            return FederationError(f"it refuses: {content.sentence}")
        if isinstance(content, (expected, Missing)):
            return content
        return FederationError(f"it answers with {type(content).__name__}, expected {expected.__name__}")

    def drain_traffic(self) -> tuple[int, int]:
        """Return the bytes received and sent since the last call."""
        traffic, self.up, self.down = (self.up, self.down), 0, 0
        return traffic


def _size(model: ModelState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.values())
