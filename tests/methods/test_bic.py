"""BiC: distillation by the share of old classes, and the correction of the newest block."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.objectives import SOURCE, Workshop, catalogue, state_of, weighted
from torch import Tensor

from fcil.core.messages import Report, RoundContext, Weighted
from fcil.data.datasets.dataset import Split
from fcil.maths.bias import Correction, correct
from fcil.methods.bic import BIAS, LARGEST, Bias, BiasState, TeacherCorrection
from fcil.methods.server import ONE


def imbalanced(shop: Workshop) -> Tensor:
    """Return few samples of the old classes and many of the new ones."""
    return torch.cat([shop.of_classes(0, 1, 2, each=4), shop.of_classes(3, 4, 5)])


def test_bic_weighs_the_distillation_by_the_share_of_old_classes() -> None:
    shop = Workshop("bic", 3, 4)
    samples = shop.of_classes(0, 3, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        logits, teacher = objective.problem.net(images), objective.problem.teacher(images)
    distilled = -(F.softmax(teacher / 2, 1) * F.log_softmax(logits[:, :3] / 2, 1)).sum(1).mean()
    expected = 3 / 4 * distilled + F.cross_entropy(logits, objective.problem.targets) / 4
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_bic_lowers_the_share_of_new_predictions_on_an_imbalanced_client() -> None:
    shop = Workshop("bic", 3, 6).pretrained(epochs=4)
    objective = shop.fit(shop.objective(imbalanced(shop)), epochs=4)
    parts = objective.parts()
    alpha, beta = parts[BIAS].value.tolist()
    state, _ = shop.roles.server.grow(BiasState(), shop.teacher, 6, True, 2)
    state, averaged = shop.round(state, [Report(state_of(objective), 72, parts=parts)])
    plain, corrected = (shop.logits(chosen) for chosen in (averaged, shop.roles.server.predictor(state, averaged)))
    shares = [float((logits.argmax(1) >= 3).float().mean()) for logits in (plain, corrected)]
    assert shares[1] < shares[0]
    assert abs(shares[1] - 0.5) < abs(shares[0] - 0.5)  # half of the test images are new
    torch.testing.assert_close(corrected, correct(plain, 3, Correction(alpha, beta)))


def test_bic_sends_no_correction_that_its_server_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcil.methods.bic.fit_correction", lambda *_, **__: Correction(3357.0, -2e6))
    shop = Workshop("bic", 3, 6, alpha_penalty=0.0)
    objective = shop.fit(shop.objective(imbalanced(shop)), epochs=1)
    assert objective.parts()[BIAS].value.tolist() == [LARGEST, -LARGEST]
    report = Report(state_of(objective), 72, parts=objective.parts())
    assert shop.roles.server.objection(report, shop.teacher, objective.problem.context) is None


def test_bic_trains_on_none_of_the_samples_it_corrects_with() -> None:
    shop = Workshop("bic", 3, 6)
    objective = shop.objective(imbalanced(shop))
    seen, held = torch.cat(objective.epoch(torch.Generator().manual_seed(1))), objective.held_out
    assert Counter(objective.problem.targets[held].tolist()) == dict.fromkeys(
        range(6), 1
    )  # a tenth of four, at least one
    assert sorted([*seen.tolist(), *held.tolist()]) == list(range(len(objective.problem.targets)))


def test_bic_holds_the_same_samples_out_for_a_whole_block() -> None:
    shop = Workshop("bic", 3, 6)
    samples = imbalanced(shop)
    held = [shop.objective(samples, seed=seed).held_out.tolist() for seed in (1, 2)]
    assert held[0] == held[1]
    fewer = shop.objective(samples[samples != samples[held[0][0]]]).held_out
    kept = set(samples[held[0][1:]].tolist())
    assert kept < set(samples[samples != samples[held[0][0]]][fewer].tolist())
    shop.context = RoundContext(9, catalogue(6), (1, 3, 6), 0)
    assert shop.objective(samples).held_out.tolist() != held[0]


def test_bic_holds_the_same_samples_out_after_a_site_got_more() -> None:
    first = SOURCE.train
    more = Split(torch.cat([first.images, first.images]), torch.cat([first.labels, first.labels]))
    before, after = Workshop("bic", 3, 6), Workshop("bic", 3, 6, source=replace(SOURCE, train=more))
    samples = imbalanced(before)
    assert after.objective(samples).held_out.tolist() == before.objective(samples).held_out.tolist() != []


@pytest.mark.parametrize("classes", [(0, 1, 2), (3, 4, 5)], ids=["S_o", "S_n"])
def test_bic_corrects_nothing_without_both_old_and_new_samples(classes: tuple[int, ...]) -> None:
    shop = Workshop("bic", 3, 6)
    assert shop.fit(shop.objective(shop.of_classes(*classes, each=4)), epochs=1).parts() == {}


def pair(alpha: float, beta: float) -> Weighted:
    return Weighted(torch.tensor([alpha, beta], dtype=torch.float64), ONE)


def test_bic_averages_the_corrections_and_hands_them_on_with_the_next_growth() -> None:
    shop = Workshop("bic", 2, 4)
    server = shop.roles.server
    state, model = server.grow(BiasState(), shop.teacher, 4, True, 1)
    assert state.begins == 2
    found = [shop.report(bias=pair(0.5, -1.0)), shop.report(bias=pair(0.7, -2.0)), shop.report()]
    state, _ = shop.round(state, found)
    assert (state.bias.alpha, state.bias.beta) == (pytest.approx(0.6), -1.5)
    merged, _ = server.grow(state, model, 5, False, 1)
    assert (merged.begins, merged.bias) == (2, state.bias)  # a growth that joins the block changes nothing
    later = RoundContext(2, catalogue(6), (2, 4, 6), 0)
    assert server.extra(state, later).message is None
    state, grown = server.grow(state, model, 6, True, 1)
    sent = server.extra(state, later).message
    assert isinstance(sent, TeacherCorrection)
    assert (sent.begins, sent.bias.alpha, sent.bias.beta) == (2, pytest.approx(0.6), -1.5)
    assert server.predictor(state, grown) is grown  # the new block has no correction yet


def test_bic_teaches_with_the_former_blocks_correction() -> None:
    student = Workshop("bic", 4, 6)
    samples = student.of_classes(0, 5, each=4)
    images, rows = student.local.images(samples), torch.arange(8)
    extras = (None, TeacherCorrection(2, Bias(0.6, -1.5)), TeacherCorrection(2, Bias(1.0, 0.0)))
    with torch.no_grad():
        plain, taught, same = (student.objective(samples, extra).loss(images, rows) for extra in extras)
    assert taught != plain
    assert same == plain


BAD_CORRECTIONS: list[tuple[Any, Any, str]] = [
    ([0.5], 1.0, "has the shape (1,)"),
    ([0.5, 0.0], [1.0, 1.0], "with weights (2,)"),
    ([math.inf, 0.0], 1.0, "contains NaN, infinity or values above "),
    ([0.5, math.nan], 1.0, "contains NaN, infinity or values above "),
    ([1e30, 0.0], 1.0, "contains NaN, infinity or values above "),
    ([1, 0], 1.0, "should be floats"),
    ([0.5, 0.0], -1.0, "weights that are not believed"),
    ([0.5, 0.0], 0.0, "weights that are not believed"),  # a mean without weight would be a scale of zero
    ([0.5, 0.0], 1000.0, "weights that are not believed"),  # one participant counts once
]


@pytest.mark.parametrize(("value", "weight", "reason"), BAD_CORRECTIONS)
def test_bic_refuses_corrections_that_cannot_be(value: Any, weight: Any, reason: str) -> None:
    shop = Workshop("bic", 2, 4)
    found = shop.objection(shop.report(bias=weighted(value, weight)))
    assert found is not None
    assert reason in found


def test_bic_refuses_what_it_did_not_ask_for() -> None:
    shop = Workshop("bic", 2, 4)
    assert shop.objection(shop.report(bias=pair(1.0, 0.0), more=pair(1.0, 0.0))) == "it sends more unasked"
    assert shop.objection(shop.report(more=pair(1.0, 0.0))) == "it sends more unasked"
    assert shop.objection(shop.report(rows={"head.weight": torch.ones(4)})) == "it sends head.weight unasked"
