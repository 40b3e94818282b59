"""Samples of the discrete Gaussian against its exact probabilities; the key is fixed, and so are the samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fcil.core.keystream import Keystream
from fcil.maths.discrete_gaussian import LARGEST, PIECE, discrete_gaussian

COUNT = 60_000
LIKELY = 1e-3  # a p-value below this would be found once in a thousand keys


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_each_whole_number_is_as_likely_as_it_should_be(scale: int) -> None:
    found = discrete_gaussian(scale, COUNT, Keystream.of("test", scale))
    numbers = np.arange(-60 * scale, 60 * scale + 1)
    chances = np.exp(-(numbers.astype(float) ** 2) / (2 * scale**2))
    expected = COUNT * chances / chances.sum()
    counted = np.bincount(found - numbers[0], minlength=len(numbers))
    usual = expected >= 10
    rest = [counted[~usual].sum(), expected[~usual].sum()]
    p = stats.chisquare(np.append(counted[usual], rest[0]), np.append(expected[usual], rest[1])).pvalue
    assert p > LIKELY


@pytest.mark.parametrize("scale", [1 << 12, LARGEST])
def test_a_wide_one_is_normal(scale: int) -> None:
    found = discrete_gaussian(scale, COUNT, Keystream.of("wide", scale))
    assert stats.kstest(found / scale, "norm").pvalue > LIKELY
    assert len(np.unique(found & 7)) == 8  # down to its last bits
    assert stats.chisquare(np.bincount(found & 7, minlength=8)).pvalue > LIKELY


def test_pieces_are_not_alike() -> None:
    found = discrete_gaussian(1 << 20, 2 * PIECE, Keystream.of("pieces"))
    assert not np.array_equal(found[:PIECE], found[PIECE:])
    assert len(discrete_gaussian(3, 0, Keystream.of("none"))) == 0


def test_scales_beyond_whole_numbers_of_64_bits_are_refused() -> None:
    for scale in (0, LARGEST + 1):
        with pytest.raises(ValueError, match="scale: found"):
            discrete_gaussian(scale, 1, Keystream.of("refused"))


@pytest.mark.parametrize("bound", [1, 2, 3, 10])
def test_whole_numbers_below_a_bound_are_equally_likely(bound: int) -> None:
    found = Keystream.of("bound", bound).below(bound, 20_000)
    counted = np.bincount(found.astype(np.int64), minlength=bound)
    assert len(counted) == bound
    assert bound == 1 or stats.chisquare(counted).pvalue > LIKELY


def test_a_stream_follows_from_its_purpose_and_is_the_one_of_the_standard() -> None:
    """The first words of RFC 8439, appendix A.1, for a key of zeros."""
    assert Keystream(bytes(32)).words(2).astype("<u8").tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert np.array_equal(Keystream.of(1, "a").words(9), Keystream.of(1, "a").words(9))
    assert not np.array_equal(Keystream.of(1, "a").words(9), Keystream.of(1, "b").words(9))
    stream = Keystream.of(1, "a")
    assert not np.array_equal(stream.words(9), stream.words(9))
