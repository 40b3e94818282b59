"""The temperature, the least score, the calibration error and the area under the curve, against values by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fcil.core.messages import generator
from fcil.maths.calibration import (
    BINS,
    REJECTED,
    TEMPERATURES,
    area_under_curve,
    calibration_error,
    fitted,
    score_sums,
    scores,
)


def drawn(temperature: float, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return logits and targets that follow the softmax of these logits at a temperature."""
    draw = generator(seed)
    logits = torch.randn(count, 5, generator=draw, dtype=torch.float64)
    targets = torch.multinomial((logits / temperature).softmax(1), 1, generator=draw).squeeze(1)
    return logits, targets


def test_the_sums_of_two_samples_are_the_ones_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # probabilities 3/4, 1/4 and 1/2, 1/2
    sums = score_sums(logits, torch.tensor([1, 0]))
    row = TEMPERATURES.index(1.0)
    assert float(sums.loss[row]) == pytest.approx(math.log(4) + math.log(2), rel=1e-6)
    assert sums.images[row].nonzero().squeeze(1).tolist() == [BINS // 2, 3 * BINS // 4]
    assert sums.right[row].nonzero().squeeze(1).tolist() == [BINS // 2]
    assert calibration_error(sums, 1.0) == pytest.approx((0.75 + 0.5) / 2, rel=1e-6)


def test_the_temperature_that_made_the_labels_is_found_and_calibrates() -> None:
    for temperature in (TEMPERATURES[15], TEMPERATURES[20], TEMPERATURES[24]):
        sums = score_sums(*drawn(temperature, 20_000, 5))
        assert fitted(sums).temperature == temperature
        assert calibration_error(sums, temperature) < 0.02
    assert calibration_error(sums, TEMPERATURES[10]) > 0.2


def test_sums_of_parties_add_up_to_those_of_all() -> None:
    logits, targets = drawn(1.0, 300, 7)
    whole = score_sums(logits, targets)
    parts = score_sums(logits[:100], targets[:100]) + score_sums(logits[100:], targets[100:])
    torch.testing.assert_close(parts.loss, whole.loss)
    torch.testing.assert_close(parts.score, whole.score)
    assert torch.equal(parts.images, whole.images)
    assert torch.equal(parts.right, whole.right)


def test_the_threshold_turns_away_at_most_a_twentieth_and_nearly_as_much() -> None:
    logits, targets = drawn(1.0, 5_000, 11)
    found = fitted(score_sums(logits, targets))
    share = float((scores(logits, found.temperature) < found.threshold).double().mean())
    assert REJECTED - 0.01 < share <= REJECTED


def test_a_sample_without_an_output_counts_as_wrong_and_has_no_likelihood() -> None:
    logits = torch.tensor([[5.0, 0.0]])
    sums = score_sums(logits, torch.tensor([-1]))
    assert not sums.loss.any()
    assert float(sums.images[20].sum()) == 1
    assert not sums.right.any()


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    known, unknown = torch.tensor([0.9, 0.5, 0.5]), torch.tensor([0.1, 0.5])
    pairs = [(k > u) + 0.5 * (k == u) for k in known.tolist() for u in unknown.tolist()]
    assert area_under_curve(known, unknown) == pytest.approx(sum(pairs) / len(pairs))
    assert area_under_curve(unknown[:1], known[:1]) == 0.0
