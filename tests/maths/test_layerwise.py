import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.chain import chain_of
from fcil.maths.inversion import invert
from fcil.maths.layerwise import solve_by_layers
from fcil.maths.matching import matching, wanted_gradients
from fcil.maths.prototypes import encoder_gradients
from fcil.models import build_encoder

Shape = tuple[int, int, int]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth_images(count: int, shape: Shape) -> Tensor:
    coarse = torch.rand(count, shape[0], 4, 4, generator=seeded(8))
    return F.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)


def signal_to_noise(found: Tensor, wanted: Tensor) -> Tensor:
    return -10 * torch.log10((found - wanted).flatten(1).square().mean(1))


def solved(images: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the images found from gradients, with their losses relative to the gradients' squares."""
    _, channels, height, width = images.shape
    shape, labels = (channels, height, width), torch.arange(len(images)) % classes
    encoder = build_encoder(channels, (height, width), classes, seed=7).to(images.dtype)
    gradients = encoder_gradients(encoder, images, labels)
    chain = chain_of(encoder, shape)
    assert chain is not None
    wanted = wanted_gradients(chain, gradients, labels)
    points = solve_by_layers(chain, wanted)
    scale = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0)
    return points.view_as(images), matching(chain, wanted)(points)[0] / scale


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 16, 12), (3, 16, 16), (2, 7, 9), (3, 32, 32)])
def test_images_follow_from_their_gradients_layer_by_layer(shape: Shape) -> None:
    images = smooth_images(5, shape)
    found, loss = solved(images, 20)
    assert bool((signal_to_noise(found, images) > 40).all())
    assert bool((loss < 1e-7).all())


def test_in_double_precision_the_images_are_exact() -> None:
    images = smooth_images(3, (3, 8, 8)).double()
    found, _ = solved(images, 10)
    torch.testing.assert_close(found, images, rtol=0, atol=1e-5)


def test_perturbed_images_outside_the_pixels_range_are_found_as_well() -> None:
    images = 1.5 * torch.randn(3, 1, 8, 8, generator=seeded(4))
    found, _ = solved(images, 10)
    assert bool((signal_to_noise(found, images) > 40).all())


def test_more_images_than_are_solved_together_equal_those_solved_alone() -> None:
    images = smooth_images(19, (1, 8, 8)).double()
    found, _ = solved(images, 19)
    assert found.shape == images.shape
    torch.testing.assert_close(found, images, rtol=0, atol=1e-5)


def inversion(images: Tensor, gradients: dict[str, Tensor] | None = None, **options):
    channels, height, width = images.shape[1:]
    labels = torch.arange(len(images))
    encoder = build_encoder(channels, (height, width), 10, seed=7)
    gradients = gradients or encoder_gradients(encoder, images, labels)
    settings = {"generator": seeded(1), "evaluations": 40, "start": "layers"} | options
    return invert(encoder, gradients, labels, (channels, height, width), **settings)


def test_an_inversion_that_starts_from_the_layers_solution_needs_no_budget() -> None:
    images = smooth_images(4, (3, 16, 16))
    found = inversion(images, evaluations=1)
    assert bool((signal_to_noise(found.images, images) > 40).all())
    assert torch.equal(found.trail[0], found.images)
    assert not bool((signal_to_noise(inversion(images, evaluations=1, start="noise").images, images) > 10).any())


def test_what_the_layers_leave_open_is_left_to_the_descent() -> None:
    images = smooth_images(3, (1, 8, 8))
    encoder = build_encoder(1, (8, 8), 10, seed=7)
    gradients = encoder_gradients(encoder, images, torch.arange(3))
    noisy = {name: value + 0.05 * torch.randn(value.shape, generator=seeded(2)) for name, value in gradients.items()}
    once, longer, noise = (
        inversion(images, noisy, evaluations=evaluations, start=start)
        for evaluations, start in ((1, "layers"), (300, "layers"), (1, "noise"))
    )
    assert bool((once.loss <= noise.loss).all())
    assert bool((longer.loss <= once.loss).all())
    assert bool((longer.loss < once.loss).any())


@pytest.mark.parametrize("value", [0.0, 1e30, float("nan")])
def test_a_gradient_without_sense_spoils_no_other(value: float) -> None:
    images = smooth_images(3, (1, 8, 8))
    encoder = build_encoder(1, (8, 8), 10, seed=7)
    gradients = encoder_gradients(encoder, images, torch.arange(3))
    for gradient in gradients.values():
        gradient[1] = value
    found = inversion(images, gradients)
    sound = [0, 2]
    assert bool((signal_to_noise(found.images[sound], images[sound]) > 40).all())
    assert bool(torch.isfinite(found.images).all())


def inexact(images: Tensor, level: float) -> tuple[dict[str, Tensor], Tensor]:
    """Return gradients with noise, which no image explains, of that share of their squared norms; and these norms."""
    encoder = build_encoder(images.shape[1], (images.shape[2], images.shape[3]), 10, seed=7)
    gradients = encoder_gradients(encoder, images, torch.arange(len(images)))
    draw = seeded(3)
    noise = {name: torch.randn(value.shape, generator=draw) for name, value in gradients.items()}
    squares, of_noise = (
        torch.stack([value.flatten(1).square().sum(1) for value in part.values()]).sum(0) for part in (gradients, noise)
    )
    length = (level * squares / of_noise).sqrt()
    return {
        name: value + length.view(-1, *[1] * (value.dim() - 1)) * noise[name] for name, value in gradients.items()
    }, squares


def test_what_is_solved_to_a_grey_level_is_not_descended_from() -> None:
    images = smooth_images(4, (3, 16, 16))
    gradients, squares = inexact(images, level=3e-8)
    solution = inversion(images, gradients, evaluations=1)
    relative = solution.loss / squares
    assert bool(((relative > 2e-8) & (relative < 8e-8)).all())  # noise alone would be descended from down to 1e-8
    assert bool((signal_to_noise(solution.images, images) > 45).all())
    best = inversion(images, gradients, evaluations=2000, restarts=2)
    assert torch.equal(best.images, solution.images)  # within TARGETS["layers"] from the start: nothing was spent
    finer = inversion(images, gradients, evaluations=200, target=0.0)
    assert bool((finer.loss < solution.loss).all())  # there was something to gain, but no more than this:
    assert float((finer.images - solution.images).abs().max()) < 1 / 255
    judge = build_encoder(3, (16, 16), 10, seed=1)  # and nobody's answers depend on it
    assert torch.equal(judge(finer.images).argmax(1), judge(solution.images).argmax(1))


def test_what_is_solved_less_well_is_descended_from() -> None:
    images = smooth_images(4, (3, 16, 16))
    gradients, squares = inexact(images, level=1e-6)
    solution = inversion(images, gradients, evaluations=1)
    assert bool((solution.loss / squares > 1e-7).all())
    assert bool((inversion(images, gradients, evaluations=60).loss < solution.loss).all())
