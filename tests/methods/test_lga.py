"""LGA's loss and what its clients upload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.objectives import Fixed, catalogue
from support.prototypes import CONTEXT, SETTING, SOURCE, local, model_with, uploads_of
from torch import Tensor

from fcil.core.messages import RoundContext
from fcil.core.messages.types import message_fields
from fcil.methods.glfc import GLFC, GLFCConfig
from fcil.methods.lga import LGA, LGAConfig, MeasuredGradient
from fcil.methods.local_objective import Problem
from fcil.methods.prototypes import PrototypeGradient

BLOCKS = (2, 4, 6)
LABELS = torch.tensor([0, 1, 0, 2, 3, 2, 4, 5, 4, 5])
LEARNED = (0, 1, 2, 3)
ROWS = torch.arange(len(LABELS))


def problem_with(teacher: bool, learned: tuple[int, ...] = LEARNED, blocks: tuple[int, ...] = BLOCKS) -> Problem:
    """Return ten samples of six outputs; the teacher has four."""
    draw = torch.Generator().manual_seed(1)
    logits = (2 * torch.randn(10, 6, generator=draw)).requires_grad_(True)
    return Problem(
        net=Fixed(logits),  # type: ignore[arg-type]
        teacher=Fixed(torch.randn(10, 4, generator=draw)) if teacher else None,  # type: ignore[arg-type]
        targets=LABELS,
        old=torch.isin(LABELS, torch.tensor(learned)),
        has_history=bool(learned),
        context=RoundContext(5, catalogue(6), blocks, 0),
    )


def objective_of(problem: Problem, **fields: Any) -> LGA:
    return LGA(LGAConfig(**fields), problem, local(), SETTING)


def loss_of(objective: LGA | GLFC) -> Tensor:
    return objective.loss(torch.empty(10), ROWS)


def by_hand(problem: Problem, grouping: str, bounds: tuple[float, float] = (0.5, 5.0)) -> tuple[float, float]:
    """Return both terms in plain numpy, for two blocks before the newest one."""
    logits = problem.net.logits.detach().numpy().astype(np.float64)  # type: ignore[union-attr, operator]
    labels, old = problem.targets.numpy(), problem.old.numpy()
    p, hot = 1 / (1 + np.exp(-logits)), np.eye(6)[problem.targets.numpy()]
    g = np.abs(p[np.arange(10), labels] - 1) ** (2 / 3)
    w = np.where(old, 0, g / g[~old].mean())
    for last in (0, 1):
        group = old & (labels // 2 <= last if grouping == "cumulative" else labels // 2 == last)
        w += np.where(group, g / g[group].mean(), 0)
    w = w.clip(*bounds)[:, None]

    def term(target: np.ndarray) -> float:
        return float((-w * (target * np.log(p) + (1 - target) * np.log(1 - p))).mean())

    if problem.teacher is None:
        return term(hot), 0.0
    soft = 1 / (1 + np.exp(-problem.teacher.logits.numpy().astype(np.float64)))  # type: ignore[union-attr, operator]
    return term(hot), term(np.concatenate([soft, hot[:, 4:]], 1))


@pytest.mark.parametrize("grouping", ["block", "cumulative"])
def test_both_terms_carry_the_weights_and_lambda(grouping: str) -> None:
    problem = problem_with(teacher=True)
    classified, distilled = by_hand(problem, grouping)
    assert loss_of(objective_of(problem, grouping=grouping)).item() == pytest.approx(classified + distilled, rel=1e-6)
    found = loss_of(objective_of(problem, grouping=grouping, loss_weight=0.3)).item()
    assert found == pytest.approx(0.3 * (classified + distilled), rel=1e-6)


def test_without_a_teacher_the_loss_is_the_weighted_one_alone_and_has_no_lambda() -> None:
    problem = problem_with(teacher=False)
    found = loss_of(objective_of(problem, loss_weight=0.3)).item()
    assert found == pytest.approx(by_hand(problem, "block")[0], rel=1e-6)


def test_weights_stay_within_their_bounds() -> None:
    problem = problem_with(teacher=False)
    fields = {"smallest_weight": 0.9, "largest_weight": 1.1}
    weights = objective_of(problem, **fields).weights(problem.net(torch.empty(10)), ROWS)
    assert (weights.min().item(), weights.max().item()) == (pytest.approx(0.9), pytest.approx(1.1))
    assert loss_of(objective_of(problem, **fields)).item() == pytest.approx(
        by_hand(problem, "block", (0.9, 1.1))[0], rel=1e-6
    )


def test_a_client_that_has_learned_nothing_before_weighs_all_samples_alike() -> None:
    problem = problem_with(teacher=True, learned=())
    assert objective_of(problem).weights(problem.net(torch.empty(10)), ROWS).tolist() == [1.0] * 10


def test_a_class_of_the_newest_block_is_new_even_if_it_was_learned() -> None:
    plain, again = (problem_with(teacher=True, learned=learned) for learned in (LEARNED, (*LEARNED, 5)))
    assert loss_of(objective_of(plain)).item() == loss_of(objective_of(again)).item()


def test_blocks_are_those_of_the_head() -> None:
    assert objective_of(problem_with(teacher=False)).block.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert objective_of(problem_with(teacher=False, blocks=(4, 6))).block.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


def gradients(loss: Callable[[Problem], Tensor], share: float) -> Tensor:
    """Return the gradient of the distillation alone: that with a teacher, less the share of that without."""
    found = []
    for teacher in (True, False):
        problem = problem_with(teacher)
        (gradient,) = torch.autograd.grad(loss(problem), problem.net.logits)  # type: ignore[arg-type]
        found.append(gradient)
    return found[0] - share * found[1]


def test_twice_the_weight_means_twice_the_distillation_too_and_in_glfc_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = torch.ones(10)
    two = one.clone()
    two[3] = 2.0

    def ours(weights: Tensor) -> Tensor:
        def loss(problem: Problem) -> Tensor:
            objective = objective_of(problem)
            objective.weights = lambda logits, rows: weights  # type: ignore[method-assign]
            return loss_of(objective)

        return gradients(loss, 1.0)

    def theirs(weights: Tensor) -> Tensor:
        monkeypatch.setattr("fcil.methods.glfc.compensation_weights", lambda measure, old: weights)
        return gradients(lambda problem: loss_of(GLFC(GLFCConfig(), problem, local(), SETTING)), 0.5)

    assert ours(one).abs().max() > 1e-3
    torch.testing.assert_close(ours(two), ours(one) * two[:, None], atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(theirs(two), theirs(one), atol=1e-7, rtol=1e-5)


# --- uploads ------------------------------------------------------------------------------------------------------


def test_one_gradient_travels_for_each_new_class_and_only_after_an_alarm() -> None:
    uploads = uploads_of((0, 2, 3), method="lga")
    assert [type(upload) for upload in uploads] == [PrototypeGradient] * 3
    assert uploads_of((0, 2, 3), alarm=False, method="lga") == []


def test_a_participant_that_is_asked_adds_the_spread_of_each_class_and_nothing_else() -> None:
    plain, measured = (uploads_of((0, 2), method="lga", radius=radius) for radius in ("prototypes", "participants"))
    assert [type(upload) for upload in measured] == [MeasuredGradient] * 2
    assert set(message_fields(MeasuredGradient)) == {"gradient", "spread"}
    place = local()
    net = place.machine.net(model_with(CONTEXT.classes))
    for upload, twin, label in zip(measured, plain, (0, 2), strict=True):
        assert all(torch.equal(value, twin.gradient[name]) for name, value in upload.gradient.items())
        features = place.features(net, (SOURCE.train.labels == label).nonzero().squeeze(1)).double().numpy()
        covariance = np.cov(features.T, ddof=0)
        assert upload.spread == pytest.approx(np.trace(covariance) / len(covariance), rel=1e-4)


def test_no_spread_travels_that_the_proxy_would_not_use() -> None:
    second = RoundContext(9, catalogue(6), (4, 6), 0)
    later = uploads_of((4,), context=second, method="lga", radius="participants")
    assert [type(upload) for upload in later] == [PrototypeGradient]


# --- settings -----------------------------------------------------------------------------------------------------


def test_the_released_edition_has_the_released_settings() -> None:
    assert set(LGAConfig.editions) == {"fcil", "released"}
    ours, released = (LGAConfig(**LGAConfig.editions[name]) for name in ("fcil", "released"))
    assert (ours.grouping, released.grouping) == ("block", "cumulative")
    assert (ours.feature_noise, released.feature_noise) == ("deviation", "square")
    assert (ours.radius, released.radius) == ("prototypes", "participants")
    assert (ours.best, released.best) == ("reset", "once")
    assert (ours.score_after, released.score_after) == (0, 6)
    assert (released.perturb_steps, released.perturb_learning_rate, released.perturb_noise) == (50, 0.2, 0.0)
    assert (released.rebuild_evaluations, released.rebuild_learning_rate, released.rebuild_keep) == (5000, 0.1, 20)
    assert (released.teacher, released.detector, released.scoring) == ("alarm", "entropy", "augmented")
    assert (ours.scored, released.scored) == ("both", "averaged")
    assert (released.herding, released.learning_rate_clock) == ("replacement", "round")
    for config in (ours, released):
        assert (config.smallest_weight, config.largest_weight, config.loss_weight) == (0.5, 5.0, 1.0)
        assert (config.noise_draws, config.noise_limit, config.first_radius) == (5, 0.1, 0.15)
