"""The inputs of a client's local fit, and the entropies that its alarms follow from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.clients import run_client
from support.objectives import MODEL as NETWORK
from support.objectives import catalogue, make_local
from torch import Tensor

from fcil.core.messages import Diagnostics, ModelState, Reply, RoundContext, model_digest
from fcil.data.augment import AugmentConfig
from fcil.data.exemplar_memory import Memory
from fcil.maths.entropy import softmax_entropy
from fcil.methods import Setting, get_method, local_objective, method_config
from fcil.methods.client import ClientState, RehearsalClient
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import Classification, KeptLogits, Problem
from fcil.methods.server import newest_older_model
from fcil.models import grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.optimiser import PAPER, milestones
from fcil.models.trainer import TrainConfig, Trainer
from fcil.testing import blobs

SOURCE = blobs(per_class=6)
TEACHER = grow(initial_state(NETWORK, 1, 0), 2, 1)
MODEL = grow(TEACHER, 4, 2)
TRAIN = TrainConfig(epochs=1, batch_size=8, learning_rate=0.1, block_epochs=20)
SETTING = Setting(6, SOURCE.image_shape, None)


def of_class(label: int) -> Tensor:
    return (SOURCE.train.labels == label).nonzero().squeeze(1)


EXEMPLARS = of_class(0)[:2]
WITH_MEMORY = ClientState(of_class(3), memory=Memory((0,), (EXEMPLARS,)), acknowledged=(0, 3))


class Noting(Classification[RehearsalConfig]):
    """Keeps what it was given."""

    given: Problem

    def __init__(self, config: RehearsalConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        type(self).given = problem


def participate(rounds_since_growth: int = 0, train: TrainConfig = TRAIN, **fields: Any) -> tuple[Problem, Reply]:
    """Return what a client with a memory is given in the second block, and its reply."""
    role = RehearsalClient(RehearsalConfig(**fields), SETTING, Noting, teacher=newest_older_model)
    context, local = RoundContext(5, catalogue(4), (2, 4), rounds_since_growth), make_local(SOURCE, train=train)
    samples = WITH_MEMORY.latest
    _, reply, _ = run_client(role, WITH_MEMORY, samples, local, context, MODEL, participate=True, teacher=TEACHER)
    return Noting.given, reply


def test_a_client_trains_on_its_data_and_its_exemplars_and_knows_which_are_old() -> None:
    problem, reply = participate()
    assert problem.samples.tolist() == sorted([*EXEMPLARS.tolist(), *of_class(3).tolist()])
    assert problem.old.tolist() == [label == 0 for label in SOURCE.train.labels[problem.samples].tolist()]
    assert reply.report is not None
    assert reply.report.samples == len(problem.samples)


def test_the_teacher_is_the_old_model_at_rest() -> None:
    teacher = participate()[0].teacher
    assert teacher is not None
    assert model_digest(teacher.state_dict()) == model_digest(TEACHER)  # the fit has not changed its statistics either
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def moved(reply: Reply) -> bool:
    assert reply.report is not None
    return not torch.equal(reply.report.model["head.weight"], MODEL["head.weight"])


def test_milestones_count_from_the_growth_of_the_head() -> None:
    at_rest_from_the_second_round = TRAIN.model_copy(update={"milestones": milestones((1, 1e30))})
    assert moved(participate(0, at_rest_from_the_second_round)[1])
    assert not moved(participate(1, at_rest_from_the_second_round)[1])


def test_a_published_schedule_is_scaled_to_the_planned_length_of_a_block() -> None:
    assert participate(optimiser="paper")[0].optimiser == PAPER.over(20)
    assert participate()[0].optimiser == TRAIN.optimiser()


def detect(arrivals: list[Tensor], previous: float | None = None, **fields: Any) -> Diagnostics:
    """Return the last measures of a client that these samples came to one after the other."""
    role = RehearsalClient(RehearsalConfig(detector="entropy", **fields), SETTING, Classification)
    state, local, context = role.init(), make_local(SOURCE), RoundContext(0, catalogue(4), (4,), 0)
    for arrival in arrivals:
        state, _, measured = run_client(role, state, arrival, local, context, MODEL, entropy=previous)
    return measured


def test_an_alarm_follows_from_the_rise_and_not_from_the_entropy_itself() -> None:
    measured = detect([of_class(0)]).entropy
    assert measured is not None
    assert detect([of_class(0)]).alarm
    assert not detect([of_class(0)], previous=measured - 1.1).alarm
    assert detect([of_class(0)], previous=measured - 1.3).alarm


@pytest.mark.parametrize(("rule", "alarm"), [("text", True), ("code", False)])
def test_a_rise_by_the_threshold_itself_is_enough_for_the_text_alone(rule: str, alarm: bool) -> None:
    measured = detect([of_class(0)], entropy_rule=rule).entropy
    assert detect([of_class(0)], entropy_rule=rule, entropy_jump=measured).alarm == alarm


def test_the_entropy_leaves_out_what_came_before_the_newest_arrival() -> None:
    never = 1000.0  # so that no alarm takes the earlier data out of use
    found = detect([of_class(0), of_class(3)], entropy_jump=never).entropy
    net = make_local(SOURCE).machine.net(MODEL)
    with torch.no_grad():
        expected = [softmax_entropy(net(SOURCE.train.images[of_class(label)].float() / 255)) for label in (0, 3)]
    assert found == pytest.approx(float(expected[1].mean()), rel=1e-5)
    assert found != pytest.approx(float(torch.cat(expected).mean()), rel=1e-5)


def test_a_teachers_logits_are_computed_once_in_a_fit_and_found_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = participate()[0]
    assert problem.teacher is not None
    images = make_local(SOURCE).images(problem.samples)
    with torch.no_grad():
        expected = problem.teacher(images)
    problem = replace(problem, kept=KeptLogits(problem.samples, make_local(SOURCE)))
    monkeypatch.setattr(local_objective, "CHUNK", 3)
    nothing = torch.zeros_like(images)
    for rows in ([2, 0, 3, 1], [1], [0, 2], [2, 2, 2]):
        found = problem.teacher_logits(nothing[rows], torch.tensor(rows))
        assert found is not None
        assert torch.allclose(found, expected[rows], atol=1e-5)
        monkeypatch.setattr(ClientContext, "inputs", None)  # which gives no image a second time


def test_logits_are_kept_for_one_fit_alone() -> None:
    problem, _ = participate()
    local, rows = make_local(SOURCE), torch.arange(len(problem.samples))
    for seed in (1, 2):
        teacher = local.machine.net(grow(initial_state(NETWORK, 1, seed), 2, seed))
        found = replace(problem, teacher=teacher, kept=KeptLogits(problem.samples, local)).teacher_logits(rows, rows)
        assert found is not None
        assert torch.allclose(found, teacher(local.images(problem.samples)), atol=1e-5)


def test_logits_are_kept_only_where_an_image_always_looks_the_same() -> None:
    plain, _ = participate()
    assert plain.kept is not None
    flipped, _ = participate(train=TRAIN.model_copy(update={"augment": AugmentConfig(flip=True)}))
    assert flipped.kept is None
    rows = torch.tensor([0, 2])
    images = make_local(SOURCE).images(plain.samples[rows])
    first = plain.teacher_logits(images, rows)
    assert first is not None
    again, alone = (plain.teacher_logits(torch.zeros_like(images), known) for known in (rows, None))
    assert again is not None
    assert alone is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, alone)


@pytest.mark.parametrize("method", ["glfc", "mosaic", "lwf", "icarl", "bic", "ssil", "lga", "dde"])
def test_keeping_the_logits_changes_no_loss(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train = TRAIN.model_copy(update={"epochs": 3})
    trained = [trained_model(method, train)]
    monkeypatch.setattr(Trainer, "augments", True)
    trained.append(trained_model(method, train))
    for name, tensor in trained[0].items():
        assert torch.allclose(tensor, trained[1][name], atol=1e-4), name


def trained_model(method: str, train: TrainConfig) -> ModelState:
    """Return what a client of a method reports in the second block."""
    chosen = get_method(method)
    config = method_config(chosen, "fcil", {"proxy": False} if method == "glfc" else {})
    roles = chosen.build(config, replace(SETTING, secret=1))
    context, local = RoundContext(5, catalogue(4), (2, 4), 0), make_local(SOURCE, config.network(NETWORK), train=train)
    start = grow(grow(initial_state(local.machine.model, 1, 0), 2, 1), 4, 2)
    teacher = {name: tensor[:2] if name.startswith("head.") else tensor for name, tensor in start.items()}
    _, reply, _ = run_client(
        roles.client, WITH_MEMORY, WITH_MEMORY.latest, local, context, start, participate=True, teacher=teacher
    )
    assert reply.report is not None
    return dict(reply.report.model)
