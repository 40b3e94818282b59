"""The shared parts of the methods' servers: who teaches, plain averaging, and what a report may not carry."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.objectives import catalogue, gathered, weighted

from fcil.core.messages import Report, RoundContext, Teacher, Teachers, model_digest
from fcil.methods import Setting, get_method, methods
from fcil.methods.server import newest_older_model, plain_server
from fcil.testing import trial

CONTEXT = RoundContext(9, catalogue(6), (2, 4, 6), 3)
TWO, FOUR, SIX = (Teacher(str(outputs), outputs) for outputs in (2, 4, 6))


def test_the_teacher_is_the_newest_model_without_the_newest_block() -> None:
    assert newest_older_model(Teachers(current=SIX, last=FOUR), CONTEXT, True) == FOUR
    assert newest_older_model(Teachers(current=FOUR, last=TWO), CONTEXT, False) == FOUR
    assert newest_older_model(Teachers(current=SIX), CONTEXT, True) is None
    assert newest_older_model(Teachers(last=FOUR), CONTEXT, True) == FOUR
    assert newest_older_model(Teachers(last=Teacher("empty", 0)), CONTEXT, True) is None
    assert newest_older_model(Teachers(), CONTEXT, True) is None


def test_a_merged_growth_does_not_make_a_teacher_of_its_own_block() -> None:
    context = RoundContext(9, catalogue(4), (2, 4), 3)
    assert newest_older_model(Teachers(current=Teacher("3", 3), last=TWO), context, False) == TWO


UNTAUGHT = {"analytic", "finetune", "joint", "fedprox", "fedcbdr", "re-fed"}
TAUGHT_BY_THE_PROXY = {"glfc", "glfc-wo-cgc", "glfc-wo-crd", "lga"}


@pytest.mark.parametrize("method", methods())
def test_the_server_keeps_an_old_model_where_clients_have_a_rule_for_teachers_and_no_proxy_chooses(method: str) -> None:
    made = trial(method)
    assert (made.roles.client.teacher is None) == (method in UNTAUGHT)
    assert made.roles.teaches == (method not in UNTAUGHT | TAUGHT_BY_THE_PROXY)
    server = made.simulation.server
    first = server.grow(server.start(), ["0", "1"])
    second = server.grow(replace(first, round=1), ["2"])
    assert first.previous is None
    assert (second.previous is not None) == made.roles.teaches
    if second.previous is not None:
        assert server.open(second, None).broadcast.teachers.last == Teacher(model_digest(first.model), 2)


def test_a_growth_that_joins_the_newest_block_leaves_the_teacher_alone() -> None:
    server = trial("lwf", federation={"merge_rounds": 2}).simulation.server
    state = server.grow(server.start(), ["0"])
    old = server.grow(replace(state, round=5), ["1"])
    merged = server.grow(replace(old, round=6), ["2"])
    assert merged.catalogue.blocks == (1, 3)
    assert merged.previous is old.previous is not None


@pytest.mark.parametrize("method", methods())
def test_the_servers_half_is_built_without_the_secret(method: str) -> None:
    chosen = get_method(method)
    server = chosen.build(chosen.config(), Setting(6, (1, 8, 8), None)).server
    assert server.init() == chosen.build(chosen.config(), Setting(6, (1, 8, 8), 7)).server.init()


def test_a_plain_server_takes_the_mean_as_it_is() -> None:
    sent = {"w": torch.tensor([9.0])}
    reports = [Report({"w": torch.tensor([0.0])}, 1), Report({"w": torch.tensor([4.0])}, 3)]
    server = plain_server()
    results = {}
    for averaging in ("uniform", "samples"):
        aggregate = gathered(sent, reports, averaging)
        results[averaging] = server.round(server.init(), sent, aggregate, CONTEXT)[1]["w"].item()
    assert results == {"uniform": 2.0, "samples": 3.0}
    assert server.round(server.init(), sent, gathered(sent, []), CONTEXT)[1]["w"].item() == 9.0


def test_a_plain_server_refuses_what_it_did_not_ask_for() -> None:
    server, model = plain_server(), {"w": torch.zeros(2)}
    assert server.objection(Report(model, 1), model, CONTEXT) is None
    more = Report(model, 1, {"w": torch.ones(2)}, {"bias": weighted([1.0])})
    assert server.objection(more, model, CONTEXT) == "it sends w, bias unasked"
