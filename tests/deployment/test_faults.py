"""A fault at any point between a request and its answer: there is an answer, and the next request is served."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.consortium import Consortium, Keyring, small_config

from fcil.core import files
from fcil.core.errors import FederationError
from fcil.core.messages import Message, Missing
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment import party_store
from fcil.deployment.client import image_folder, site
from fcil.deployment.client.site import SiteParty
from fcil.deployment.transport.messages import (
    Answer,
    EvaluateRequest,
    EvaluationResult,
    Refusal,
    Request,
    TrainRequest,
    TrainResult,
    decode_message,
    encode_message,
)
from fcil.federation.replies import REFUSAL, SUSPECT

pytestmark = pytest.mark.xdist_group("faults")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "photos/patient.png")
FAULTS: tuple[Exception, ...] = (FULL, OSError(errno.EIO, "patient"), MemoryError("patient"), KeyError("patient"))
POINTS: dict[str, tuple[Any, str]] = {  # where a site leaves its own memory, or reads what may be gone
    "write": (files.os, "replace"),
    "sync": (files.os, "fsync"),
    "answer": (party_store.DiskStore, "answer"),
    "evaluation": (party_store.DiskStore, "evaluate"),
    "state": (party_store.DiskStore, "keep"),
    "models": (party_store.DiskStore, "use"),
    "scan": (image_folder, "ingest"),
    "training": (site, "run_job"),
    "encoding": (site, "encode"),
}


@contextmanager
def faulty(point: str, number: int, error: Exception) -> Iterator[list[int]]:
    """Let the call of this number at a point, and all later ones, raise an error, as on a disk that stays full."""
    owner, name = POINTS[point]
    plain: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def call(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) > number:
            raise error
        return plain(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield calls


@dataclass
class Requests:
    """A folder of a site as it was before a round, and the requests that follow, with the models beside them."""

    made: Consortium
    requests: list[Request]
    parcels: dict[str, bytes]
    answers: list[Message]  # of a site that nothing happens to

    def site(self, place: Path) -> SiteParty:
        """Return the site in a copy of its folder."""
        shutil.copytree(self.made.state("aachen"), place)
        made = self.made
        said: list[str] = []
        return SiteParty(
            made.keys.sites["aachen"], made.data("aachen"), place, said.append, accept=made.accepted, limits=made.limits
        )

    def ask(self, party: SiteParty, number: int) -> Message:
        data = encode_message(self.requests[number])
        return decode_message(party.handle(data, self.parcels), Answer, DEFAULT_LIMIT).content


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Requests]:
    """Return what a site is asked in the round in which it meets its second class, and after it."""
    config = small_config("icarl", "deployment.attempts=1", rounds=9)
    made = Consortium(tmp_path_factory.mktemp("faults"), keyring, config, ("aachen", "berlin"))
    for name in ("aachen", "berlin"):
        made.add(name, "ant", *range(6))
    rounds = made.rounds()
    for _ in range(2):
        next(rounds)
    made.add("aachen", "bee", *range(6))
    made.wire.silent = {0, 1}
    with pytest.raises(FederationError):
        next(rounds)
    call: TrainRequest = made.wire.requests(TrainRequest, 0)[-1]
    known = {digest: parcel for one in made.wire.sent for digest, parcel in one.parcels.items()}
    context = call.broadcast.context
    after = replace(context, round=context.round + 1, rounds_since_growth=context.rounds_since_growth + 1)
    exam = EvaluateRequest(call.terms, after, call.broadcast.model)
    parcels = {digest: known[digest] for digest in call.broadcast.digests(True)}
    made.parties[0].close()
    found = Requests(made, [call, exam], parcels, [])
    party = found.site(tmp_path_factory.mktemp("still") / "state")
    found.answers = [found.ask(party, number) for number in (0, 1)]
    party.close()
    yield found
    made.close()


@settings(max_examples=60, deadline=None)
@given(
    asked=st.integers(0, 1),
    point=st.sampled_from(sorted(POINTS)),
    number=st.integers(0, 9),
    error=st.sampled_from(FAULTS),
    mute=st.booleans(),
)
def test_a_site_answers_whatever_goes_wrong_and_then_as_if_nothing_had(
    tmp_path_factory: pytest.TempPathFactory,
    requests: Requests,
    asked: int,
    point: str,
    number: int,
    error: Exception,
    mute: bool,
) -> None:
    party = requests.site(tmp_path_factory.mktemp("made") / "state")
    if asked:
        requests.ask(party, 0)
    if mute:
        party._say = refuse  # its console is on the same disk
    with faulty(point, number, error) as calls:
        answer = requests.ask(party, asked)
    assert isinstance(answer, TrainResult) or asked, "a fault of the site is no refusal of the model"
    if len(calls) > number:
        _check_fault(answer, error)
    else:
        assert same(answer, requests.answers[asked])
    for again in range(asked, 2):
        found = requests.ask(party, again)
        while isinstance(found, Missing):  # models that it could not keep
            found = requests.ask(party, again)
        assert same(found, requests.answers[again]), "there is room again"
    party.close()


def _check_fault(answer: Message, error: Exception) -> None:
    """Accept an answer that names the cause, and neither blames the model nor names what is in the folder."""
    if isinstance(answer, TrainResult) and answer.failure is not None:
        sentence = answer.failure.reason
        assert answer.failure.stage not in (REFUSAL, SUSPECT)
    else:
        sentence = answer.sentence if isinstance(answer, Refusal) else None
    if sentence is not None:
        assert "patient" not in sentence
        assert ("disk is full" in sentence) == (error is FULL)


def refuse(line: str) -> None:
    raise FULL


def same(answer: Message, other: Message) -> bool:
    """Say whether two answers are the same but for the noise that each answer has of its own."""
    if isinstance(answer, TrainResult) and isinstance(other, TrainResult):
        ours, theirs = answer.reply, other.reply
        assert ours is not None
        assert theirs is not None
        assert ours.report is not None
        assert theirs.report is not None
        return all(bool((ours.report.model[name] == theirs.report.model[name]).all()) for name in theirs.report.model)
    assert isinstance(answer, EvaluationResult), answer
    assert isinstance(other, EvaluationResult)
    return answer.right.tolist() == other.right.tolist() and answer.total.tolist() == other.total.tolist()
