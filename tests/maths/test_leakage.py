"""Figures of attackers against hand values, and similarity against its definition."""

from __future__ import annotations

import pytest
import torch

from fcil.maths.leakage import found_at, nearest, structural_similarity


def test_positives_are_found_above_what_few_negatives_exceed() -> None:
    """One negative in a hundred may be a false alarm: the second highest is the threshold."""
    negative = torch.arange(100.0)
    positive = torch.tensor([97.0, 98.0, 98.5, 99.5])
    assert found_at(positive, negative, 0.01) == 0.5
    assert found_at(positive, negative, 0.0) == 0.25
    assert found_at(negative, negative, 0.01) == 0.01


def test_similarity_follows_its_definition() -> None:
    """One window, whose means, variances and covariance are taken by hand."""
    x, y = torch.rand(2, 1, 1, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a, b = x.flatten(), y.flatten()
    joint = ((a - a.mean()) * (b - b.mean())).mean()
    light = (2 * a.mean() * b.mean() + 1e-4) / (a.mean() ** 2 + b.mean() ** 2 + 1e-4)
    structure = (2 * joint + 9e-4) / (a.var(correction=0) + b.var(correction=0) + 9e-4)
    assert float(structural_similarity(x, y)) == pytest.approx(float(light * structure))
    assert float(structural_similarity(x, x)) == pytest.approx(1.0)
    assert float(structural_similarity(x, 1 - x)) < 0


def test_the_nearest_image_is_the_one_that_differs_least() -> None:
    images = torch.stack([torch.full((1, 2, 2), value, dtype=torch.uint8) for value in (0, 100, 250)])
    assert [nearest(torch.full((1, 2, 2), value), images) for value in (10, 120, 200)] == [0, 1, 2]
