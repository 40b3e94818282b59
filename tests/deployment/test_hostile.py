"""A site that lies costs nobody else anything: it is refused by name or ignored, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from support.consortium import Consortium, Keyring, Tamper, small_config
from torch import Tensor

from fcil.core.messages import Failure, Message, Reply, Report, Weighted
from fcil.deployment.transport.messages import (
    Answer,
    EvaluationResult,
    Identity,
    Sealed,
    TrainResult,
    as_tensor,
    encode_message,
)
from fcil.federation.class_catalogue import MOST_ANNOUNCED
from fcil.federation.round_record import RoundRecord

HOSTILE = 1  # berlin


@dataclass(frozen=True)
class Trick:
    """What a site does to its answer of a round, what the server says of it, and whose reports count."""

    name: str
    tamper: Tamper
    said: str = ""  # in the failure; empty: there is none
    reports: int = 2


def in_round(change: Callable[[TrainResult], Message | bytes]) -> Tamper:
    """Return what changes the answer of a round."""
    return lambda answer: change(answer) if isinstance(answer, TrainResult) else None


def in_reply(change: Callable[[Reply], Reply]) -> Tamper:
    """Return what changes the reply in it."""
    return in_round(lambda answer: replace(answer, reply=change(answer.reply)) if answer.reply else answer)


def in_report(change: Callable[[Report], Report]) -> Tamper:
    """Return what changes the report in that."""
    return in_reply(lambda reply: replace(reply, report=change(reply.report)) if reply.report else reply)


def in_model(change: Callable[[Tensor], Tensor]) -> Tamper:
    """Return what changes each of the model's tensors of floats."""

    def changed(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    return in_report(lambda one: replace(one, model={name: changed(tensor) for name, tensor in one.model.items()}))


def in_head(value: Tensor | None) -> Tamper:
    """Return what replaces the head's bias, or leaves it out."""

    def changed(report: Report) -> Report:
        rest = {name: tensor for name, tensor in report.model.items() if name != "head.bias"}
        return replace(report, model=rest if value is None else {**rest, "head.bias": value})

    return in_report(changed)


def in_exam(right: list[int], total: list[int]) -> Tamper:
    """Return what puts other counts into an evaluation's answer, whatever its class says of them."""

    def tamper(answer: Message) -> Message | None:
        if not isinstance(answer, EvaluationResult):
            return None
        object.__setattr__(answer, "right", torch.tensor(right))
        object.__setattr__(answer, "total", torch.tensor(total))
        return answer

    return tamper


def uploading(*uploads: Message) -> Tamper:
    return in_reply(lambda reply: replace(reply, uploads=uploads))


def announcing(*ids: str) -> Tamper:
    return in_reply(lambda reply: replace(reply, announced=ids))


def numbered(client: int) -> Tamper:
    return in_reply(lambda reply: replace(reply, client=client))


def weighing(weights: Tensor) -> Tamper:
    return in_report(lambda report: replace(report, rows={"head.weight": weights}))


def honest(_: Message) -> None:
    """Change nothing."""


LONG_FAILURE = TrainResult(failure=Failure(2, 99, "fit\x1b", "\ud800\n" + "x" * 9000))
STRANGE_PARTS = {"x": Weighted(torch.ones(3), torch.ones(2).double())}
BOX = Sealed(as_tensor(b"x" * 99))
PLAIN = [
    Trick("honest", honest, reports=3),
    Trick("nan", in_model(lambda tensor: tensor * float("nan")), "not finite"),
    Trick("infinite", in_model(lambda tensor: tensor / 0), "not finite"),
    Trick("wrong shapes", in_model(lambda tensor: tensor[:1]), "the model torch.float32"),
    Trick("wrong type", in_model(lambda tensor: tensor.double()), "torch.float64"),
    Trick("missing tensor", in_head(None), "it has other parameters"),
    Trick("huge tensor", in_head(torch.zeros(1 << 20)), "it has head.bias as torch.float32 (1048576,)"),
    Trick("no samples", in_report(lambda report: replace(report, samples=0)), "it claims 0 samples"),
    Trick("many samples", in_report(lambda report: replace(report, samples=1 << 62)), "it claims 4611686018427387904"),
    Trick("rows", weighing(torch.full((2,), -1.0).double()), "weights for the rows of head.weight are invalid"),
    Trick("parts", in_report(lambda report: replace(report, parts=STRANGE_PARTS)), "the update of client 1 is refused"),
    Trick("another number", numbered(0), reports=3),
    Trick("a number of nobody", numbered(77), reports=3),
    Trick("uploads", uploading(*[BOX] * 99), "sent 99 uploads"),
    Trick("neither", in_round(lambda answer: replace(answer, reply=None)), "answers neither with a reply nor"),
    Trick("another answer", in_round(lambda _: Identity()), "it answers with Identity"),
    Trick("garbage", in_round(lambda _: bytes(99)), "this is not a message of fcil"),
    Trick("cut", in_round(lambda answer: encode_message(Answer((), answer))[:-1]), "truncated message"),
    Trick("no ids", announcing("", "x" * 65, "a\nb", "\x1b[31m"), reports=3),
    Trick(
        "too many ids", announcing(*map(str, range(MOST_ANNOUNCED + 1))), "it announces 10001 new classes", reports=3
    ),
    Trick("counts of nothing", in_exam([0] * 9, [1] * 9), reports=3),
    Trick("more right than there are", in_exam([2, 0], [1, 1]), reports=3),
    Trick("counts that overflow", in_exam([0, 0], [1 << 62, 1 << 62]), reports=3),
    Trick("failure", in_round(lambda _: LONG_FAILURE), "site berlin: \\ud800 xxx"),
    Trick("honest again", honest, reports=3),
]
SEALED = [
    Trick("honest", honest, reports=3),
    Trick("unsealed uploads", uploading(Reply(1)), "sends uploads that are not sealed"),
    Trick("too many uploads", uploading(*[BOX] * 9), "sent 9 uploads, more than there are classes"),
    Trick("boxes that do not open", uploading(BOX), reports=3),
    Trick("a notice that does not open", in_round(lambda answer: replace(answer, sealed=BOX)), reports=3),
]


@dataclass
class Story:
    made: Consortium
    records: dict[str, RoundRecord]
    warned: dict[str, list[str]]
    digests: dict[str, str]


def told(made: Consortium, tricks: list[Trick]) -> Story:
    """Play a trick in each round, after one in which classes are announced."""
    for number, site in enumerate(("aachen", "berlin", "cork")):
        for name in ("ant", "bee"):
            made.add(site, name, *range(100 * number, 100 * number + 4))
    story = Story(made, {}, {}, {})
    rounds = made.rounds()
    next(rounds)
    for trick in tricks:
        made.wire.tampered[HOSTILE] = trick.tamper
        made.warned.clear()
        story.records[trick.name] = next(rounds)
        story.warned[trick.name] = list(made.warned)
        story.digests[trick.name] = made.digest
    return story


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Story]:
    config = small_config("icarl", "deployment.evaluate_every=1", rounds=len(PLAIN) + 1)
    made = Consortium(tmp_path_factory.mktemp("plain"), keyring, config)
    yield told(made, PLAIN)
    made.close()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Story]:
    made = Consortium(tmp_path_factory.mktemp("sealed"), keyring, small_config("glfc", rounds=len(SEALED) + 1))
    yield told(made, SEALED)
    made.close()


def judge(story: Story, trick: Trick) -> None:
    record = story.records[trick.name]
    assert record.clients == 3, "it is asked again in every round"
    assert record.reports == trick.reports
    assert record.classes == 2
    assert len(record.failures) == bool(trick.said)
    for failure in record.failures:
        assert failure["client"] == HOSTILE
        assert failure["reason"].startswith("site berlin")
        assert trick.said in failure["reason"]
        assert failure["reason"].isprintable()
        assert len(failure["reason"]) < 5000
        assert failure["stage"].isprintable()


@pytest.mark.parametrize("trick", PLAIN, ids=lambda trick: trick.name)
def test_a_site_that_lies_is_refused_by_name_or_ignored(plain: Story, trick: Trick) -> None:
    judge(plain, trick)


@pytest.mark.parametrize("trick", SEALED, ids=lambda trick: trick.name)
def test_what_goes_to_the_proxy_is_sealed_and_not_too_much(sealed: Story, trick: Trick) -> None:
    judge(sealed, trick)


def test_the_records_of_such_a_run_are_sound_and_its_model_finite(plain: Story, sealed: Story) -> None:
    for story in (plain, sealed):
        assert len(story.made.journal) == len(story.records) + 1
        assert story.made.run is not None
        model = story.made.run.state.server.model
        assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values() if tensor.is_floating_point())
        assert len(set(story.digests.values())) == len(story.digests), "every round learned something"


@pytest.mark.parametrize("name", ["counts of nothing", "more right than there are", "counts that overflow"])
def test_counts_that_cannot_be_are_left_out_of_an_evaluation(plain: Story, name: str) -> None:
    assert plain.records["honest"].total == [6]
    assert plain.records[name].total == [4]
    (warning,) = plain.warned[name]
    assert warning.startswith("site berlin does not take part in the evaluation: ")


def test_boxes_that_do_not_open_are_left_out_by_the_proxy(sealed: Story) -> None:
    left_out = [line for line in sealed.made.said[9] if "a sealed message is left out: " in line]
    assert len(left_out) == 2
    assert all("do not open" in line for line in left_out)


def test_a_made_up_class_costs_an_output_and_no_more(plain: Story) -> None:
    """Nobody can tell a made-up id from a keyed one; it gets an output, and all others go on."""
    made = plain.made
    assert made.run is not None
    made.wire.tampered[HOSTILE] = in_reply(lambda reply: replace(reply, announced=("made up",)))
    made.serve(small_config("icarl", "deployment.evaluate_every=0", rounds=len(PLAIN) + 4))
    records = list(made.rounds())
    assert [record.classes for record in records] == [2, 3, 3]
    assert [record.reports for record in records] == [3, 3, 3]
    assert records[-1].failures == []
