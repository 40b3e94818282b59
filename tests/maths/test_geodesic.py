import itertools
import math

import numpy
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.loops import for_each
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths import geodesic
from fcil.maths.geodesic import (
    FlowKernel,
    batch_kernel,
    flow_kernel,
    geodesic_loss,
    geodesic_weight,
    kernel_weights,
    pooled_features,
)

TYPES = [torch.float32, torch.float64]
FORMS = ["cosine", "released"]
KINDS = ("apart", "equal", "nearly equal", "repeated", "constant", "orthogonal", "zero")  # of features
SPACES = st.tuples(st.integers(2, 9), st.integers(1, 8), st.integers(0, 10_000))


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def subspace(size: int, dimension: int, seed: int) -> Tensor:
    return torch.linalg.qr(draws(size, dimension, seed=seed)).Q


def subspaces(space: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    size, dimension, seed = space
    return subspace(size, min(size, dimension), seed), subspace(size, min(size, dimension), seed + 1)


def matrix(kernel: FlowKernel) -> Tensor:
    return kernel.apply(torch.eye(len(kernel.start), dtype=kernel.start.dtype))


def unit_features(rows: int, size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(draws(rows, size, seed=seed, dtype=dtype), dim=1)


def integral_along_the_flow(start: numpy.ndarray, end: numpy.ndarray) -> numpy.ndarray:
    """Integrate Phi(t) Phi(t)^T by Gauss-Legendre, Phi(t) the first columns of exp(t Delta) [P_o R].

    Delta is the tangent of the Grassmann manifold at P_o that reaches P_c at t = 1, found from the tangent of the
    angles alone: an inverse of P_o^T P_c instead of the two singular value decompositions of the closed form.
    """
    size, dimension = start.shape
    complement = scipy.linalg.null_space(start.T)
    left, tangents, right = numpy.linalg.svd(complement.T @ end @ numpy.linalg.inv(start.T @ end), full_matrices=False)
    velocity = left @ numpy.diag(numpy.arctan(tangents)) @ right
    delta = numpy.zeros((size, size))
    delta[dimension:, :dimension], delta[:dimension, dimension:] = velocity, -velocity.T
    basis = numpy.concatenate([start, complement], 1)
    nodes, weights = numpy.polynomial.legendre.leggauss(12)
    total = numpy.zeros((size, size))
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = basis @ scipy.linalg.expm(node * delta)[:, :dimension]
        total += weight * point @ point.T
    return total


@given(SPACES)
def test_the_closed_form_is_the_integral_over_the_flow(space: tuple[int, int, int]) -> None:
    start, end = subspaces(space)
    found = matrix(flow_kernel(start, end))
    torch.testing.assert_close(
        found, torch.from_numpy(integral_along_the_flow(start.numpy(), end.numpy())), rtol=0, atol=2e-9
    )


@given(SPACES)
def test_the_flow_leads_from_one_subspace_to_the_other(space: tuple[int, int, int]) -> None:
    start, end = subspaces(space)
    kernel = flow_kernel(start, end)
    first = kernel.start
    last = kernel.start * torch.cos(kernel.angles) - kernel.turn * torch.sin(kernel.angles)
    for basis, wanted in ((first, start), (last, end)):
        torch.testing.assert_close(basis @ basis.T, wanted @ wanted.T, rtol=0, atol=1e-9)


@given(SPACES)
def test_the_angles_are_scipys_principal_angles(space: tuple[int, int, int]) -> None:
    start, end = subspaces(space)
    wanted = numpy.sort(scipy.linalg.subspace_angles(start.numpy(), end.numpy()))
    found = numpy.sort(flow_kernel(start, end).angles.numpy())
    numpy.testing.assert_allclose(found, wanted, atol=3e-8)  # scipy's own angles near zero are multiples of sqrt(eps)


@given(SPACES)
def test_the_kernel_depends_on_the_subspaces_alone_and_not_on_their_order(space: tuple[int, int, int]) -> None:
    start, end = subspaces(space)
    turned = subspace(start.shape[1], start.shape[1], space[2] + 2)
    found = matrix(flow_kernel(start, end))
    torch.testing.assert_close(matrix(flow_kernel(start @ turned, end @ turned.T)), found, rtol=0, atol=1e-9)
    torch.testing.assert_close(matrix(flow_kernel(end, start)), found, rtol=0, atol=1e-9)


@given(SPACES)
def test_the_kernel_is_symmetric_with_eigenvalues_between_zero_and_one(space: tuple[int, int, int]) -> None:
    found = matrix(flow_kernel(*subspaces(space)))
    torch.testing.assert_close(found, found.T, rtol=0, atol=1e-12)
    values = torch.linalg.eigvalsh(found)
    assert values.min() >= -1e-9
    assert values.max() <= 1 + 1e-9
    assert found.trace().item() == pytest.approx(min(space[0], space[1]))  # every Phi(t) is orthonormal


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-4, 0.3, 1.0, math.pi / 2])
def test_the_weights_are_the_integrals_of_squares_and_products(angle: float) -> None:
    nodes, weights = numpy.polynomial.legendre.leggauss(20)
    times = (nodes + 1) / 2 * angle
    wanted = [sum(weights / 2 * f) for f in (numpy.cos(times) ** 2, -numpy.cos(times) * numpy.sin(times))]
    wanted.append(sum(weights / 2 * numpy.sin(times) ** 2))
    found = [float(value) for value in kernel_weights(torch.tensor(angle, dtype=torch.float64))]
    assert found == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_subspaces_give_the_projection(dtype: torch.dtype) -> None:
    basis = subspace(6, 3, seed=0).to(dtype)
    kernel = flow_kernel(basis, basis)
    torch.testing.assert_close(matrix(kernel), basis @ basis.T)
    assert bool(matrix(kernel).isfinite().all())


def test_orthogonal_subspaces_give_halves_and_minus_one_over_pi() -> None:
    """From the first to the second axis: Phi(t) = (cos, sin)(t pi / 2), and the integral of cos sin is 1 / pi."""
    identity = torch.eye(3, dtype=torch.float64)
    found = matrix(flow_kernel(identity[:, :1], identity[:, 1:2]))
    wanted = torch.tensor([[0.5, 1 / math.pi, 0.0], [1 / math.pi, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("angle", [1e-7, 1e-5, 0.01, 1.2])
def test_an_angle_in_the_plane_by_hand(angle: float) -> None:
    start = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    end = torch.tensor([[math.cos(angle)], [math.sin(angle)]], dtype=torch.float64)
    sine = math.sin(2 * angle) / (2 * angle)
    across = math.sin(angle) ** 2 / (2 * angle)
    wanted = torch.tensor([[(1 + sine) / 2, across], [across, (1 - sine) / 2]], dtype=torch.float64)
    torch.testing.assert_close(matrix(flow_kernel(start, end)), wanted, rtol=0, atol=1e-6 if angle < 1e-6 else 1e-12)


def test_small_angles_keep_their_digits() -> None:
    start, other = subspace(8, 4, seed=0)[:, :2], subspace(8, 4, seed=0)[:, 2:]
    end = start * math.cos(1e-5) + other * math.sin(1e-5)
    assert flow_kernel(start, end).angles.tolist() == pytest.approx([1e-5, 1e-5], rel=1e-9)


def test_a_space_filled_by_both_subspaces_gives_the_identity() -> None:
    start, end = subspace(4, 4, seed=0), subspace(4, 4, seed=1)
    torch.testing.assert_close(matrix(flow_kernel(start, end)), torch.eye(4, dtype=torch.float64))


def test_maps_are_pooled_to_a_grid_of_two_and_normalised() -> None:
    maps = torch.arange(32.0).view(1, 2, 4, 4)
    blocks = [maps[0, c, i : i + 2, j : j + 2].mean() for c in range(2) for i in (0, 2) for j in (0, 2)]
    torch.testing.assert_close(pooled_features(maps)[0], F.normalize(torch.stack(blocks), dim=0))
    assert pooled_features(draws(3, 5, 1, 1)).shape == (3, 20)


def test_the_bases_are_those_of_features_without_the_mean_of_their_entries() -> None:
    features, old = unit_features(6, 9, seed=0), unit_features(6, 9, seed=1)
    projections = []
    for rows in (old, features):
        centred = rows.numpy() - rows.numpy().mean(1, keepdims=True)
        values, vectors = numpy.linalg.eigh(centred.T @ centred)
        projections.append(vectors[:, numpy.argsort(values)[::-1][:4]])  # b - 2 directions
    wanted = torch.from_numpy(integral_along_the_flow(*projections))
    torch.testing.assert_close(matrix(batch_kernel(features, old)), wanted, rtol=0, atol=2e-9)


@pytest.mark.parametrize(
    ("rows", "size", "dimension"),
    [(1, 8, 1), (2, 8, 1), (3, 8, 1), (4, 8, 2), (8, 30, 6), (20, 6, 5), (128, 16, 15)],
)
def test_the_dimension_is_two_less_than_the_batch_at_least_one_and_capped_by_the_rank(
    rows: int, size: int, dimension: int
) -> None:
    kernel = batch_kernel(unit_features(rows, size, seed=0), unit_features(rows, size, seed=1))
    assert kernel.start.shape == (size, dimension)


def test_repeated_samples_cap_the_dimension() -> None:
    old = unit_features(3, 12, seed=1).repeat(4, 1)
    assert batch_kernel(unit_features(12, 12, seed=0), old).start.shape == (12, 3)


def loss_by_hand(features: Tensor, old: Tensor, form: str) -> list[float]:
    kernel = matrix(batch_kernel(features, old)).numpy()
    losses = []
    for x, y in zip(features.numpy(), old.numpy(), strict=True):
        if form == "released":
            losses.append((y - x) @ kernel @ (y - x))
        else:
            losses.append(1 - (y @ kernel @ x) / math.sqrt((y @ kernel @ y) * (x @ kernel @ x)))
    return losses


@pytest.mark.parametrize("form", FORMS)
@given(st.integers(1, 10), st.integers(2, 8), st.integers(0, 1000))
def test_the_loss_equals_the_quadratic_forms_written_out(form: str, rows: int, size: int, seed: int) -> None:
    features, old = unit_features(rows, size, seed), unit_features(rows, size, seed + 1)
    found = geodesic_loss(features, old, form)
    assert found.shape == (rows,)
    assert found.tolist() == pytest.approx(loss_by_hand(features, old, form), abs=1e-9)
    assert found.min() >= -1e-9
    assert found.max() <= (2 if form == "cosine" else 4) + 1e-9


def test_the_loss_of_one_pair_in_closed_form() -> None:
    """Two centred samples at a right angle: G is 1/2 on the diagonal and 1/pi beside it, so the cosine is 2 / pi."""
    old = torch.tensor([[1.0, -1.0, 0.0, 0.0]], dtype=torch.float64) / math.sqrt(2)
    features = torch.tensor([[0.0, 0.0, 1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    assert geodesic_loss(features, old, "cosine").item() == pytest.approx(1 - 2 / math.pi)
    assert geodesic_loss(features, old, "released").item() == pytest.approx(1 - 2 / math.pi)


@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_is_a_constant_to_the_gradient(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, old = unit_features(5, 4, seed=0).requires_grad_(True), unit_features(5, 4, seed=1).requires_grad_(True)
    kernel = batch_kernel(features, old)
    assert not kernel.start.requires_grad
    (gradient,) = torch.autograd.grad(geodesic_loss(features, old, form).sum(), features)
    monkeypatch.setattr(geodesic, "batch_kernel", lambda *_: kernel)
    assert gradcheck(lambda values: geodesic_loss(values, old.detach(), form), (features,))
    torch.testing.assert_close(torch.autograd.grad(geodesic_loss(features, old, form).sum(), features)[0], gradient)
    assert torch.autograd.grad(geodesic_loss(features, old, form).sum(), old, allow_unused=True) == (None,)


@for_each(itertools.product(KINDS, [1, 2, 3, 4, 40], FORMS, TYPES))
def test_loss_and_gradient_are_finite(kind: str, rows: int, form: str, dtype: torch.dtype) -> None:
    old = unit_features(rows, 12, seed=1, dtype=dtype)
    features = {
        "apart": unit_features(rows, 12, seed=0, dtype=dtype),
        "equal": old.clone(),
        "nearly equal": F.normalize(old + 1e-6 * draws(rows, 12, dtype=dtype), dim=1),
        "repeated": unit_features(1, 12, seed=0, dtype=dtype).repeat(rows, 1),
        "constant": F.normalize(torch.ones(rows, 12, dtype=dtype), dim=1),
        "orthogonal": torch.eye(12, dtype=dtype)[torch.arange(rows) % 6],
        "zero": torch.zeros(rows, 12, dtype=dtype),
    }[kind].requires_grad_(True)
    if kind == "orthogonal":
        old = torch.eye(12, dtype=dtype)[6 + torch.arange(rows) % 6]
    loss = geodesic_loss(features, old, form)
    (gradient,) = torch.autograd.grad(loss.sum(), features)
    assert loss.dtype == dtype
    assert bool(loss.isfinite().all())
    assert bool(gradient.isfinite().all())
    if kind == "equal":
        assert loss.abs().max() <= 1e-6
        assert gradient.abs().max() <= 1e-5
    if kind in ("constant", "zero"):
        assert not loss.any()
        assert not gradient.any()


def test_single_precision_agrees_with_double() -> None:
    features, old = unit_features(32, 64, seed=0), unit_features(32, 64, seed=1)
    for form in FORMS:
        single = geodesic_loss(features.float(), old.float(), form)
        torch.testing.assert_close(single.double(), geodesic_loss(features, old, form), rtol=0, atol=1e-4)


def test_single_precision_features_have_the_kernel_of_their_double_values() -> None:
    old = unit_features(16, 40, seed=1, dtype=torch.float32)
    features = F.normalize(old + 1e-3 * draws(16, 40, dtype=torch.float32), dim=1)
    kernel, wanted = batch_kernel(features, old), batch_kernel(features.double(), old.double())
    assert kernel.start.dtype == kernel.turn.dtype == kernel.angles.dtype == torch.float32
    torch.testing.assert_close(kernel.angles.double(), wanted.angles, rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_following_the_gradient_lowers_the_loss(form: str) -> None:
    old, features = unit_features(10, 20, seed=1), unit_features(10, 20, seed=0)
    before = geodesic_loss(features, old, form).sum().item()
    for _ in range(20):
        features.requires_grad_(True)
        (gradient,) = torch.autograd.grad(geodesic_loss(features, old, form).sum(), features)
        features = F.normalize(features.detach() - 0.3 * gradient, dim=1)
    assert geodesic_loss(features, old, form).sum().item() < before / 2


def test_the_weight_grows_with_the_old_classes() -> None:
    assert geodesic_weight(0, 10) == 0.0
    assert geodesic_weight(10, 10) == 10.0
    assert geodesic_weight(90, 10, base=5.0) == 15.0
