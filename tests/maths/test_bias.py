import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths.bias import (
    Correction,
    balanced_rows,
    correct,
    distillation_share,
    fit_correction,
    held_out_per_class,
    softened_cross_entropy,
)

SETS = st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(0, 8), st.integers(0, 10_000))


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def validation_set(samples: int, classes: int, seed: int, size: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits that favour the true class a little, so that no scale separates the set by chance alone."""
    labels = torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(seed + 1))
    return size * (draws(samples, classes, seed=seed) + torch.eye(classes, dtype=torch.float64)[labels]), labels


def loss_by_hand(point: tuple[float, float], logits: Tensor, labels: Tensor, old_classes: int) -> float:
    """Mean of -log softmax, one sample and one class after the other, + 0.1 beta^2 / 2."""
    alpha, beta = point
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        corrected = [z if k < old_classes else alpha * z + beta for k, z in enumerate(row)]
        top = max(corrected)
        total += top + math.log(sum(math.exp(q - top) for q in corrected)) - corrected[label]
    return total / len(labels) + 0.1 * beta**2 / 2


def gradient_of_loss(found: Correction, logits: Tensor, labels: Tensor, old_classes: int) -> Tensor:
    point = torch.tensor(found, dtype=torch.float64, requires_grad=True)
    newest = point[0] * logits[:, old_classes:] + point[1]
    corrected = torch.cat([logits[:, :old_classes], newest], 1)
    loss = torch.nn.functional.cross_entropy(corrected, labels) + 0.05 * point[1] ** 2
    return torch.autograd.grad(loss, point)[0]


def test_the_share_of_the_distillation_is_that_of_the_old_classes() -> None:
    assert [distillation_share(old, 50) for old in (0, 10, 25, 50)] == [0.0, 0.2, 0.5, 1.0]


def test_the_distillation_by_hand() -> None:
    logits = 2 * torch.log(torch.tensor([[1.0, 3.0, 9.0]], dtype=torch.float64))
    teacher = 2 * torch.log(torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    wanted = -(math.log(0.25) + math.log(0.75)) / 2  # at T = 2 the softmaxes are 1/4, 3/4 and 1/2, 1/2
    assert softened_cross_entropy(logits, teacher).item() == pytest.approx(wanted)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_distillation_equals_a_loop_and_has_no_squared_temperature(temperature: float) -> None:
    logits, teacher = draws(4, 6), draws(4, 3, seed=1)
    for row, found in enumerate(softened_cross_entropy(logits, teacher, temperature).tolist()):
        target = numpy.exp(teacher[row].numpy() / temperature)
        own = numpy.exp(logits[row, :3].numpy() / temperature)
        wanted = -sum(target / target.sum() * numpy.log(own / own.sum()))
        assert found == pytest.approx(wanted)


def test_the_distillation_has_the_gradient_of_its_differences_and_none_in_the_new_outputs() -> None:
    logits, teacher = draws(3, 5).requires_grad_(True), draws(3, 3, seed=1)
    assert gradcheck(lambda values: softened_cross_entropy(values, teacher), (logits,))
    (gradient,) = torch.autograd.grad(softened_cross_entropy(logits, teacher).sum(), logits)
    wanted = (torch.softmax(logits.detach()[:, :3] / 2, 1) - torch.softmax(teacher / 2, 1)) / 2
    torch.testing.assert_close(gradient[:, :3], wanted)
    assert torch.equal(gradient[:, 3:], torch.zeros(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_old_outputs_the_distillation_is_zero(dtype: torch.dtype) -> None:
    logits = draws(3, 2, dtype=dtype).requires_grad_(True)
    loss = softened_cross_entropy(logits, torch.zeros(3, 0, dtype=dtype))
    assert loss.dtype == dtype
    assert loss.tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(torch.autograd.grad(loss.sum(), logits)[0], torch.zeros(3, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_the_newest_block_is_corrected(dtype: torch.dtype) -> None:
    logits = draws(4, 5, dtype=dtype)
    found = correct(logits, 3, Correction(0.5, -0.25))
    assert found.dtype == dtype
    assert torch.equal(found[:, :3], logits[:, :3])
    assert torch.equal(found[:, 3:], 0.5 * logits[:, 3:] - 0.25)


def test_the_initial_correction_changes_nothing() -> None:
    logits = draws(4, 5)
    for old_classes in (0, 3, 5):
        assert torch.equal(correct(logits, old_classes, Correction()), logits)


@given(SETS)
def test_no_other_point_is_better_and_the_gradient_vanishes(size: tuple[int, int, int, int]) -> None:
    samples, classes, old_classes, seed = size
    old_classes = min(old_classes, classes)
    logits, labels = validation_set(samples, classes, seed)
    found = fit_correction(logits, labels, old_classes)
    assert gradient_of_loss(found, logits, labels, old_classes).abs().max() <= 1e-9
    least = loss_by_hand(found, logits, labels, old_classes)
    for alpha, beta in draws(15, 2, seed=seed + 2).tolist():
        assert least <= loss_by_hand((1 + alpha, beta), logits, labels, old_classes) + 1e-12
        assert least <= loss_by_hand((found.alpha + alpha / 100, found.beta + beta / 100), logits, labels, old_classes)


def test_the_fit_is_the_point_that_a_direct_optimiser_finds() -> None:
    logits, labels = validation_set(200, 10, seed=3)
    logits[:, 7:] = 1.7 * logits[:, 7:] + 0.8
    found = fit_correction(logits, labels, 7)
    direct = minimize(
        loss_by_hand, (1.0, 0.0), (logits, labels, 7), "Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}
    )
    assert found == pytest.approx(tuple(direct.x), abs=1e-6)
    point = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    lbfgs = torch.optim.LBFGS(
        [point], max_iter=200, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        lbfgs.zero_grad()
        corrected = torch.cat([logits[:, :7], point[0] * logits[:, 7:] + point[1]], 1)
        loss = torch.nn.functional.cross_entropy(corrected, labels) + 0.05 * point[1] ** 2
        loss.backward()
        return loss

    lbfgs.step(closure)
    assert found == pytest.approx(tuple(point.tolist()), abs=1e-6)


def test_with_constant_logits_beta_solves_one_equation() -> None:
    """One old and one new class, z = 0: alpha is free of gradient and sigmoid(beta) - p_new + 0.1 beta = 0."""
    labels = torch.tensor([0, 0, 0, 1])
    alpha, beta = fit_correction(torch.zeros(4, 2), labels, 1)
    assert alpha == 1.0
    assert 1 / (1 + math.exp(-beta)) - 0.25 + 0.1 * beta == pytest.approx(0, abs=1e-10)
    assert beta < 0


def test_with_opposite_logits_alpha_is_the_log_odds() -> None:
    """z_new = +1 for new samples and -1 for old ones, three of four right on either side: alpha = ln 3, beta = 0."""
    side = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0])
    logits = torch.stack([torch.zeros(8), side], 1)
    labels = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
    assert fit_correction(logits, labels, 1) == pytest.approx((math.log(3), 0.0), abs=1e-9)


def test_without_old_outputs_alpha_is_a_temperature_and_beta_stays() -> None:
    logits, labels = validation_set(60, 4, seed=5)
    alpha, beta = fit_correction(logits, labels, 0)
    halved, _ = fit_correction(2 * logits, labels, 0)
    assert beta == pytest.approx(0, abs=1e-9)
    assert halved == pytest.approx(alpha / 2, rel=1e-8)


@pytest.mark.parametrize(("samples", "old_classes"), [(0, 3), (7, 5)], ids=["no samples", "no newest block"])
def test_without_samples_or_newest_block_nothing_is_corrected(samples: int, old_classes: int) -> None:
    labels = torch.arange(samples) % 5
    assert fit_correction(draws(samples, 5), labels, old_classes) == Correction(1.0, 0.0)


@pytest.mark.parametrize(("label", "old_classes"), [(0, 1), (1, 1), (0, 0)])
def test_a_single_sample_or_class_gives_a_finite_correction(label: int, old_classes: int) -> None:
    found = fit_correction(draws(1, label + 1), torch.tensor([label]), old_classes)
    assert all(map(math.isfinite, found))


@pytest.mark.parametrize("gap", [0.01, 1.0, 100.0])
def test_a_set_that_scaling_separates_ends_with_a_finite_alpha(gap: float) -> None:
    logits, labels = torch.tensor([[0.0, -gap], [0.0, gap]]), torch.tensor([0, 1])
    found = fit_correction(logits, labels, 1)
    assert math.isfinite(found.alpha)
    assert gradient_of_loss(found, logits.double(), labels, 1).abs().max() <= 1e-9


def test_a_penalty_on_alpha_pulls_it_towards_one() -> None:
    logits, labels = torch.tensor([[0.0, -1.0], [0.0, 1.0]]), torch.tensor([0, 1])
    alphas = [fit_correction(logits, labels, 1, alpha_penalty=weight).alpha for weight in (0.01, 0.1, 1.0)]
    assert alphas == sorted(alphas, reverse=True)
    for weight, alpha in zip((0.01, 0.1, 1.0), alphas, strict=True):
        assert 1 / (1 + math.exp(alpha)) == pytest.approx(weight * (alpha - 1), abs=1e-9)


@pytest.mark.parametrize("size", [30.0, 300.0, 3000.0])
def test_saturated_logits_are_fitted_too(size: float) -> None:
    for seed in range(5):
        logits, labels = validation_set(20, 6, seed, size)
        found = fit_correction(logits, labels, 3)
        assert gradient_of_loss(found, logits, labels, 3).abs().max() <= 1e-9


def test_the_fit_is_deterministic_and_leaves_its_inputs_alone() -> None:
    logits, labels = validation_set(40, 6, seed=2)
    copy = logits.clone().requires_grad_(True)
    assert fit_correction(copy, labels, 4) == fit_correction(logits, labels, 4)
    assert torch.equal(copy, logits)
    single = fit_correction(logits.float(), labels, 4)
    assert single == pytest.approx(fit_correction(logits, labels, 4), abs=1e-5)


def test_the_correction_takes_back_a_bias_towards_the_new_classes() -> None:
    """Eight old classes and two new ones whose logits are too large by half and too high by two."""

    def biased(seed: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(1000) % 10
        logits = draws(1000, 10, seed=seed) + 3 * torch.eye(10, dtype=torch.float64)[labels]
        logits[:, 8:] = 1.5 * logits[:, 8:] + 2
        return logits, labels

    found = fit_correction(*biased(0), 8)
    logits, labels = biased(1)
    before, after = logits.argmax(1), correct(logits, 8, found).argmax(1)
    shares = [(prediction >= 8).double().mean().item() for prediction in (before, after)]
    assert found.alpha < 1
    assert found.beta < 0
    assert shares[0] > 0.4
    assert shares[1] == pytest.approx(0.2, abs=0.05)
    assert (after == labels).double().mean() > (before == labels).double().mean() + 0.1


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ([20] * 5, [500] * 5, 2),
        ([29] * 5, [500], 2),
        ([200, 30], [500], 3),
        ([9, 9], [500], 1),
        ([2, 2], [2], 1),
        ([50, 50], [3], 2),
        ([20, 1], [500], 0),
        ([20], [500, 1], 0),
        ([], [500], 0),
        ([20], [], 0),
        ([], [], 0),
    ],
    ids=str,
)
def test_held_out_counts_by_hand(old: list[int], new: list[int], wanted: int) -> None:
    assert held_out_per_class(old, new) == wanted


def test_a_fraction_that_rounds_down_in_binary_is_counted_exactly() -> None:
    assert held_out_per_class([100], [1000], fraction=0.29) == 29


@given(st.lists(st.integers(0, 300), max_size=5), st.lists(st.integers(0, 300), max_size=5))
def test_every_class_keeps_a_sample_to_train_on(old: list[int], new: list[int]) -> None:
    found = held_out_per_class(old, new)
    assert found == 0 or all(found < count for count in [*old, *new])
    assert found <= max(1, min(old, default=0) // 10)


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 6), st.integers(0, 1000))
def test_balanced_rows_hold_as_many_of_each_class_as_there_are(labels: list[int], per_class: int, seed: int) -> None:
    rows = balanced_rows(torch.tensor(labels, dtype=torch.int64), per_class, torch.Generator().manual_seed(seed))
    found = rows.tolist()
    assert found == sorted(set(found))
    for label in set(labels):
        assert sum(labels[row] == label for row in found) == min(per_class, labels.count(label))


def test_balanced_rows_depend_on_the_generator_alone() -> None:
    labels = torch.arange(60) % 3
    first, same, other = (balanced_rows(labels, 5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
