import itertools
import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths.pooled import (
    imprint,
    k_means,
    lloyd,
    lsc_scores,
    nca_loss,
    pod_factor,
    pod_flat,
    pod_spatial,
    pooled_map,
    proxy_similarities,
    scatter,
    undersampled_rows,
)

TYPES = [torch.float32, torch.float64]
BATCHES = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def unit(row: numpy.ndarray) -> numpy.ndarray:
    return row / math.sqrt(sum(row**2))


def scores_and_labels(rows: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    return draws(rows, classes, seed=seed), torch.randint(classes, (rows,), generator=seeded(seed + 1))


def nca_of_the_paper(row: list[float], label: int, scale: float, margin: float) -> float:
    others = [math.exp(scale * score) for index, score in enumerate(row) if index != label]
    if not others:
        return 0.0
    return max(0.0, -math.log(math.exp(scale * (row[label] - margin)) / sum(others)))


def nca_of_the_released_code(row: list[float], label: int, scale: float, margin: float) -> float:
    """Step by step: margin off every score, maximum off every score, the true entry of the sum set to exp(0)."""
    shifted = [scale * (score - margin) for score in row]
    shifted = [score - max(shifted) for score in shifted]
    denominator = [0.0 if index == label else score for index, score in enumerate(shifted)]
    return -(shifted[label] - math.log(sum(map(math.exp, denominator))))


def test_similarities_are_minus_the_squared_distances_of_unit_vectors() -> None:
    features, proxies = draws(4, 3), draws(5, 2, 3, seed=1)
    found = proxy_similarities(features, proxies)
    assert found.shape == (4, 5, 2)
    for example, label, proxy in itertools.product(range(4), range(5), range(2)):
        distance = unit(features[example].numpy()) - unit(proxies[label, proxy].numpy())
        assert found[example, label, proxy].item() == pytest.approx(-sum(distance**2))


def test_scores_by_hand() -> None:
    """A feature along one proxy and across the other: s = 0 and -2."""
    found = lsc_scores(torch.tensor([[3.0, 0.0]]), torch.tensor([[[2.0, 0.0], [0.0, 5.0]], [[0.0, 1.0], [0.0, 7.0]]]))
    wanted = [-2 * math.exp(-2) / (1 + math.exp(-2)), -2.0]
    assert found[0].tolist() == pytest.approx(wanted)


def test_scores_equal_a_loop() -> None:
    features, proxies = draws(3, 4), draws(5, 10, 4, seed=1)
    similarities = proxy_similarities(features, proxies)
    found = lsc_scores(features, proxies)
    for example, label in itertools.product(range(3), range(5)):
        each = similarities[example, label].tolist()
        weights = [math.exp(value) for value in each]
        wanted = sum(weight * value for weight, value in zip(weights, each, strict=True)) / sum(weights)
        assert found[example, label].item() == pytest.approx(wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_class_with_one_proxy_is_scored_by_its_similarity(dtype: torch.dtype) -> None:
    features, proxies = draws(3, 4, dtype=dtype), draws(5, 1, 4, seed=1, dtype=dtype)
    found = lsc_scores(features, proxies)
    assert found.dtype == dtype
    torch.testing.assert_close(found, proxy_similarities(features, proxies).squeeze(2))


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_lengths_do_not_matter_to_the_scores(seed: int, factor: float) -> None:
    features, proxies = draws(2, 3, seed=seed), draws(4, 2, 3, seed=seed + 1)
    torch.testing.assert_close(lsc_scores(factor * features, proxies), lsc_scores(features, factor * proxies))


def test_scores_have_the_gradient_of_their_differences() -> None:
    features, proxies = draws(2, 3).requires_grad_(True), draws(2, 3, 3, seed=1).requires_grad_(True)
    assert gradcheck(lsc_scores, (features, proxies))


@given(BATCHES, st.floats(0.1, 5), st.floats(0, 2))
def test_the_papers_loss_equals_a_loop(size: tuple[int, int, int], scale: float, margin: float) -> None:
    scores, labels = scores_and_labels(*size)
    found = nca_loss(scores, labels, scale, nca="paper", margin=margin)
    wanted = [
        nca_of_the_paper(row, label, scale, margin) for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


@given(BATCHES, st.floats(0.1, 5), st.floats(0, 2))
def test_the_official_loss_equals_the_released_steps_whatever_the_margin(
    size: tuple[int, int, int], scale: float, margin: float
) -> None:
    scores, labels = scores_and_labels(*size)
    found = nca_loss(scores, labels, scale, nca="official", margin=margin)
    assert torch.equal(found, nca_loss(scores, labels, scale, nca="official", margin=0.0))
    wanted = [
        nca_of_the_released_code(row, label, scale, margin)
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


def test_both_losses_by_hand() -> None:
    scores, labels = torch.tensor([[-1.0, -2.0, -2.0]], dtype=torch.float64), torch.tensor([0])
    paper, official = (nca_loss(scores, labels, nca=nca).item() for nca in ("paper", "official"))
    assert paper == pytest.approx(max(0.0, 0.6 + 1 + math.log(2) - 2))
    assert official == pytest.approx(math.log(1 + 2 * math.exp(-1)))


def test_the_papers_margin_raises_the_loss_and_the_hinge_ends_it() -> None:
    scores, labels = torch.tensor([[-0.5, -2.0], [0.0, -2.0]]), torch.tensor([0, 0])
    assert nca_loss(scores, labels, margin=2.0).tolist() == pytest.approx([0.5, 0.0])
    assert nca_loss(scores, labels, margin=3.0).tolist() == pytest.approx([1.5, 1.0])


@pytest.mark.parametrize("nca", ["paper", "official"])
def test_losses_have_the_gradient_of_their_differences_in_scores_and_scale(nca: str) -> None:
    scores, labels = scores_and_labels(4, 5, seed=3)
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda values, eta: nca_loss(values, labels, eta, nca=nca), (scores.requires_grad_(True), scale))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("nca", ["paper", "official"])
@pytest.mark.parametrize("classes", [1, 2])
def test_losses_of_one_sample_and_of_one_class_are_finite(nca: str, classes: int, dtype: torch.dtype) -> None:
    scores = draws(1, classes, dtype=dtype).requires_grad_(True)
    loss = nca_loss(scores, torch.tensor([0]), nca=nca)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert loss.shape == (1,)
    assert loss.dtype == dtype
    assert math.isfinite(loss.item())
    assert bool(gradient.isfinite().all())
    if classes == 1:
        assert loss.item() == 0


def test_a_large_scale_does_not_overflow() -> None:
    scores, labels = torch.tensor([[0.0, -4.0], [-4.0, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    paper, official = (nca_loss(scores, labels, 1000.0, nca=nca, margin=0.0) for nca in ("paper", "official"))
    assert paper.tolist() == [0.0, 4000.0]
    assert official.tolist() == [0.0, 4000 + math.log(2)]


def test_a_pooled_map_equals_explicit_loops() -> None:
    maps = draws(2, 3, 4, 5)
    found = pooled_map(maps)
    assert found.shape == (2, 3 * (4 + 5))
    for example, values in enumerate(maps.numpy()):
        rows = [sum(values[c, i, j] ** 2 for j in range(5)) for c in range(3) for i in range(4)]
        columns = [sum(values[c, i, j] ** 2 for i in range(4)) for c in range(3) for j in range(5)]
        assert found[example].tolist() == pytest.approx(unit(numpy.array(rows + columns)).tolist())


def test_a_pooled_map_by_hand() -> None:
    found = pooled_map(torch.tensor([[[[1.0, 2.0], [0.0, -1.0]]]]))  # rows 5 and 1, columns 1 and 5
    assert found[0].tolist() == pytest.approx([value / math.sqrt(52) for value in (5.0, 1.0, 1.0, 5.0)])


def test_pod_spatial_is_the_mean_of_the_maps_distances() -> None:
    now = [draws(3, 2, 4, 4), draws(3, 5, 2, 3, seed=1)]
    old = [draws(3, 2, 4, 4, seed=2), draws(3, 5, 2, 3, seed=3)]
    found = pod_spatial(now, old)
    for example in range(3):
        distances = [
            math.sqrt(sum((pooled_map(n)[example] - pooled_map(o)[example]).numpy() ** 2))
            for n, o in zip(now, old, strict=True)
        ]
        assert found[example].item() == pytest.approx(sum(distances) / 2)


def test_pod_spatial_has_the_gradient_of_its_differences() -> None:
    now, old = draws(2, 2, 2, 3).requires_grad_(True), draws(2, 2, 2, 3, seed=1)
    assert gradcheck(lambda values: pod_spatial([values], [old]), (now,))


@pytest.mark.parametrize("dtype", TYPES)
def test_pod_spatial_of_equal_or_empty_maps_is_zero_with_a_finite_gradient(dtype: torch.dtype) -> None:
    for maps in (draws(1, 2, 3, 3, dtype=dtype), torch.zeros(1, 2, 3, 3, dtype=dtype)):
        now = maps.clone().requires_grad_(True)
        loss = pod_spatial([now], [maps])
        (gradient,) = torch.autograd.grad(loss.sum(), now)
        assert loss.tolist() == [0.0]
        assert loss.dtype == dtype
        assert bool(gradient.isfinite().all())


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_neither_distillation_sees_the_size_or_the_sign(seed: int, factor: float) -> None:
    maps = draws(2, 3, 4, 4, seed=seed)
    assert pod_spatial([-factor * maps], [maps]).abs().max() <= 1e-12
    assert pod_flat(factor * maps.flatten(1), maps.flatten(1)).abs().max() <= 1e-12


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        pod_spatial([draws(1, 1, 2, 2)], [])


def test_pod_flat_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    old = torch.tensor([[5.0, 0.0]], dtype=torch.float64).expand(4, 2)
    assert pod_flat(features, old).tolist() == pytest.approx([0.0, 1.0, 2.0, 1 - 1 / math.sqrt(2)])
    assert gradcheck(lambda values: pod_flat(values, old), (features.requires_grad_(True),))


def test_the_factor_grows_with_the_root_of_the_classes() -> None:
    assert pod_factor(10, 10) == 1.0
    assert pod_factor(100, 10) == pytest.approx(math.sqrt(10))


def blobs(centres: Tensor, each: int, spread: float, seed: int = 0) -> Tensor:
    return (centres.repeat(each, 1) + spread * draws(each * len(centres), centres.shape[1], seed=seed)).contiguous()


def test_well_separated_clusters_are_found() -> None:
    points = blobs(5 * torch.eye(4, dtype=torch.float64), 6, 0.05)
    found = k_means(points, 4, seeded())
    order = found.argmax(1).argsort()
    torch.testing.assert_close(found[order], torch.stack([points[label::4].mean(0) for label in range(4)]))


@given(st.integers(4, 7), st.integers(0, 500))
def test_two_clusters_are_the_best_of_all_partitions(count: int, seed: int) -> None:
    points = draws(count, 2, seed=seed)
    masks = [torch.tensor(bits) for bits in itertools.product([True, False], repeat=count) if 0 < sum(bits) < count]
    least = min(sum(float((part - part.mean(0)).square().sum()) for part in (points[m], points[~m])) for m in masks)
    # of all 2,004 examples that can be drawn, 20 starts miss the best partition in five, 60 in none
    assert scatter(points, k_means(points, 2, seeded(seed), restarts=100)) == pytest.approx(least)


@pytest.mark.parametrize("clusters", [1, 3, 10])
def test_lloyds_steps_end_where_sklearns_do(clusters: int) -> None:
    points = draws(80, 5)
    for seed in range(5):
        start, _ = kmeans_plusplus(points.numpy(), clusters, random_state=seed)
        reference = KMeans(clusters, init=start, n_init=1, tol=0).fit(points.numpy())
        torch.testing.assert_close(lloyd(points, torch.from_numpy(start)), torch.from_numpy(reference.cluster_centers_))


def test_a_single_run_is_as_good_as_one_from_sklearns_starts() -> None:
    """On noise, where no start is good; sklearn's own default tries several candidates a centre, we do not."""
    points, found, wanted = draws(80, 5), [], []
    for seed in range(60):
        found.append(scatter(points, k_means(points, 10, seeded(seed), restarts=1)))
        start, _ = kmeans_plusplus(points.numpy(), 10, random_state=seed, n_local_trials=1)
        wanted.append(scatter(points, lloyd(points, torch.from_numpy(start))))
    assert numpy.mean(found) == pytest.approx(numpy.mean(wanted), rel=0.02)


def test_a_cluster_without_points_keeps_its_centre() -> None:
    points, start = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.5, 0.0], [50.0, 50.0]])
    assert lloyd(points, start).tolist() == [[1.0, 0.0], [50.0, 50.0]]


def test_the_best_of_several_runs_is_kept() -> None:
    points = draws(80, 5)
    draw = seeded(3)
    runs = [scatter(points, k_means(points, 10, draw, restarts=1)) for _ in range(6)]
    assert scatter(points, k_means(points, 10, seeded(3), restarts=6)) == min(runs)


def test_centres_are_the_means_of_their_points() -> None:
    points = draws(60, 3)
    centres = k_means(points, 5, seeded())
    nearest = torch.cdist(points, centres).argmin(1)
    torch.testing.assert_close(centres, torch.stack([points[nearest == label].mean(0) for label in range(5)]))


def test_duplicate_points_are_no_trouble() -> None:
    points = torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 5)
    found = k_means(points, 4, seeded())
    assert scatter(points, found) == 0
    assert bool(found.isfinite().all())


def test_k_means_depends_on_its_generator_alone() -> None:
    points = draws(40, 3)
    before = torch.get_rng_state()
    assert torch.equal(k_means(points, 4, seeded(1)), k_means(points, 4, seeded(1)))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(k_means(points, 4, seeded(1), restarts=1), k_means(points, 4, seeded(2), restarts=1))


@pytest.mark.parametrize("dtype", TYPES)
def test_imprinted_proxies_are_centres_of_unit_features_with_the_existing_norm(dtype: torch.dtype) -> None:
    directions = torch.eye(3, dtype=torch.float64)
    features = blobs(directions, 8, 0.02).to(dtype) * torch.linspace(1, 9, 24, dtype=dtype)[:, None]
    existing = draws(4, 3, 3, seed=1, dtype=dtype)
    found = imprint(features, seeded(), proxies=3, existing=existing)
    rows = features / features.norm(dim=1, keepdim=True)
    wanted = torch.stack([rows[label::3].mean(0) for label in range(3)]) * existing.norm(dim=2).mean()
    assert found.dtype == dtype
    torch.testing.assert_close(found[found.argmax(1).argsort()], wanted)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_features_than_proxies_repeat_in_turn(count: int) -> None:
    features = draws(count, 4)
    rows = features / features.norm(dim=1, keepdim=True)
    found = imprint(features, seeded(), proxies=3, existing=torch.zeros(0, 3, 4))
    torch.testing.assert_close(found, torch.stack([rows[index % count] for index in range(3)]))


def test_an_imprinted_class_recognises_its_own_features() -> None:
    features = [blobs(draws(3, 8, seed=seed), 10, 0.1, seed) for seed in range(4)]
    proxies = torch.stack([imprint(rows, seeded(), proxies=3) for rows in features])
    for label, rows in enumerate(features):
        assert lsc_scores(rows, proxies).argmax(1).tolist() == [label] * len(rows)


def test_imprinting_carries_no_gradient_and_needs_a_feature() -> None:
    assert not imprint(draws(20, 3).requires_grad_(True), seeded(), proxies=2).requires_grad
    with pytest.raises(ValueError, match="without features"):
        imprint(torch.zeros(0, 3), seeded())


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 100))
def test_undersampling_leaves_every_class_as_small_as_the_smallest(labels: list[int], seed: int) -> None:
    rows = undersampled_rows(torch.tensor(labels, dtype=torch.int64), seeded(seed)).tolist()
    smallest = min((labels.count(label) for label in set(labels)), default=0)
    assert len(set(rows)) == len(rows)
    for label in set(labels):
        assert sum(labels[row] == label for row in rows) == smallest
