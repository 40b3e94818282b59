"""The accountant of noisy training: against a closed form, and against Opacus as its users call it."""

from __future__ import annotations

import builtins
import warnings
from typing import Any

import numpy as np
import pytest

from fcil.core.errors import ConfigError
from fcil.maths.accountant import NoisySteps, joined, noise_for, spent
from fcil.maths.gaussian_mechanism import epsilon_of, repeated

DELTA = 1e-5


def test_steps_on_all_samples_are_gaussian_mechanisms_in_a_row() -> None:
    """Of steps that take every sample, the closed form of Balle and Wang is exact; PRV is at most 0.01 above it."""
    for noise, steps in ((2.0, 1), (8.0, 16), (3.0, 4)):
        exact = epsilon_of(repeated(noise, steps), DELTA)
        assert exact - 1e-6 <= spent((NoisySteps(noise, 1.0, steps),), DELTA) <= exact + 0.02


def test_steps_on_drawn_samples_are_those_of_opacus() -> None:
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    theirs = accountants.PRVAccountant()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for noise, rate in [(2.0, 0.25)] * 8 + [(1.5, 0.5)] * 3:
            theirs.step(noise_multiplier=noise, sample_rate=rate)
        wanted = theirs.get_epsilon(DELTA)
    uses = (NoisySteps(2.0, 0.25, 8), NoisySteps(1.5, 0.5, 3))
    assert spent(uses, DELTA) == pytest.approx(wanted)
    assert spent(uses, DELTA) < spent((NoisySteps(2.0, 1.0, 8), NoisySteps(1.5, 1.0, 3)), DELTA)


def test_noise_is_the_least_that_keeps_the_plan() -> None:
    for epsilon, plan in ((8.0, (NoisySteps(1.0, 1.0, 16),)), (8.0, (NoisySteps(1.0, 0.1, 40), NoisySteps(1.0, 1, 2)))):
        noise = noise_for(epsilon, DELTA, plan)
        for factor, kept in ((1.0, True), (0.99, False)):
            uses = tuple(NoisySteps(factor * noise, one.rate, one.steps) for one in plan)
            assert (spent(uses, DELTA) <= epsilon) is kept


def test_noise_that_nobody_can_find_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: found 1e-06, which no noise keeps over 9 steps"):
        noise_for(1e-6, 1e-12, (NoisySteps(1.0, 1.0, 9),))


def test_equal_steps_in_a_row_are_counted_together() -> None:
    one, other = NoisySteps(2.0, 0.5, 3), NoisySteps(1.0, 0.5, 3)
    assert joined((one, one, other, one)) == (NoisySteps(2.0, 0.5, 6), other, one)
    assert spent((), DELTA) == 0.0


def test_a_missing_accountant_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.startswith("opacus"):
            raise ModuleNotFoundError("no opacus", name="opacus")
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="takes opacus; install fcil with its extra `privacy`"):
        spent((NoisySteps(3.5, 1.0, 1),), DELTA)
