"""GLFC's loss, its teacher and its prototypes: the client's side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.objectives import Fixed
from support.prototypes import CONTEXT, SETTING, SOURCE, local, model_with, uploads_of
from torch import Tensor

from fcil.core.messages import RoundContext, Teacher, Teachers, model_digest
from fcil.maths.prototypes import encoder_gradients
from fcil.methods import get_method
from fcil.methods.glfc import GLFC, GLFCConfig
from fcil.methods.local_objective import Problem
from fcil.methods.prototypes import shared_encoder
from fcil.methods.teachers import teacher_by_alarm

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "a_b_loss.npz")


def golden_loss(case: str, **fields: Any) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with the released code's behaviour on a golden case."""
    logits = torch.tensor(GOLDEN["logits"], requires_grad=True)
    labels = torch.tensor(GOLDEN[f"{case}__labels"])
    teacher = Fixed(torch.tensor(GOLDEN["old_logits"])) if case.endswith("_old") else None
    learned = torch.tensor(GOLDEN[f"{case}__learned"])
    problem = Problem(
        net=Fixed(logits),  # type: ignore[arg-type]
        teacher=teacher,  # type: ignore[arg-type]
        targets=labels,
        old=torch.isin(labels, learned),
        has_history=len(learned) > 0,
        context=CONTEXT,
    )
    config = GLFCConfig(**{**GLFCConfig.editions["official"], **fields})
    loss = GLFC(config, problem, local(), SETTING).loss(torch.empty(24), torch.arange(24))
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


@pytest.mark.parametrize(
    "case", ["nolearned", "mixed", "dup_learned", "mixed_old", "nolearned_old", "onlynew_old", "onlyold_old"]
)
def test_the_official_loss_and_its_gradient_are_those_of_the_released_code(case: str) -> None:
    loss, gradient = golden_loss(case)
    assert loss.item() == pytest.approx(float(GOLDEN[f"{case}__loss"]), rel=1e-6)
    expected = GOLDEN[f"{case}__grad"]
    assert np.abs(gradient.numpy() - expected).max() <= 1e-6 * np.abs(expected).max()


def problem_with(teacher: bool, old: bool = True) -> Problem:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 5, generator=draw)
    labels = torch.tensor([0, 1, 2, 3, 4, 0, 3, 4])
    taught = Fixed(torch.randn(8, 3, generator=draw)) if teacher else None
    mask = labels < 3 if old else torch.zeros(8, dtype=torch.bool)
    return Problem(
        net=Fixed(logits),  # type: ignore[arg-type]
        teacher=taught,  # type: ignore[arg-type]
        targets=labels,
        old=mask,
        has_history=old,
        context=CONTEXT,
    )


def loss_with(problem: Problem, **fields: Any) -> float:
    return float(GLFC(GLFCConfig(**fields), problem, local(), SETTING).loss(torch.empty(8), torch.arange(8)))


def by_hand(problem: Problem) -> dict[str, float]:
    """Return every term in plain numpy."""
    logits = problem.net.logits.numpy().astype(np.float64)  # type: ignore[union-attr]
    labels = problem.targets.numpy()
    p = 1 / (1 + np.exp(-logits))
    hot = np.eye(5)[labels]

    def bce(target: np.ndarray, columns: int = 5) -> np.ndarray:
        q = p[:, :columns]
        return -(target * np.log(q) + (1 - target) * np.log(1 - q)).mean(1)

    g = np.abs(p[np.arange(8), labels] - 1)
    old = problem.old.numpy()
    mean = np.where(old, g[old].mean() if old.any() else 1.0, g[~old].mean())
    found = {"ce": bce(hot).mean(), "gc": (g / mean * bce(hot)).mean()}
    if problem.teacher is not None:
        soft = 1 / (1 + np.exp(-problem.teacher.logits.numpy().astype(np.float64)))  # type: ignore[union-attr]
        target = np.concatenate([soft, hot[:, 3:]], 1)
        y = target.clip(1e-4, 1 - 1e-4)
        found["rd"] = bce(target).mean()
        found["kl"] = (p * np.log(p / y) + (1 - p) * np.log((1 - p) / (1 - y))).sum(1).mean()
        found["icarl"] = bce(soft, 3).mean()
    return found


def test_without_a_teacher_the_loss_is_the_compensated_one_alone() -> None:
    problem = problem_with(teacher=False)
    assert loss_with(problem) == pytest.approx(by_hand(problem)["gc"], rel=1e-6)


def test_with_a_teacher_both_terms_count_half() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    assert loss_with(problem) == pytest.approx(0.5 * terms["gc"] + 0.5 * terms["rd"], rel=1e-6)
    assert loss_with(problem, divergence="kl") == pytest.approx(0.5 * terms["gc"] + 0.5 * terms["kl"], rel=1e-5)


def test_each_term_has_a_weight_of_its_own() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    found = loss_with(problem, compensation_weight=0.3, relation_weight=0.9)
    assert found == pytest.approx(0.3 * terms["gc"] + 0.9 * terms["rd"], rel=1e-6)


def test_without_compensation_only_the_weights_go() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    assert loss_with(problem, compensation=False) == pytest.approx(0.5 * terms["ce"] + 0.5 * terms["rd"], rel=1e-6)


def test_without_relation_the_old_outputs_alone_are_distilled() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    assert loss_with(problem, relation=False) == pytest.approx(0.5 * terms["gc"] + 0.5 * terms["icarl"], rel=1e-6)


def test_weights_without_a_history_follow_the_field() -> None:
    problem = problem_with(teacher=False, old=False)
    terms = by_hand(problem)
    assert loss_with(problem) == pytest.approx(terms["ce"], rel=1e-6)
    assert loss_with(problem, compensation_without_history="weights") == pytest.approx(terms["gc"], rel=1e-6)


def test_without_the_proxy_the_server_teaches_and_nothing_is_uploaded() -> None:
    full, ablated = (get_method("glfc").build(GLFCConfig(proxy=proxy), SETTING) for proxy in (True, False))
    assert full.proxy is not None
    assert ablated.proxy is None
    assert (full.teaches, ablated.teaches) == (False, True)
    assert uploads_of((0, 2), proxy=False) == []


def test_the_paper_chooses_its_teacher_by_the_alarm() -> None:
    context, best, last = RoundContext(3, ("0", "1"), (1, 2), 0), Teacher("a", 2), Teacher("b", 1)
    assert teacher_by_alarm(Teachers(best, last), context, True) == best
    assert teacher_by_alarm(Teachers(best, last), context, False) == last
    assert teacher_by_alarm(Teachers(None, last), context, True) == last
    assert teacher_by_alarm(Teachers(), context, True) is None


@pytest.mark.parametrize(
    ("ablation", "switch"), [("glfc-wo-cgc", "compensation"), ("glfc-wo-crd", "relation"), ("glfc-wo-prs", "proxy")]
)
def test_an_ablation_is_glfc_with_one_switch_off(ablation: str, switch: str) -> None:
    full, ablated = get_method("glfc"), get_method(ablation)
    settings = [method.config().model_dump() for method in (full, ablated)]
    assert {key for key in settings[0] if settings[0][key] != settings[1][key]} == {switch}
    assert settings[1][switch] is False
    assert full.build is ablated.build
    with pytest.raises(ValueError, match="should be False"):
        ablated.config(**{switch: True})


def test_one_gradient_travels_for_each_new_class_and_only_after_an_alarm() -> None:
    assert len(uploads_of((0, 2, 3))) == 3
    assert uploads_of((0, 2, 3), alarm=False) == []


def test_an_uploaded_gradient_is_that_of_the_prototype_when_nothing_is_perturbed() -> None:
    (upload,) = uploads_of((2,), perturb_steps=0)
    place = local()
    samples = (SOURCE.train.labels == 2).nonzero().squeeze(1)
    net = place.machine.net(model_with(4))
    with torch.no_grad():
        features = net.extract(place.images(samples))
    nearest = samples[(features - features.mean(0)).norm(dim=1).argmin()]
    encoder = shared_encoder(SETTING, 4, torch.device("cpu"))
    expected = encoder_gradients(encoder, place.images(nearest[None]), torch.tensor([2]))
    for name, value in upload.gradient.items():
        assert torch.allclose(value, expected[name][0], rtol=1e-5, atol=1e-7)


def test_what_travels_is_the_gradient_of_the_perturbed_prototype() -> None:
    plain, perturbed = (uploads_of((2,), perturb_steps=steps)[0].gradient["fc.0.weight"] for steps in (0, 3))
    assert not torch.allclose(plain, perturbed)


def test_the_encoder_follows_from_the_secret() -> None:
    weights = [
        shared_encoder(replace(SETTING, secret=secret), 4, torch.device("cpu")).state_dict() for secret in (11, 11, 12)
    ]
    assert model_digest(weights[0]) == model_digest(weights[1]) != model_digest(weights[2])


def test_who_does_not_know_the_secret_cannot_build_the_encoder() -> None:
    with pytest.raises(ValueError, match="secret"):
        shared_encoder(replace(SETTING, secret=None), 4, torch.device("cpu"))


def test_editions_change_what_they_name() -> None:
    paper, official = (GLFCConfig(**GLFCConfig.editions[name]) for name in ("paper", "official"))
    assert (paper.divergence, paper.teacher, paper.detector) == ("kl", "alarm", "entropy")
    assert paper.compensation_without_history == "weights"
    assert paper.rebuild_restarts == 0
    assert (paper.perturb_steps, paper.perturb_learning_rate, paper.perturb_noise) == (100, 0.1, 0.1)
    assert (official.perturb_steps, official.perturb_learning_rate, official.perturb_noise) == (50, 0.2, 0.0)
    assert (official.rebuild_evaluations, official.rebuild_learning_rate, official.rebuild_keep) == (5000, 0.1, 20)
    assert (official.pool, official.scoring, official.best) == ("by-label", "augmented", "forever")
    assert (paper.scored, official.scored) == ("both", "averaged")
    assert (official.divergence, official.compensation_without_history) == ("bce", "one")
