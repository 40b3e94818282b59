import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.maths.nearest_mean import class_means, nearest_mean_head

TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def nearest_mean_scores(features: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """Return -|| f - m_c ||^2 of normalised features and means; a class without samples scores minus infinity."""
    distances = (F.normalize(features, dim=1)[:, None] - F.normalize(means, dim=1)).square().sum(2)
    return (-distances).masked_fill(counts == 0, -math.inf)


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
    counts = torch.stack([count for _, count in parts]).sum(0)
    means = sum(mean * count[:, None] for mean, count in parts) / counts.clamp(min=1)[:, None]
    wanted, total = class_means(features, labels, 4)
    torch.testing.assert_close(means, wanted)
    assert torch.equal(counts, total)


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_the_heads_highest_output_is_the_nearest_mean_whatever_the_length_of_a_feature(
    seed: int, factor: float
) -> None:
    features, means = draws(20, 4, seed=seed).float(), draws(6, 4, seed=seed + 1).float()
    counts = torch.tensor([1, 0, 3, 2, 0, 1])
    weight, bias = nearest_mean_head(means, counts)
    found, scores = factor * features @ weight.T + bias, nearest_mean_scores(features, means, counts)
    two = scores.topk(2).values
    clear = two[:, 0] - two[:, 1] > 1e-4  # a tie goes either way
    assert torch.equal(found.argmax(1)[clear], scores.argmax(1)[clear])


def test_the_head_by_hand() -> None:
    weight, bias = nearest_mean_head(torch.tensor([[0.5, 0.0], [0.0, 0.1], [-2.0, 0.0]]), torch.tensor([1, 1, 0]))
    assert weight.tolist() == [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
    assert bias.tolist() == [0.0, 0.0, torch.finfo(torch.float32).min]


def test_a_class_without_samples_is_never_predicted() -> None:
    means, counts = class_means(draws(10, 3).float(), torch.arange(10) % 2 * 2, 4)
    weight, bias = nearest_mean_head(means, counts)
    outputs = 1e6 * draws(50, 3, seed=1).float() @ weight.T + bias
    assert outputs.isfinite().all()
    assert set(outputs.argmax(1).tolist()) == {0, 2}


def test_the_nearest_mean_recognises_clusters() -> None:
    labels = torch.arange(60) % 3
    centres = 4 * torch.eye(3)
    train, test = (centres[labels] + 0.3 * draws(60, 3, seed=seed).float() for seed in (0, 1))
    weight, bias = nearest_mean_head(*class_means(train, labels, 3))
    assert (test @ weight.T + bias).argmax(1).tolist() == labels.tolist()
