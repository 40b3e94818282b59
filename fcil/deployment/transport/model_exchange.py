"""The server's mail: who has which model, letters with what their receivers lack, and answers that can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from fcil.core.errors import FederationError
from fcil.core.messages import ModelState
from fcil.deployment.transport.base import Carrier, Envelope
from fcil.deployment.transport.messages import Answer, Lacking, Letter, Refused, envelop, unfold, wrap_model

A = TypeVar("A", bound=Answer)
ROOM = 64 << 20  # bytes of an answer in addition to the models in it
MODELS_ANSWERED = 4  # models' worth of tensors that an answer may hold
TURNS = 3  # letters of one exchange to a party that keeps asking for models


class Mailroom:
    """Sends letters and weighs them; it knows of each party which models it has said to hold."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.held: dict[int, tuple[str, ...]] = {}
        self.up = 0
        self.down = 0

    def ask(
        self,
        letters: Mapping[int, Letter],
        wanted: Callable[[int], Iterable[str]],
        models: Mapping[str, ModelState],
        expected: type[A],
        group: str,
        deadline: float,
    ) -> Iterator[tuple[int, A | FederationError]]:
        """Send each party its letter and yield the answers as they come.

        `wanted` names the models that a party needs. Those that it did not hold when it answered last go with the
        letter; if it lacks one all the same, it says so and gets the letter again.
        """
        limit = ROOM + MODELS_ANSWERED * max((_size(model) for model in models.values()), default=0)
        packed: dict[str, bytes] = {}
        open_letters = dict(letters)
        lacking = {party: [name for name in wanted(party) if name not in self.held.get(party, ())] for party in letters}
        for _ in range(TURNS):
            envelopes = []
            for party, letter in open_letters.items():
                for digest in lacking[party]:
                    if digest not in packed:
                        packed[digest] = wrap_model(digest, models[digest])
                parcels = {digest: packed[digest] for digest in lacking[party]}
                envelopes.append(Envelope(party, envelop(letter), parcels))
            self.down += sum(len(one.content) + sum(map(len, one.parcels.values())) for one in envelopes)
            open_letters = {}
            for party, found in self.carrier.exchange(envelopes, group, deadline, limit):
                answer = found if isinstance(found, FederationError) else self._read(party, found, expected, limit)
                if isinstance(answer, Lacking):
                    names = [digest for digest in answer.digests if digest in models]
                    if set(names) <= set(lacking[party]):  # it was sent them just now
                        yield party, FederationError("it asks for models that it was sent, or that nobody has named")
                        continue
                    lacking[party], open_letters[party] = names, letters[party]
                else:
                    yield party, answer
            if not open_letters:
                return
        for party in open_letters:
            yield party, FederationError(f"it asked for models {TURNS} times")

    def _read(self, party: int, data: bytes, expected: type[A], limit: int) -> A | Lacking | FederationError:
        """Return what an answer says, or what is wrong with it."""
        self.up += len(data)
        try:
            answer = unfold(data, Answer, limit)
        except FederationError as error:
            return error
        self.held[party] = answer.held[:16]
        if isinstance(answer, Refused):
            return FederationError(f"it refuses: {answer.sentence}")
        if isinstance(answer, (expected, Lacking)):
            return answer
        return FederationError(f"it answers with a {type(answer).__name__}, asked for was a {expected.__name__}")

    def drain_weights(self) -> tuple[int, int]:
        """Return the bytes received and sent since this was last asked."""
        weights, self.up, self.down = (self.up, self.down), 0, 0
        return weights


def _size(model: ModelState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.values())
