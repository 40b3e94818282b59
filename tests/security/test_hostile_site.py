"""A hostile site: it can cost the others a round, not the model and not the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.consortium import Build, Consortium
from support.parties import Change, changed, federation, run_rounds
from support.records import record as written
from support.rounds import aggregated
from torch import Tensor

from fcil.core.messages import Announcement, Failure, Message, ModelState, Reply, Report, Weighted, encode, model_digest
from fcil.deployment.client.site import QUARANTINED
from fcil.deployment.keys.sealing import seal
from fcil.deployment.transport.messages import (
    EvaluateRequest,
    EvaluationResult,
    Refusal,
    Sealed,
    SealedContent,
    TrainRequest,
    TrainResult,
    as_tensor,
)
from fcil.experiment.journal import Journal
from fcil.experiment.summary import summarise
from fcil.federation.aggregation import Aggregate, Gathering, Mean
from fcil.federation.class_catalogue import Ledger
from fcil.federation.last_good import most_dropped
from fcil.federation.reply_checks import validate_claims, validate_parts, validate_update
from fcil.federation.round_record import client_tallies
from fcil.federation.traffic import RoundTraffic
from fcil.reporting.page.clients import clients_section
from fcil.reporting.run_facts import RunFacts

POISONED = 2  # the round, counted from 0, in which the hostile client attacks
HOSTILE = 0
BIAS = "head.bias"
Poison = Callable[[str, Tensor, Tensor], Tensor]  # (name, tensor, the one that was sent) -> what is sent instead
LONGER = {"tasks": 2, "rounds_per_task": 3, "participants": 4, "joiners": 0}


def poisoning(poison: Poison, rounds: set[int]) -> Change:
    """Return what changes the hostile client's model in some rounds; it is given name, tensor and the tensor sent."""

    def change(traffic: RoundTraffic, reply: Reply) -> Reply | Failure:
        if reply.client != HOSTILE or reply.report is None or traffic.broadcast.context.round not in rounds:
            return reply
        sent = traffic.models[traffic.broadcast.model]
        model = {name: poison(name, tensor, sent[name]) for name, tensor in reply.report.model.items()}
        return replace(reply, report=replace(reply.report, model=model))

    return change


def scaled(name: str, found: Tensor, sent: Tensor) -> Tensor:
    """Send a hundred times an honest update."""
    return sent + 100 * (found - sent) if found.is_floating_point() else found


def stretched(name: str, found: Tensor, sent: Tensor) -> Tensor:
    """Send parameters that are far away, with statistics that can be."""
    return sent + 1e4 * (found - sent) if name.endswith("weight") else found


def exploding(name: str, found: Tensor, sent: Tensor) -> Tensor:
    """Make the network overflow for everybody else; each value is finite, and so is their mean."""
    return torch.full_like(found, 3e38) if name.endswith("bias") else found


class Overflowing(Mean):
    """An aggregator whose result is infinite."""

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        found = super().gather(sent, round, participants)
        infinite = {name: tensor / 0 for name, tensor in sent.items()}
        found.result = lambda: Aggregate(infinite, 2)  # type: ignore[method-assign]
        return found


def is_finite(model: ModelState) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in model.values())


# --- bounds on a report -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "said"),
    [(scaled, "it has a negative variance in backbone."), (stretched, "federation.max_update allows")],
)
def test_a_scaled_update_is_refused_under_mean_and_says_why(attack: Poison, said: str) -> None:
    wrap = changed(poisoning(attack, {POISONED}))
    states, records = run_rounds(federation("mosaic", wrap=wrap, scenario=LONGER, max_update=10.0))
    (failure,) = records[POISONED].failures
    assert (failure["client"], failure["stage"]) == (HOSTILE, "update")
    assert said in failure["reason"]
    assert [record.reports for record in records] == [4, 4, 3, 4, 4, 4]
    assert is_finite(states[-1].model)


def report(**changed: Any) -> Report:
    model = {"weight": torch.ones(4), "bn.running_var": torch.ones(2), "bn.running_mean": torch.zeros(2)}
    return replace(Report(model, 10), **changed)


def moved(name: str, *values: float) -> Report:
    return report(model={**report().model, name: torch.tensor(values)})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report(), None),
        (moved("weight", 21, 1, 1, 1), None),  # 20 from a model whose norm is 2
        (
            moved("weight", 21.1, 1, 1, 1),
            "it moves by 20.1 from the model that was sent, federation.max_update allows 20;",
        ),
        (moved("bn.running_var", 1, 1400), None),  # a hundred times as far, from a norm of 1.41
        (moved("bn.running_var", 1, 1500), "its running statistics move by 1.5e+03 from"),
        (moved("bn.running_var", 1, -0.1), "it has a negative variance in bn.running_var"),
        (moved("bn.running_mean", 1, -0.1), None),
        (moved("weight", 1, 1, 1, float("inf")), "it is not finite in weight"),
        (moved("weight", 3e38, -3e38, 3e38, 3e38), "it moves by 6e+38 from"),
    ],
)
def test_a_model_is_within_reach_of_the_one_that_was_sent(found: Report, said: str | None) -> None:
    problem = validate_update(found, report().model, 10.0)
    assert (problem or "").startswith(said or "") and (problem is None) == (said is None)


@pytest.mark.parametrize(("samples", "allowed"), [(0, False), (1, True), (1000, True), (1001, False)])
def test_claims_of_samples_are_bounded(samples: int, allowed: bool) -> None:
    assert (validate_claims(report(samples=samples), 1000) is None) == allowed
    rows = {"weight": torch.tensor([0.0, float(samples), 0.0, 0.0], dtype=torch.float64)}
    assert (validate_claims(report(rows=rows), 1000) is None) == (allowed or samples == 0)


@pytest.mark.parametrize(
    ("value", "weight", "allowed"),
    [
        (torch.ones(3), torch.tensor(1000.0).double(), True),
        (torch.ones(3, 2), torch.ones(3).double(), True),
        (torch.ones(3), torch.tensor(1001.0).double(), False),
        (torch.ones(3), torch.tensor(-1.0).double(), False),
        (torch.ones(3), torch.tensor(float("nan")).double(), False),
        (torch.tensor([1.0, float("inf")]), torch.tensor(1.0).double(), False),
        (torch.ones(3), torch.ones(2).double(), False),
        (torch.ones(3), torch.tensor(1.0), False),
    ],
)
def test_parts_that_no_method_checks_are_finite_and_summable(value: Tensor, weight: Tensor, allowed: bool) -> None:
    assert (validate_parts(report(parts={"own": Weighted(value, weight)}), 1000) is None) == allowed


# --- a round that is not applied ----------------------------------------------------------------------------------


def test_after_a_poisoned_round_the_last_good_model_stays_and_the_next_round_goes_on() -> None:
    """Nobody can train on the model that round 3 left, so round 4 is not applied and round 5 begins before round 3."""
    attack = changed(poisoning(exploding, {POISONED}))
    scenario = {**LONGER, "tasks": 1, "rounds_per_task": 5}
    states, records = run_rounds(federation("mosaic", wrap=attack, scenario=scenario, max_update=3e38))
    reasons = [record.not_applied for record in records]
    assert reasons == ["", "", "", "4 of 4 participants did not come to a sound model", ""]
    digests = [model_digest(state.model) for state in states]
    assert digests[3] == digests[1], "the model that round 3 was sent"
    assert records[4].model == digests[1]
    assert [record.reports for record in records] == [4, 4, 4, 0, 4]
    assert [state.round for state in states] == [1, 2, 3, 4, 5]
    assert is_finite(states[4].model)


def test_an_aggregate_that_is_not_finite_is_not_applied_and_the_method_never_sees_it() -> None:
    """No report can be refused for it: each is finite by itself, or the aggregator cannot look at them."""
    server = federation().simulation.server
    start = server.grow(server.start(), ["0", "1"])
    opened, orders = server.open(start, None), server.orders(range(2), range(2))
    broken = replace(server, aggregator=Overflowing(server.config))
    closed = aggregated(broken, opened, orders, [Reply(0, Report(start.model, 1)), Reply(1, Report(start.model, 1))])
    assert closed.not_applied == "the aggregate is not finite"
    assert closed.state.model is start.model
    assert (closed.reports, closed.state.round, closed.state.skipped) == (0, 1, 1)


def test_a_drop_of_accuracy_takes_the_model_back_and_only_with_the_same_classes() -> None:
    server = federation(max_drop=50.0).simulation.server
    first = server.grow(server.start(), ["0", "1"])
    measured, said = server.review(first, {"0": 80.0, "1": 90.0, "2": 85.0})
    assert said == ""
    poisoned = replace(measured, round=3, model={name: tensor + 1 for name, tensor in first.model.items()})
    back, said = server.review(poisoned, {"0": 10.0, "1": 9.0, "2": 85.0})
    assert said == "accuracy has dropped from 85.0 to 34.7 %"
    assert model_digest(back.model) == model_digest(first.model)
    assert (back.round, back.skipped) == (3, 1)
    lied, said = server.review(poisoned, {"0": 0.0, "1": 90.0, "2": 85.0})
    assert (said, lied.model is poisoned.model) == ("", True), "one site of three decides nothing"
    wider = server.grow(replace(measured, round=9), ["2"])
    assert server.review(wider, {"0": 1.0, "1": 1.0, "2": 1.0})[1] == "", "new classes lower it honestly"


def test_without_the_setting_no_accuracy_takes_anything_back() -> None:
    server = federation().simulation.server
    state = server.grow(server.start(), ["0"])
    assert server.review(state, {"0": 0.0}) == (state, "")


@pytest.mark.parametrize(
    ("before", "now", "dropped"),
    [
        ({}, {}, False),
        ({"0": 90.0}, {"1": 0.0}, False),
        ({"0": 90.0, "1": 90.0}, {"0": 0.0, "1": 89.0}, False),
        ({"0": 90.0, "1": 90.0}, {"0": 39.0, "1": 39.0}, True),
        ({"0": 90.0, "1": 90.0}, {"0": 40.0, "1": 40.0}, False),
    ],
)
def test_most_of_the_places_measured_twice_have_to_see_the_drop(
    before: dict[str, float], now: dict[str, float], dropped: bool
) -> None:
    assert most_dropped(before, now, 50.0) == dropped


# --- made-up classes ----------------------------------------------------------------------------------------------


def test_a_client_brings_at_most_so_many_classes_to_a_block_and_trains_before_the_next_one() -> None:
    ledger = Ledger()
    assert ledger.allowed(7, 3, new_block=True) == 3
    ledger = ledger.announced(7, 2)
    assert ledger.allowed(7, 3, new_block=True) == 1
    ledger = ledger.grown(new_block=True, width=4)
    assert ledger.allowed(7, 3, new_block=False) == 1, "the block has two of its classes"
    assert ledger.allowed(7, 3, new_block=True) == 0, "it has not trained on them"
    assert ledger.allowed(8, 3, new_block=True) == 3
    assert ledger.trained({7: torch.tensor([5.0, 5.0, 5.0, 5.0, 0.0, 0.0])}).allowed(7, 3, new_block=True) == 0
    for counts in (None, torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])):
        assert ledger.trained({7: counts}).allowed(7, 3, new_block=True) == 3


def made_up(number: int) -> tuple[str, ...]:
    return tuple(f"x{number}-{one}" for one in range(50))


def announcing(traffic: RoundTraffic, reply: Reply) -> Reply:
    """Announce fifty more made-up classes in every round, and train on none."""
    if reply.client != HOSTILE:
        return reply
    return replace(reply, report=None, announced=made_up(traffic.broadcast.context.round))


@pytest.mark.parametrize(("method", "most"), [("finetune", 4), ("mosaic", 4), ("mosaic", None)])
def test_made_up_classes_are_capped_for_each_client_and_block(method: str, most: int | None) -> None:
    settings: dict[str, Any] = {"announce": "reply", "merge_rounds": 0, "max_new_classes": most}
    scenario = {**LONGER, "tasks": 1, "rounds_per_task": 5}
    states, records = run_rounds(federation(method, wrap=changed(announcing), scenario=scenario, **settings))
    classes = states[-1].server.catalogue.classes
    assert {"0", "1", "2", "3"} <= set(classes)
    assert len(classes) == (4 + most if most else 4 + 4 * 50), "one block of its own, and then it has to train"
    said = {failure["reason"] for record in records for failure in record.failures}
    objection = "it announces 50 new classes, federation.max_new_classes allows 4 in a block"
    assert said == ({objection} if most else set())


# --- between real sites -------------------------------------------------------------------------------------------


def stocked(made: Consortium) -> Consortium:
    for number, site in enumerate(("aachen", "berlin", "cork")):
        for name in ("ant", "bee"):
            made.add(site, name, *range(100 * number, 100 * number + 6))
    return made


def exploded(answer: Message) -> Message | None:
    """Poison a site's report as `exploding` does."""
    if not isinstance(answer, TrainResult) or answer.reply is None or answer.reply.report is None:
        return None
    report = answer.reply.report
    model = {name: exploding(name, tensor, tensor) for name, tensor in report.model.items()}
    return replace(answer, reply=replace(answer.reply, report=replace(report, model=model)))


@pytest.mark.parametrize("method", ["icarl", "glfc"])
def test_a_poisoned_round_between_real_sites_costs_one_round(build: Build, method: str) -> None:
    """Teachers, catalogue and the sites' own states go on: the proxy is told of the model that stays."""
    made = stocked(build(method, "federation.max_update=3e38", "deployment.evaluate_every=0", rounds=6))
    rounds = made.rounds()
    for _ in range(2):
        next(rounds)
    good = made.digest
    made.wire.tampered[HOSTILE] = exploded
    poisoned = next(rounds)
    made.wire.tampered.clear()
    assert (poisoned.reports, poisoned.not_applied) == (3, "")
    lost = next(rounds)
    assert lost.not_applied == "3 of 3 participants did not come to a sound model"
    assert made.digest == good
    after = list(rounds)
    assert [(record.reports, record.not_applied, record.model) for record in after[:1]] == [(3, "", good)]
    assert made.journal[-3:] == [lost, *after]
    assert made.run is not None
    assert is_finite(made.run.state.server.model)
    assert "1 of 6 rounds are not applied (4)" in made.run.summary()["warnings"][0]


def test_the_aggregator_leaves_a_hostile_site_out_and_the_record_says_why(build: Build) -> None:
    """The site sends its update with a flipped sign; a third of three may be left out."""
    settings = ("federation.aggregator=cosine-krum", "federation.cosine-krum.hostile=0.34")
    made = stocked(build("icarl", *settings, "federation.min_participants=2", "deployment.evaluate_every=0", rounds=4))

    def flipped(answer: Message) -> Message | None:
        if not isinstance(answer, TrainResult) or answer.reply is None or answer.reply.report is None:
            return None
        assert made.run is not None
        sent, report = made.run.state.server.model, answer.reply.report
        model = {
            name: tensor if "running" in name or name not in sent else 2 * sent[name] - tensor
            for name, tensor in report.model.items()
        }
        return replace(answer, reply=replace(answer.reply, report=replace(report, model=model)))

    rounds = made.rounds()
    for _ in range(2):
        next(rounds)
    made.wire.tampered[HOSTILE] = flipped
    records = list(rounds)
    for record in records:
        (left_out,) = record.excluded
        assert left_out["client"] == HOSTILE
        assert left_out["reason"].startswith("its update differs from the others: ")
        assert (record.reports, record.failures) == (2, [])
    assert client_tallies(records)[HOSTILE]["excluded"] == 2
    assert made.journal[-2:] == records


def measuring(share: int) -> Callable[[Message], Message | None]:
    """Return what lets a site get all of its hold-out images right, or none."""
    return lambda answer: replace(answer, right=answer.total * share) if isinstance(answer, EvaluationResult) else None


def test_hold_out_images_that_most_sites_get_wrong_take_the_model_back(build: Build) -> None:
    """The head has its classes from round 2 on; after round 3 one site tells of a drop, after round 4 the others."""
    made = stocked(build("finetune", "deployment.evaluate_every=1", rounds=6))
    rounds, digests, records = made.rounds(), [], []
    for shares in ((1, 1, 1), (1, 1, 1), (1, 0, 1), (0, 0, 0), (1, 1, 1)):
        made.wire.tampered = {site: measuring(share) for site, share in enumerate(shares)}
        records.append(next(rounds))
        digests.append(made.digest)
    assert [record.not_applied for record in records] == [
        "",
        "",
        "",
        "accuracy has dropped from 66.7 to 0.0 %",
        "",
    ]
    assert digests[3] == digests[2], "the model that round 3 left"
    assert records[4].model == digests[2]
    assert digests[4] != digests[3]
    assert records[3].correct == records[2].correct == [4], "the figures are those of the model that stays"
    assert made.journal == records


def test_a_site_that_announces_many_classes_does_not_stop_the_others(build: Build) -> None:
    """Sites refuse a catalogue that grows by more than 100 classes of others, so the head grows by no more at once."""
    made = stocked(build("icarl", "deployment.evaluate_every=0", "federation.merge_rounds=9", rounds=6))

    def crowded(answer: Message) -> Message | None:
        if not isinstance(answer, TrainResult) or answer.reply is None:
            return None
        ids = tuple(f"{made.rounds_played}-{number}" for number in range(150))
        return replace(answer, reply=replace(answer.reply, announced=ids))

    made.wire.tampered = {0: crowded, 1: crowded}
    records = made.play()
    assert [record.reports for record in records[2:]] == [3] * 4, "made-up ids come first, and cost a round"
    assert {failure["stage"] for record in records for failure in record.failures} == {"announce"}
    classes = [record.classes for record in records]
    assert classes[0] == 0
    assert classes[1] == 100
    assert 100 + 2 <= classes[-1] <= 200 + 2, "the others' two among them"
    assert made.run is not None
    own = set(made.site("cork").data.samples.ids)
    assert own <= set(made.run.state.server.catalogue.classes)


def test_classes_beyond_the_limit_of_a_round_wait_for_the_next_one() -> None:
    server = federation(max_new_classes=2, merge_rounds=9).simulation.server
    state = server.grow(server.start(), ["4", "2", "0", "3", "1"])
    assert (state.catalogue.classes, state.waiting) == (("0", "1"), ("2", "3", "4"))
    report = Report(state.model, 1)
    closed = aggregated(server, server.open(state, None), server.orders([0], [0]), [Reply(0, report, announced=("9",))])
    assert closed.state.waiting == ("2", "3", "4", "9")
    admission = server.admission(closed.state, 1)
    assert admission.announce(0, ("2", "3")) is None
    assert admission.ledger == closed.state.ledger, "they are counted already"
    later = server.grow(closed.state, ["4"])
    assert (later.catalogue.classes, later.waiting) == (("0", "1", "2", "3"), ("4", "9"))
    assert server.grow(replace(later, round=2), []).catalogue.blocks == (6,)


def test_sealed_ids_are_capped_as_well_and_the_server_learns_their_number_alone(build: Build) -> None:
    made = stocked(build("glfc", "federation.max_new_classes=3", "federation.merge_rounds=0", rounds=5))

    def crowded(answer: Message) -> Message | None:
        if not isinstance(answer, TrainResult) or made.run is None:
            return None
        ids = Announcement(made_up(made.rounds_played))
        content = encode(SealedContent(made.run.federation, made.rounds_played, ids))
        sealing = made.site("berlin").sealing
        assert sealing is not None
        reply = None if answer.reply is None else replace(answer.reply, report=None, uploads=())
        return replace(answer, reply=reply, sealed=Sealed(as_tensor(seal(content, sealing))))

    made.wire.tampered[1] = crowded
    records = made.play()
    assert made.run is not None
    classes = made.run.state.server.catalogue.classes
    assert len(classes) == 2 + 3
    objections = {failure["reason"] for record in records for failure in record.failures}
    assert objections == {"site berlin: it announces 50 new classes, federation.max_new_classes allows 3 in a block"}
    assert client_tallies(records)[1]["refused"] == 5


def test_a_site_in_quarantine_stays_connected_is_told_and_takes_no_part(build: Build) -> None:
    made = stocked(build("icarl", "deployment.evaluate_every=1", "deployment.min_sites=2", rounds=5))

    def quarantine(begins: bool) -> None:
        member, handler = made.wire.parties[1]
        made.wire.parties[1] = replace(member, quarantined=begins), handler

    acts: dict[int, Callable[[], object]] = {2: lambda: quarantine(True), 4: lambda: quarantine(False)}
    records = made.play(acts)
    assert [record.clients for record in records] == [3, 3, 2, 2, 3]
    assert all(1 not in record.participants and not record.failures for record in records[2:4])
    assert len(made.wire.requests(TrainRequest, 1)) == 3
    assert len(made.wire.requests(EvaluateRequest, 0)) - len(made.wire.requests(EvaluateRequest, 1)) == 2
    told = [line for line in made.said[1] if "operators" in line]
    assert told == [QUARANTINED, "the server's operators have released this site: it takes part again"]


def test_the_answer_of_a_site_that_is_put_in_quarantine_while_it_trains_is_not_used(build: Build) -> None:
    made = stocked(build("icarl", rounds=3))
    rounds = made.rounds()
    for _ in range(2):
        next(rounds)
    member, handler = made.wire.parties[1]

    def meanwhile(answer: Message) -> None:
        made.wire.parties[1] = replace(member, quarantined=True), handler

    made.wire.tampered[1] = meanwhile
    record = next(rounds)
    assert record.reports == 2
    (failure,) = record.failures
    assert failure["reason"] == "site berlin: it is in quarantine; its answer is not used"


def test_a_model_that_most_sites_refuse_is_given_up_for_the_one_before(build: Build) -> None:
    """A site that guards itself does not train on a poisoned model; it says so."""
    made = stocked(build("icarl", "deployment.evaluate_every=0", rounds=4))
    rounds = made.rounds()
    for _ in range(2):
        next(rounds)
    good = made.digest
    next(rounds)
    refuse = Refusal("the model is not one that I train on")
    made.wire.tampered = {one: lambda answer: refuse if isinstance(answer, TrainResult) else None for one in (0, 2)}
    record = next(rounds)
    assert record.not_applied == "2 of 3 participants did not come to a sound model"
    assert {failure["stage"] for failure in record.failures} == {"refusal"}
    assert made.digest == good


# --- who did it ---------------------------------------------------------------------------------------------------


def test_exclusions_and_objections_are_counted_for_each_client_and_on_the_page() -> None:
    refused = {"client": 4, "round": 1, "stage": "update", "reason": "it is not finite"}
    excluded = [{"client": 9, "reason": "too far away"}]
    records = (
        written(0, participants=[2, 4, 9], members={"site": [2, 4, 9]}, excluded=excluded),
        written(1, participants=[2, 4], failures=[refused, {**refused, "stage": "announce"}]),
        written(2, participants=[4], failures=[{**refused, "stage": "answer"}]),
    )
    assert client_tallies(records) == {
        2: {"trained": 2, "excluded": 0, "refused": 0, "failed": 0},
        4: {"trained": 3, "excluded": 0, "refused": 2, "failed": 1},
        9: {"trained": 1, "excluded": 1, "refused": 0, "failed": 0},
    }
    summary = summarise(records, "icarl", "fcil", 1)
    page = clients_section(RunFacts("run", "server", summary, {}, records), "a").body
    assert "Rounds left out" in page
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("Rounds left out")[2].partition("</table>")[0], re.DOTALL)
    assert [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows[1:]] == [list("43021"), list("91100")]


def test_a_record_says_why_a_round_is_not_applied_and_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for one in (written(0), written(1, not_applied="the aggregate is not finite")):
        journal.append(one)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert ["not_applied" in line for line in lines] == [False, True]
    assert Journal.read(tmp_path, 2, journal.digest).records == journal.records
