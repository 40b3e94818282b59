"""The privacy of Gaussian noise against its definition, the literature's values and another library's accountant."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from fcil.maths.gaussian_mechanism import delta_of, epsilon_of, noise_of, repeated

CASES = [(0.5, 3.0), (1.0, 1.0), (2.0, 0.7), (8.0, 0.4)]  # epsilon, noise


@pytest.mark.parametrize(("epsilon", "noise"), CASES)
def test_delta_is_how_much_more_likely_an_outcome_can_be(epsilon: float, noise: float) -> None:
    """It is the integral of the positive part of p - e^epsilon q over all outcomes."""

    def excess(x: float) -> float:
        return max(float(norm.pdf(x, 1, noise) - math.exp(epsilon) * norm.pdf(x, 0, noise)), 0.0)

    border = 0.5 + epsilon * noise**2
    expected, _ = integrate.quad(excess, border, border + 40 * noise, epsabs=1e-15)
    assert delta_of(noise, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-14)


def test_without_epsilon_delta_is_the_distance_of_two_normal_distributions() -> None:
    """In total variation: 2 P(1 / 2s) - 1, by hand for s = 1."""
    assert delta_of(1.0, 0.0) == pytest.approx(0.3829249225)


@pytest.mark.parametrize(("epsilon", "noise"), [(1.0, 3.7306316348), (2.0, 1.9938124456), (8.0, 0.6002290722)])
def test_the_least_noise_for_a_delta_of_one_in_a_hundred_thousand(epsilon: float, noise: float) -> None:
    assert noise_of(epsilon, 1e-5) == pytest.approx(noise, rel=1e-9)
    assert epsilon_of(noise, 1e-5) == pytest.approx(epsilon, rel=1e-8)
    assert delta_of(noise_of(epsilon, 1e-5), epsilon) <= 1e-5 * (1 + 1e-9)


def test_much_noise_needs_no_epsilon_and_little_noise_much() -> None:
    assert epsilon_of(1e6, 1e-5) == 0.0
    assert epsilon_of(0.05, 1e-5) > 200


def test_n_mechanisms_are_one_with_less_noise() -> None:
    """Their privacy losses are normal, with mean and variance n / 2 s^2 and n / s^2."""
    assert repeated(3.0, 9) == pytest.approx(1.0)


@pytest.mark.parametrize(("noise", "times"), [(3.7, 1), (2.0, 1), (2.0, 4), (1.0, 1)])
def test_an_accountant_of_another_library_agrees(noise: float, times: int) -> None:
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    found = accountants.PRVAccountant()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(times):
            found.step(noise_multiplier=noise, sample_rate=1.0)
        theirs = found.get_epsilon(1e-5)
    ours = epsilon_of(repeated(noise, times), 1e-5)
    assert theirs == pytest.approx(ours, abs=0.02)  # theirs is an upper bound that is at most 0.01 too high
    assert theirs >= ours - 1e-6
