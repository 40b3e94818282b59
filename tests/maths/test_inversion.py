import copy
import itertools
from collections.abc import Callable

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor

from fcil.maths import descent
from fcil.maths.descent import _Pairs
from fcil.maths.inversion import invert, labels_from_gradients, minimise, wrap_to_pixels
from fcil.maths.prototypes import encoder_gradients
from fcil.models import LeNet, build_encoder
from fcil.models.lenet import LAST_LAYER

Function = Callable[[Tensor], Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def start_at(rows: int, size: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(rows, size, generator=seeded(seed), dtype=torch.float64) * scale


@pytest.mark.parametrize(
    ("channels", "size", "classes"),
    [(1, (8, 8), 2), (3, (8, 8), 10), (1, (16, 12), 5), (3, (32, 32), 100), (2, (7, 9), 30)],
)
def test_the_label_behind_every_gradient_is_found(channels: int, size: tuple[int, int], classes: int) -> None:
    for seed in range(3):
        encoder = build_encoder(channels, size, classes, seed)
        images = torch.rand(20, channels, *size, generator=seeded(seed))
        labels = torch.randint(0, classes, (20,), generator=seeded(seed + 10))
        last_layer = encoder_gradients(encoder, images, labels)[LAST_LAYER]
        assert torch.equal(labels_from_gradients(last_layer), labels)


def test_labels_behind_the_golden_gradients_equal_the_released_code(golden_lenet) -> None:
    encoder = LeNet(3, (32, 32), 100)
    encoder.load_state_dict({name: golden_lenet[f"weight__{name}"] for name in encoder.state_dict()})
    images, labels = golden_lenet["images"][1:].float() / 255, golden_lenet["labels"][1:]
    found = labels_from_gradients(encoder_gradients(encoder, images, labels)[LAST_LAYER])
    assert found.tolist() == golden_lenet["inferred"].tolist() == labels.tolist()


def wells(points: Tensor) -> Tensor:
    """Return a sum of double wells, concave between the wells."""
    return (points.square().square() / 4 - points.square() / 2 + 0.3 * points).sum(-1) + 2 * points.shape[-1]


def banana(points: Tensor) -> Tensor:
    return ((1 - points[..., :-1]) ** 2 + 5 * (points[..., 1:] - points[..., :-1] ** 2) ** 2).sum(-1)


def bowl(points: Tensor) -> Tensor:
    """Return a convex function that is no quadratic."""
    curvature = torch.linspace(0.6, 4, points.shape[-1], dtype=points.dtype)
    return (curvature * (points - 1).square() / 2 + 0.1 * torch.cos(2 * points)).sum(-1) + points.shape[-1]


def visited_by_torch(
    function: Function, start: Tensor, learning_rate: float, evaluations: int, history: int = 100
) -> list[Tensor]:
    point = start.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        [point],
        lr=learning_rate,
        max_iter=20,
        max_eval=1000,
        tolerance_grad=0,
        tolerance_change=0,
        history_size=history,
    )
    visited: list[Tensor] = []

    def closure() -> Tensor:
        visited.append(point.detach().clone())
        optimiser.zero_grad()
        loss = function(point)
        loss.backward()
        return loss

    while len(visited) < evaluations:
        optimiser.step(closure)
    return visited[:evaluations]


def visited_by_minimise(
    function: Function, start: Tensor, learning_rate: float, evaluations: int, history: int = 100
) -> list[Tensor]:
    visited: list[Tensor] = []

    def objective(points: Tensor, rows: Tensor) -> Tensor:
        visited.append(points.detach()[0].clone())
        return function(points)

    minimise(objective, start[None], evaluations=evaluations, learning_rate=learning_rate, history=history)
    return visited


def refused_pairs(function: Function, visited: list[Tensor]) -> int:
    points = torch.stack(visited).requires_grad_(True)
    (gradients,) = torch.autograd.grad(function(points).sum(), points)
    curvature = (points.detach().diff(dim=0) * gradients.diff(dim=0)).sum(1)
    return int((curvature <= 1e-10).sum())


@pytest.mark.parametrize("evaluations", [1, 15, 40])
@pytest.mark.parametrize(
    ("function", "learning_rate", "scale"), [(bowl, 1.0, 1.0), (bowl, 0.1, 1.0), (banana, 0.3, 0.5), (wells, 0.1, 0.2)]
)
def test_one_row_visits_the_points_of_torchs_optimiser(
    function: Function, learning_rate: float, scale: float, evaluations: int
) -> None:
    start = start_at(1, 12, scale=scale)[0]
    wanted = visited_by_torch(function, start, learning_rate, evaluations)
    found = visited_by_minimise(function, start, learning_rate, evaluations)
    assert min(evaluations, 15) <= len(found) <= evaluations
    assert evaluations == 1 or not torch.equal(found[-1], start)
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted[: len(found)]), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("history", [1, 2, 5])
@pytest.mark.parametrize(("function", "learning_rate"), [(bowl, 0.3), (bowl, 0.1), (banana, 0.1)])
def test_a_short_history_forgets_what_torchs_optimiser_forgets(
    function: Function, learning_rate: float, history: int
) -> None:
    start = start_at(1, 12, scale=0.5)[0]
    wanted = visited_by_torch(function, start, learning_rate, 30, history)
    found = visited_by_minimise(function, start, learning_rate, 30, history)
    assert len(found) > 4 * history
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted[: len(found)]), rtol=1e-7, atol=1e-7)


def two_loops(pairs: list[tuple[Tensor, Tensor]], gradient: Tensor) -> Tensor:
    """Return the inverse Hessian's estimate times the gradient, as in the textbook."""
    result, shares = gradient, []
    for move, change in reversed(pairs):
        shares.append((move @ result) / (move @ change))
        result = result - shares[-1] * change
    if pairs:
        move, change = pairs[-1]
        result = result * (move @ change) / (change @ change)
    for (move, change), share in zip(pairs, reversed(shares), strict=True):
        result = result + (share - (change @ result) / (move @ change)) * move
    return result


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_the_pairs_give_the_direction_of_the_two_loop_recursion(dtype: torch.dtype, tolerance: float) -> None:
    rows, size, history = 3, 30, 6
    gradients = torch.randn(25, rows, size, generator=seeded(1), dtype=dtype)
    stored = _Pairs.empty(history, gradients[0])
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(rows)]
    for before, after in itertools.pairwise(gradients):
        change = after - before
        move = 0.5 * change + 0.2 * torch.randn(rows, size, generator=seeded(len(kept[0])), dtype=dtype)
        stored.push(move, before, after)
        for row in range(rows):
            kept[row] = [*kept[row], (move[row].double(), change[row].double())][-history:]
        for row, direction in enumerate(stored.apply(after)):
            wanted = two_loops(kept[row], after[row].double())
            assert (direction - wanted).norm() <= tolerance * wanted.norm()


def test_a_refused_pair_changes_nothing() -> None:
    gradients = torch.randn(9, 2, 12, generator=seeded(1), dtype=torch.float64)
    stored = _Pairs.empty(20, gradients[0])
    kept: list[list[tuple[Tensor, Tensor]]] = [[], []]
    for number, (before, after) in enumerate(itertools.pairwise(gradients)):
        change = after - before
        signs = torch.tensor([1.0, -1.0 if number % 2 else 1.0], dtype=torch.float64)[:, None]
        stored.push(signs * change, before, after)
        kept[0].append((change[0], change[0]))
        if number % 2 == 0:
            kept[1].append((change[1], change[1]))
        wanted = torch.stack([two_loops(pairs, gradient) for pairs, gradient in zip(kept, after, strict=True)])
        torch.testing.assert_close(stored.apply(after), wanted, rtol=1e-8, atol=1e-8)


def test_rows_that_leave_take_their_pairs_along() -> None:
    gradients = torch.randn(6, 3, 12, generator=seeded(1), dtype=torch.float64)
    stored, alone = _Pairs.empty(3, gradients[0]), _Pairs.empty(3, gradients[0, :1])
    for before, after in itertools.pairwise(gradients):
        stored.push(after - before, before, after)
        alone.push((after - before)[2:], before[2:], after[2:])
    left = stored.of(torch.tensor([False, False, True]))
    torch.testing.assert_close(left.apply(gradients[5, 2:]), alone.apply(gradients[5, 2:]), rtol=1e-12, atol=1e-12)


def test_the_start_in_a_concave_place_is_one_where_pairs_are_refused() -> None:
    visited = visited_by_torch(wells, start_at(1, 12, scale=0.2)[0], 0.1, 40)
    assert refused_pairs(wells, visited) >= 3


def test_refused_pairs_do_not_spoil_the_descent() -> None:
    found = minimise(lambda points, rows: wells(points), start_at(8, 6, scale=0.2), evaluations=300, learning_rate=0.3)
    slopes = found.point**3 - found.point + 0.3
    assert bool((slopes.abs() < 1e-3).all())
    assert bool((3 * found.point**2 > 1).all())


def quadratic(rows: int, size: int) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    root = start_at(rows * size, size, seed=1).view(rows, size, size)
    matrices = root @ root.transpose(1, 2) / size + 0.5 * torch.eye(size, dtype=torch.float64)
    right = start_at(rows, size, seed=2)

    def objective(points: Tensor, numbers: Tensor) -> Tensor:
        residual = torch.einsum("nij,nj->ni", matrices[numbers], points) - right[numbers]
        return residual.square().sum(1)

    return objective, torch.linalg.solve(matrices, right)


def test_a_quadratic_reaches_its_closed_form_solution() -> None:
    objective, solution = quadratic(5, 8)
    found = minimise(objective, start_at(5, 8), evaluations=300)
    torch.testing.assert_close(found.point, solution, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.loss, objective(found.point, torch.arange(5)))


def test_a_short_history_still_reaches_the_solution() -> None:
    objective, solution = quadratic(3, 8)
    found = minimise(objective, start_at(3, 8), evaluations=500, history=4, learning_rate=0.5)
    torch.testing.assert_close(found.point, solution, rtol=1e-4, atol=1e-4)


def leaving(points: Tensor) -> Tensor:
    """Return a function whose descent ends where it is no longer a number."""
    return torch.sqrt(points[..., 0] - 1)


def spring(points: Tensor) -> Tensor:
    return points.square().sum(-1)


KINDS = [wells, leaving, spring, bowl, bowl, banana]


def mixed_start() -> Tensor:
    start = start_at(6, 6, seed=4)
    start[0] *= 0.2
    start[1, 0] = 1.5
    return start


def mixed_minimum(rows: Tensor, evaluations: int = 60, keep: int = 3):
    goal = torch.tensor([0.0, 0.0, 1e-3, 0.0, 0.0, 0.0], dtype=torch.float64)[rows]
    return minimise(
        lambda points, numbers: torch.stack(
            [KINDS[kind](point) for kind, point in zip(rows[numbers].tolist(), points, strict=True)]
        ),
        mixed_start()[rows],
        evaluations=evaluations,
        learning_rate=0.3,
        goal=goal,
        keep=keep,
    )


def test_a_batch_equals_its_rows_alone() -> None:
    together = mixed_minimum(torch.arange(6))
    for row in range(6):
        alone = mixed_minimum(torch.tensor([row]))
        torch.testing.assert_close(alone.point[0], together.point[row], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(alone.loss[0], together.loss[row], rtol=1e-9, atol=1e-9)


def test_parts_that_fit_into_the_cache_equal_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    together = mixed_minimum(torch.arange(6))
    monkeypatch.setattr(descent, "CACHE", 2 * 59 * 6 * 8 * 2)  # the pairs of two rows
    parts = mixed_minimum(torch.arange(6))
    torch.testing.assert_close(parts.point, together.point, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts.loss, together.loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts.trail, together.trail, rtol=1e-9, atol=1e-9)


def test_the_trail_of_a_batch_equals_that_of_its_rows_alone() -> None:
    together = mixed_minimum(torch.arange(6))
    for row in range(6):
        alone = mixed_minimum(torch.tensor([row]))
        torch.testing.assert_close(alone.trail[:, 0], together.trail[:, row], rtol=1e-9, atol=1e-9)


def test_a_row_that_leaves_the_numbers_keeps_its_best_finite_point() -> None:
    found = mixed_minimum(torch.arange(6))
    assert 0 < found.loss[1] < leaving(mixed_start()[1])
    assert torch.equal(leaving(found.point[1]), found.loss[1])


def test_the_best_point_visited_is_returned_and_not_the_last() -> None:
    visited: list[tuple[Tensor, Tensor]] = []

    def objective(points: Tensor, rows: Tensor) -> Tensor:
        loss = banana(points)
        visited.append((points.detach().clone(), loss.detach().clone()))
        return loss

    found = minimise(objective, start_at(1, 6, seed=3, scale=2), evaluations=8, learning_rate=1.0)
    losses = torch.cat([loss for _, loss in visited])
    assert int(losses.argmin()) < len(losses) - 1
    assert found.loss.item() == losses.min().item()
    assert torch.equal(found.point, visited[int(losses.argmin())][0])


def test_a_row_stops_at_its_goal() -> None:
    counts = torch.zeros(2, dtype=torch.int64)

    def objective(points: Tensor, rows: Tensor) -> Tensor:
        counts[rows] += 1
        return bowl(points)

    goal = torch.tensor([8.0, 0.0], dtype=torch.float64)
    found = minimise(objective, start_at(1, 6).repeat(2, 1), evaluations=50, learning_rate=0.2, goal=goal)
    assert found.loss[0] <= 8.0
    assert found.loss[1] < found.loss[0]
    assert counts[0] < counts[1] <= 50


@pytest.mark.parametrize("evaluations", [1, 7, 33])
def test_the_number_of_evaluations_is_kept(evaluations: int) -> None:
    calls: list[int] = []

    def objective(points: Tensor, rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return bowl(points)

    minimise(objective, start_at(2, 6, scale=5), evaluations=evaluations, learning_rate=0.01)
    assert len(calls) == evaluations


def test_the_trail_holds_the_point_of_every_twentieth_evaluation_last_ones_kept() -> None:
    visited: list[Tensor] = []

    def objective(points: Tensor, rows: Tensor) -> Tensor:
        visited.append(points.detach().clone())
        return bowl(points)

    found = minimise(objective, start_at(2, 6, scale=5), evaluations=80, learning_rate=0.01, keep=3)
    assert len(visited) == 80
    assert torch.equal(found.trail, torch.stack([visited[39], visited[59], visited[79]]))


def signal_to_noise(found: Tensor, wanted: Tensor) -> Tensor:
    return -10 * torch.log10((found - wanted).square().flatten(1).mean(1))


def natural_images(channels: int) -> Tensor:
    if channels == 1:
        digits = torch.tensor(load_digits().images[:10] / 16, dtype=torch.float32)[:, None]
        return F.interpolate(digits, size=(16, 16), mode="bilinear", align_corners=False)
    coarse = torch.rand(10, 3, 4, 4, generator=seeded(8))
    return F.interpolate(coarse, size=(16, 16), mode="bicubic", align_corners=False).clamp(0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_rebuilt_from_their_gradients(channels: int) -> None:
    images, labels = natural_images(channels), torch.arange(10)
    encoder = build_encoder(channels, (16, 16), 10, seed=7)
    gradients = encoder_gradients(encoder, images, labels)
    found = invert(
        encoder,
        gradients,
        labels_from_gradients(gradients[LAST_LAYER]),
        (channels, 16, 16),
        generator=seeded(1),
        evaluations=4000,
        restarts=2,
    )
    assert found.images.shape == images.shape
    assert int((signal_to_noise(found.images, images) > 25).sum()) >= 5
    rebuilt = encoder_gradients(encoder, found.images, labels)
    reached = sum((rebuilt[name] - gradients[name]).flatten(1).square().sum(1) for name in gradients)
    torch.testing.assert_close(found.loss, reached, rtol=1e-3, atol=1e-9)


LEARNING_RATE = 0.1  # with 1.0 the third of these images diverges, in torch's optimiser as well


def exact_problem(shape: tuple[int, int, int]) -> tuple[LeNet, dict[str, Tensor], Tensor, Tensor]:
    """Return an encoder, the gradients of three images, their labels and three starts, in double precision."""
    encoder = build_encoder(shape[0], shape[1:], 10, seed=7).double()
    images = torch.rand(3, *shape, generator=seeded(2), dtype=torch.float64)
    labels = torch.tensor([3, 0, 9])
    start = torch.randn(3, shape[0] * shape[1] * shape[2], generator=seeded(1)).double()
    return encoder, encoder_gradients(encoder, images, labels), labels, start


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 10)])
def test_an_inversion_follows_torchs_optimiser_run_image_by_image(shape: tuple[int, int, int]) -> None:
    encoder, gradients, labels, start = exact_problem(shape)
    found = invert(
        encoder, gradients, labels, shape, generator=seeded(1), evaluations=40, learning_rate=LEARNING_RATE, keep=2
    )
    for row in range(3):

        def loss(point: Tensor, row: int = row) -> Tensor:
            made = encoder_gradients(encoder, point.view(1, *shape), labels[row : row + 1])
            return torch.stack([(made[name][0] - gradients[name][row]).square().sum() for name in made]).sum()

        visited = visited_by_torch(loss, start[row], LEARNING_RATE, 40)
        wanted = torch.stack([visited[19], visited[39]]).view(2, *shape)
        torch.testing.assert_close(found.trail[:, row], wanted, rtol=1e-5, atol=1e-5)
        assert found.loss[row].item() == pytest.approx(min(loss(point).item() for point in visited), rel=1e-6)


def test_an_encoder_that_is_no_chain_is_left_to_autograd() -> None:
    encoder, gradients, labels, _ = exact_problem((1, 8, 8))
    other = copy.deepcopy(encoder)
    other.body[1] = Renamed()
    by_hand, by_autograd = (
        invert(
            net,
            gradients,
            labels,
            (1, 8, 8),
            generator=seeded(1),
            evaluations=30,
            start="layers" if net is other else "noise",
        )
        for net in (encoder, other)
    )
    torch.testing.assert_close(by_autograd.images, by_hand.images, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_autograd.loss, by_hand.loss, rtol=1e-6, atol=1e-6)


class Renamed(torch.nn.Module):
    """A sigmoid that does not look like one."""

    def forward(self, values: Tensor) -> Tensor:
        return torch.sigmoid(values)


def test_a_gradient_of_a_single_class_is_zero_and_matched_at_once() -> None:
    encoder = build_encoder(1, (8, 8), 1, seed=7)
    labels = torch.zeros(2, dtype=torch.int64)
    gradients = encoder_gradients(encoder, torch.rand(2, 1, 8, 8, generator=seeded()), labels)
    found = invert(encoder, gradients, labels, (1, 8, 8), generator=seeded(1), evaluations=50, restarts=2)
    assert found.loss.tolist() == [0, 0]
    assert torch.equal(found.images.flatten(1), torch.randn(2, 64, generator=seeded(1)))


def test_a_gradient_that_is_not_finite_spoils_no_other() -> None:
    encoder, gradients, labels, _ = exact_problem((1, 8, 8))
    settings = {"evaluations": 40, "learning_rate": LEARNING_RATE}
    sound = {name: value[[0, 2]].clone() for name, value in gradients.items()}
    clean = invert(encoder, sound, labels[[0, 2]], (1, 8, 8), generator=seeded(1), **settings)
    for value in gradients.values():
        value[1] = float("nan")
    found = invert(encoder, gradients, labels, (1, 8, 8), generator=seeded(1), **settings)
    assert not bool(torch.isfinite(found.loss[1]))
    torch.testing.assert_close(found.images[[0, 2]], clean.images, rtol=1e-6, atol=1e-6)


def short_inversion(**options):
    images, labels = natural_images(1)[:3], torch.arange(3)
    encoder = build_encoder(1, (16, 16), 10, seed=7)
    settings = {"generator": seeded(1), "evaluations": 40} | options
    return invert(encoder, encoder_gradients(encoder, images, labels), labels, (1, 16, 16), **settings)


def test_an_inversion_is_a_function_of_its_generator() -> None:
    first, second, other = (short_inversion(generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.images, second.images)
    assert not torch.equal(first.images, other.images)


def test_an_inversion_without_budget_returns_its_noise() -> None:
    found = short_inversion(evaluations=1)
    assert torch.equal(found.images.flatten(1), torch.randn(3, 256, generator=seeded(1)))


def test_restarts_only_improve_and_closed_rows_are_left_alone() -> None:
    once = short_inversion(evaluations=5)
    again = short_inversion(evaluations=5, restarts=3)
    assert bool((again.loss <= once.loss).all())
    assert bool((again.loss < once.loss).any())
    generous = short_inversion(evaluations=5, restarts=3, target=1e9)
    assert torch.equal(generous.images, torch.randn(3, 256, generator=seeded(1)).view(3, 1, 16, 16))


def test_the_trail_of_an_inversion_has_one_image_an_example_and_step() -> None:
    found = short_inversion(evaluations=80, keep=4)
    assert found.trail.shape == (4, 3, 1, 16, 16)
    assert len({tuple(image.flatten().tolist()) for image in found.trail[:, 0]}) == 4


def test_an_example_that_is_rebuilt_early_ends_its_trail_at_the_rebuilt_image() -> None:
    found = short_inversion(evaluations=2000, keep=20)
    assert bool((found.loss < 1e-3).all())
    noise = torch.randn(3, 256, generator=seeded(1)).view(3, 1, 16, 16)
    for image, start in zip(found.trail.flatten(0, 1), noise.repeat(20, 1, 1, 1), strict=True):
        assert not torch.equal(image, start)
    torch.testing.assert_close(found.trail[-1], found.images, rtol=0, atol=0.05)


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=20))
def test_pixels_wrap_around_as_unsigned_bytes_do(values: list[float]) -> None:
    images = torch.tensor(values)
    whole = (images.numpy() * numpy.float32(255)).astype(numpy.int64)
    wanted = (whole % 256).astype(numpy.float32) / numpy.float32(255)
    assert wrap_to_pixels(images).numpy().tolist() == wanted.tolist()


def test_pixels_wrap_by_hand() -> None:
    values = torch.tensor([0.0, 1.0, 0.5, 256 / 255, 2.0, -1 / 255, -1.0, -0.001])
    wanted = [0, 255, 127, 0, 254, 255, 1, 0]
    assert (wrap_to_pixels(values) * 255).round().int().tolist() == wanted


def test_pixels_inside_the_range_equal_the_conversion_to_bytes() -> None:
    images = torch.rand(3, 1, 16, 16, generator=seeded())
    assert torch.equal(wrap_to_pixels(images), images.mul(255).byte().float().div(255))
