import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.maths.nearest_mean import class_means, merge_means, nearest_mean_scores

TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_means_are_those_of_each_classs_normalised_features(dtype: torch.dtype) -> None:
    features, labels = draws(9, 4, dtype=dtype), torch.tensor([0, 2, 0, 4, 2, 2, 0, 4, 2])
    means, counts = class_means(features, labels, 5)
    assert means.dtype == dtype
    assert counts.tolist() == [3, 0, 4, 0, 2]
    for label in (0, 2, 4):
        torch.testing.assert_close(
            means[label], torch.nn.functional.normalize(features[labels == label], dim=1).mean(0)
        )
    assert not means[[1, 3]].any()


def test_mirrored_images_count_by_half() -> None:
    features = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    flipped = torch.tensor([[0.0, 5.0], [0.0, 1.0]])
    means, counts = class_means(features, torch.tensor([0, 0]), 1, flipped)
    torch.testing.assert_close(means, torch.tensor([[0.25, 0.75]]))
    assert counts.tolist() == [2]


def test_the_mean_with_mirrored_images_is_that_of_the_two_means() -> None:
    features, flipped, labels = draws(8, 3), draws(8, 3, seed=1), torch.arange(8) % 2
    both, _ = class_means(features, labels, 2, flipped)
    plain, mirrored = class_means(features, labels, 2)[0], class_means(flipped, labels, 2)[0]
    torch.testing.assert_close(both, (plain + mirrored) / 2)


def test_no_samples_have_no_means() -> None:
    means, counts = class_means(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    assert means.tolist() == [[0.0] * 3] * 2
    assert counts.tolist() == [0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=20), st.integers(0, 1000))
def test_merged_means_are_the_means_of_all_samples_together(owners: list[tuple[int, int]], seed: int) -> None:
    features = draws(len(owners), 3, seed=seed)
    labels, clients = torch.tensor(owners).unbind(1)
    parts = [class_means(features[clients == client], labels[clients == client], 4) for client in range(3)]
    means, counts = merge_means([mean for mean, _ in parts], [count for _, count in parts])
    wanted, total = class_means(features, labels, 4)
    torch.testing.assert_close(means, wanted)
    assert torch.equal(counts, total)


def test_merged_means_by_hand() -> None:
    first, second = torch.tensor([[1.0, 0.0], [7.0, 7.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    means, counts = merge_means([first, second], [torch.tensor([3, 2]), torch.tensor([1, 0])])
    torch.testing.assert_close(means, torch.tensor([[0.75, 0.25], [7.0, 7.0]]))
    assert counts.tolist() == [4, 2]


@pytest.mark.parametrize("dtype", TYPES)
def test_one_clients_means_stay_as_they_are(dtype: torch.dtype) -> None:
    means, counts = class_means(draws(6, 3, dtype=dtype), torch.arange(6) % 2, 3)
    merged, total = merge_means([means], [counts])
    assert merged.dtype == dtype
    torch.testing.assert_close(merged, means)
    assert torch.equal(total, counts)


@pytest.mark.parametrize("dtype", TYPES)
def test_scores_are_minus_the_squared_distances_of_unit_vectors(dtype: torch.dtype) -> None:
    features, means = draws(4, 3, dtype=dtype), draws(5, 3, seed=1, dtype=dtype)
    found = nearest_mean_scores(features, means, torch.ones(5, dtype=torch.int64))
    assert found.dtype == dtype
    for row, feature in enumerate(features.double().numpy()):
        for label, mean in enumerate(means.double().numpy()):
            difference = feature / numpy.linalg.norm(feature) - mean / numpy.linalg.norm(mean)
            assert found[row, label].item() == pytest.approx(-sum(difference**2), abs=1e-5)


def test_scores_by_hand() -> None:
    means = torch.tensor([[0.5, 0.0], [0.0, 0.1], [-2.0, 0.0]])
    found = nearest_mean_scores(torch.tensor([[4.0, 0.0]]), means, torch.tensor([1, 1, 1]))
    assert found[0].tolist() == pytest.approx([0.0, -2.0, -4.0])


def test_a_class_without_samples_is_never_predicted() -> None:
    features, labels = draws(10, 3), torch.arange(10) % 2 * 2
    means, counts = class_means(features, labels, 4)
    scores = nearest_mean_scores(draws(50, 3, seed=1), means, counts)
    assert scores[:, [1, 3]].eq(-math.inf).all()
    assert scores[:, [0, 2]].isfinite().all()
    assert set(scores.argmax(1).tolist()) <= {0, 2}


def test_the_nearest_mean_recognises_clusters() -> None:
    labels = torch.arange(60) % 3
    centres = 4 * torch.eye(3, dtype=torch.float64)
    train, test = (centres[labels] + 0.3 * draws(60, 3, seed=seed) for seed in (0, 1))
    scores = nearest_mean_scores(test, *class_means(train, labels, 3))
    assert scores.argmax(1).tolist() == labels.tolist()


def test_one_class_and_one_sample_are_enough() -> None:
    means, counts = class_means(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), 1)
    assert nearest_mean_scores(torch.tensor([[0.0, 3.0]]), means, counts).tolist() == [[-2.0]]


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_the_length_of_a_feature_does_not_matter(seed: int, factor: float) -> None:
    features, labels = draws(6, 3, seed=seed), torch.arange(6) % 2
    plain, scaled = (class_means(rows, labels, 2) for rows in (features, factor * features))
    torch.testing.assert_close(plain[0], scaled[0])
    torch.testing.assert_close(
        nearest_mean_scores(features, *plain), nearest_mean_scores(factor * features, *scaled), rtol=0, atol=1e-12
    )


def test_predictions_agree_with_the_search_by_cosine() -> None:
    features, means = draws(30, 4), draws(6, 4, seed=1)
    cosine = F.normalize(features, dim=1) @ F.normalize(means, dim=1).T
    scores = nearest_mean_scores(features, means, torch.ones(6, dtype=torch.int64))
    assert torch.equal(scores.argmax(1), cosine.argmax(1))
