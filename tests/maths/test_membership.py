"""Scores of membership and bounds from guesses, against hand values and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from fcil.maths.calibration import area_under_curve
from fcil.maths.leakage import least_epsilon, log_odds, ratio_of_likelihoods


def test_log_odds_are_those_of_the_softmax() -> None:
    logits, outputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 0])
    likely = logits.double().softmax(1)[torch.arange(5), outputs]
    torch.testing.assert_close(log_odds(logits, outputs), likely.logit())
    assert float(log_odds(torch.tensor([[200.0, -200.0]]), torch.tensor([0]))) == pytest.approx(400)  # not infinite


def test_a_ratio_of_likelihoods_by_hand() -> None:
    """Two images; deviations are pooled: of those trained on 1 and 3 off by one each, of the others 0 and 0."""
    known = torch.tensor([[4.0, 10.0], [6.0, 12.0], [0.0, 5.0], [2.0, 9.0]], dtype=torch.float64)
    trained = torch.tensor([[True, True], [True, True], [False, False], [False, False]])
    inside, outside = 4 / 2, (2 + 8) / 2  # sums of squares over the two degrees of freedom
    wanted = -((4.5 - 5) ** 2) / (2 * inside) + (4.5 - 1) ** 2 / (2 * outside) + math.log(outside / inside) / 2
    found = ratio_of_likelihoods(torch.tensor([4.5, 11.0]), known, trained)
    assert float(found[0]) == pytest.approx(wanted)
    alone = ratio_of_likelihoods(torch.tensor([4.5, 11.0]), known, torch.ones(4, 2).bool())
    assert alone.isnan().all()  # nobody knows how sure a model is that was not trained on them


def test_scores_tell_members_apart_where_a_threshold_cannot() -> None:
    """Images differ more from each other than a member from the same image outside."""
    draw = torch.Generator().manual_seed(2)
    base = 10 * torch.randn(400, generator=draw, dtype=torch.float64)
    trained = torch.rand(8, 400, generator=draw) < 0.5
    known = base + 2.0 * trained + 0.5 * torch.randn(8, 400, generator=draw, dtype=torch.float64)
    member = torch.arange(400) < 200
    target = base + 2.0 * member + 0.5 * torch.randn(400, generator=draw, dtype=torch.float64)
    scores = ratio_of_likelihoods(target, known, trained)
    usable = scores.isfinite()
    assert area_under_curve(scores[member & usable], scores[~member & usable]) > 0.97
    assert area_under_curve(target[member], target[~member]) < 0.65


def test_guesses_bound_epsilon() -> None:
    for guesses in (10, 144):  # all right: chance^guesses = 0.05
        chance = 0.05 ** (1 / guesses)
        assert least_epsilon(200, guesses, guesses, 0.0, 0.05) == pytest.approx(math.log(chance / (1 - chance)))
    assert least_epsilon(200, 100, 50, 0.0, 0.05) == 0.0  # no better than a coin
    assert least_epsilon(200, 100, 0, 1e-2, 0.05) == 0.0
    free, loose = (least_epsilon(200, 100, 80, delta, 0.05) for delta in (0.0, 1e-3))
    assert 0 < loose < free < math.log(0.8 / 0.2)


def test_the_bound_holds_for_a_mechanism_of_known_epsilon() -> None:
    """Randomised response tells each coin rightly with e / (1 + e), so epsilon is 1; few of 200 bounds are higher."""
    draw, right = torch.Generator().manual_seed(3), math.e / (1 + math.e)
    told = (torch.rand(200, 300, generator=draw) < right).sum(1)
    least = next(number for number in range(220, 300) if least_epsilon(300, 300, number, 0.0, 0.05) > 1.0)
    assert int((told >= least).sum()) <= 20
