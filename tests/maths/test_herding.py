import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.maths.herding import herd
from fcil.maths.nearest_mean import class_means

sets = st.tuples(st.integers(1, 12), st.integers(2, 5), st.integers(0, 10_000))


def mean_of(features: torch.Tensor) -> torch.Tensor:
    means, _ = class_means(features, torch.zeros(len(features), dtype=torch.int64), 1)
    return means[0]


def random_features(rows: int, size: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=draw, dtype=torch.float64) + torch.rand(size, generator=draw)


def distances_by_hand(features: Tensor, chosen: list[int]) -> list[float]:
    """Return, for each row, how far the mean of the chosen ones and that row would be from the mean of all."""
    rows = [row / numpy.sqrt((row**2).sum()) for row in features.numpy()]
    mean = sum(rows) / len(rows)
    exemplars = [[rows[number] for number in [*chosen, index]] for index in range(len(rows))]
    return [float(numpy.sqrt(((mean - sum(group) / len(group)) ** 2).sum())) for group in exemplars]


@pytest.mark.parametrize("count", [1, 7, 15, 60])
def test_indices_with_replacement_equal_the_released_code(golden_herding, count: int) -> None:
    found = herd(golden_herding["features"].float(), count, replacement=True)
    assert found.tolist() == golden_herding[f"m{count}__index"].tolist()


def test_indices_among_duplicates_equal_the_released_code(golden_herding) -> None:
    found = herd(golden_herding["dup_features"].float(), 8, replacement=True)
    assert found.tolist() == golden_herding["dup_m8__index"].tolist()
    assert len(set(found.tolist())) < 8


def test_shrinking_by_truncation_equals_the_released_code(golden_herding) -> None:
    features = golden_herding["features"].float()
    wanted = golden_herding["reduced5__set0"].tolist()
    assert herd(features, 15, replacement=True)[:5].tolist() == wanted
    assert herd(features, 5, replacement=True).tolist() == wanted
    reversed_images = torch.arange(len(features)).flip(0)
    second = reversed_images[herd(features.flip(0), 15, replacement=True)[:5]]
    assert second.tolist() == golden_herding["reduced5__set1"].tolist()


def test_class_mean_and_normalised_row_equal_the_released_code(golden_herding) -> None:
    features = golden_herding["features"].float()
    mean, row = golden_herding["class_mean"], golden_herding["normalised_row0"]
    assert (mean_of(features) - mean).abs().max() <= 1e-6 * mean.abs().max()
    assert (mean_of(features[:1]) - row).abs().max() <= 1e-6 * row.abs().max()


def test_the_class_mean_is_not_normalised_again() -> None:
    torch.testing.assert_close(mean_of(torch.tensor([[3.0, 0.0], [0.0, 5.0]])), torch.tensor([0.5, 0.5]))


@given(sets, st.integers(0, 15), st.booleans())
def test_each_choice_is_the_best_of_all_candidates(size: tuple[int, int, int], count: int, replacement: bool) -> None:
    features = random_features(*size)
    found = herd(features, count, replacement=replacement).tolist()
    assert len(found) == (count if replacement else min(count, len(features)))
    for step, index in enumerate(found):
        distances = distances_by_hand(features, found[:step])
        candidates = set(range(len(features))) - (set() if replacement else set(found[:step]))
        assert index in candidates
        assert distances[index] <= min(distances[other] for other in candidates) + 1e-12


@given(sets, st.integers(0, 15), st.integers(0, 15), st.booleans())
def test_fewer_exemplars_are_a_prefix_of_more(
    size: tuple[int, int, int], first: int, second: int, replacement: bool
) -> None:
    features = random_features(*size)
    features = torch.cat([features, features[:2]])
    fewer, more = sorted((first, second))
    short, long = (herd(features, count, replacement=replacement).tolist() for count in (fewer, more))
    assert long[: len(short)] == short


@given(sets, st.integers(0, 15))
def test_without_replacement_indices_are_unique_and_capped(size: tuple[int, int, int], count: int) -> None:
    features = random_features(*size)
    features = torch.cat([features, features])
    found = herd(features, count).tolist()
    assert len(found) == len(set(found)) == min(count, len(features))
    assert all(0 <= index < len(features) for index in found)


@given(st.integers(3, 12), st.integers(0, 10_000), st.floats(0.1, 100))
def test_the_length_of_a_feature_does_not_matter(rows: int, seed: int, factor: float) -> None:
    features = random_features(rows, 4, seed)
    scaled = features * torch.linspace(1, factor, len(features), dtype=torch.float64)[:, None]
    assert herd(features, 4).tolist() == herd(scaled, 4).tolist()


def test_a_feature_that_is_not_finite_does_not_spoil_the_choice_of_the_others() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [float("inf"), 0.0], [1.0, 1.0], [float("nan"), 1.0]])
    assert sorted(herd(features, 5).tolist()) == [0, 1, 2, 3, 4]


def test_nothing_is_chosen_from_nothing() -> None:
    assert herd(torch.zeros(0, 4), 3).shape == (0,)
    assert herd(torch.ones(3, 4), 0).dtype == torch.int64
