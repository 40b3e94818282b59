import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcil.maths.chain import Convolution, chain_of
from fcil.maths.matching import matching, wanted_gradients
from fcil.maths.prototypes import encoder_gradients
from fcil.models import build_encoder

Shape = tuple[int, int, int]
Gradients = dict[str, Tensor]

SHAPES = [(1, 8, 8), (3, 8, 8), (1, 16, 12), (3, 32, 32), (2, 7, 9), (1, 5, 5), (3, 13, 10), (3, 64, 64)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Odd(nn.Module):
    """Two sigmoid convolutions of other kernels, strides and paddings than the encoder's."""

    def __init__(self, image: Shape, first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
        super().__init__()
        channels = (image[0], 4, 3)
        layers: list[nn.Module] = []
        for number, (kernel, stride, padding) in enumerate((first, second)):
            layers += [nn.Conv2d(channels[number], channels[number + 1], kernel, stride, padding), nn.Sigmoid()]
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.fc = nn.Linear(self.body(torch.zeros(1, *image)).shape[1], 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(images))
        return logits


def odd(image: Shape, first: tuple[int, int, int], second: tuple[int, int, int]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Odd(image, first, second).double().requires_grad_(False)


def by_autograd(encoder: nn.Module, gradients: Gradients, labels: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and its slope by plain double backward, image by image."""
    encoder = copy.deepcopy(encoder).requires_grad_(True)
    losses, slopes = [], []
    for row in range(len(images)):
        image = images[row : row + 1].clone().requires_grad_(True)
        loss = F.cross_entropy(encoder(image), labels[row : row + 1])
        found = torch.autograd.grad(loss, list(encoder.parameters()), create_graph=True)
        wanted = [gradients[name][row] for name, _ in encoder.named_parameters()]
        distance = torch.stack([(one - other).square().sum() for one, other in zip(found, wanted, strict=True)]).sum()
        losses.append(distance.detach())
        slopes.append(torch.autograd.grad(distance, image)[0].flatten())
    return torch.stack(losses), torch.stack(slopes)


def by_hand(encoder: nn.Module, gradients: Gradients, labels: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    _, channels, height, width = images.shape
    chain = chain_of(encoder, (channels, height, width))
    assert chain is not None
    return matching(chain, wanted_gradients(chain, gradients, labels))(images.flatten(1))


def problem(
    encoder: nn.Module, shape: Shape, classes: int, dtype: torch.dtype = torch.float64
) -> tuple[Gradients, Tensor, Tensor]:
    """Return the gradients of three images, their labels and three other images."""
    images = torch.rand(3, *shape, generator=seeded(1), dtype=dtype)
    labels = torch.randint(0, classes, (3,), generator=seeded(2))
    others = torch.randn(3, *shape, generator=seeded(3), dtype=dtype)
    return encoder_gradients(encoder, images, labels), labels, others


@pytest.mark.parametrize("classes", [1, 2, 30])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_slope_equal_autograds_double_backward(shape: Shape, classes: int) -> None:
    encoder = build_encoder(shape[0], shape[1:], classes, seed=3).double()
    gradients, labels, others = problem(encoder, shape, classes)
    loss, slope = by_hand(encoder, gradients, labels, others)
    wanted_loss, wanted_slope = by_autograd(encoder, gradients, labels, others)
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(slope, wanted_slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("second", [(2, 2, 0), (3, 1, 1), (4, 3, 2), (1, 1, 0), (3, 2, 3)])
@pytest.mark.parametrize("first", [(3, 1, 0), (5, 3, 1), (4, 2, 3), (2, 3, 0)])
def test_other_kernels_strides_and_paddings_do_as_well(first: Shape, second: Shape) -> None:
    shape = (2, 11, 14)
    encoder = odd(shape, first, second)
    gradients, labels, others = problem(encoder, shape, 5)
    loss, slope = by_hand(encoder, gradients, labels, others)
    wanted_loss, wanted_slope = by_autograd(encoder, gradients, labels, others)
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(slope, wanted_slope, rtol=1e-9, atol=1e-12)


def test_a_gradient_of_no_single_image_is_matched_as_exactly() -> None:
    shape = (3, 16, 16)
    encoder = build_encoder(3, (16, 16), 10, seed=3).double()
    gradients, labels, others = problem(encoder, shape, 10)
    noisy = {
        name: value + 0.01 * torch.randn(value.shape, generator=seeded(5), dtype=value.dtype)
        for name, value in gradients.items()
    }
    chain = chain_of(encoder, shape)
    assert chain is not None
    assert wanted_gradients(chain, gradients, labels).excess is None
    assert wanted_gradients(chain, noisy, labels).excess is not None
    loss, slope = by_hand(encoder, noisy, labels, others)
    wanted_loss, wanted_slope = by_autograd(encoder, noisy, labels, others)
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(slope, wanted_slope, rtol=1e-9, atol=1e-12)


def test_a_gradient_of_zeros_is_matched_as_exactly() -> None:
    encoder = build_encoder(1, (8, 8), 10, seed=3).double()
    gradients, labels, others = problem(encoder, (1, 8, 8), 10)
    nothing = {name: torch.zeros_like(value) for name, value in gradients.items()}
    found, wanted = (route(encoder, nothing, labels, others) for route in (by_hand, by_autograd))
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_single_precision_is_as_good_as_autograds(shape: Shape) -> None:
    exact = build_encoder(shape[0], shape[1:], 100, seed=3).double()
    encoder = copy.deepcopy(exact).float()
    gradients, labels, others = problem(encoder, shape, 100, torch.float32)
    doubled = {name: value.double() for name, value in gradients.items()}
    _, true = by_autograd(exact, doubled, labels, others.double())
    errors = [
        (route(encoder, gradients, labels, others)[1] - true).norm(dim=1) / true.norm(dim=1)
        for route in (by_hand, by_autograd)
    ]
    assert float(errors[0].max()) <= max(1e-6, 2 * float(errors[1].max()))


def test_the_loss_at_the_image_itself_is_rounding() -> None:
    encoder = build_encoder(3, (32, 32), 100, seed=3)
    images, labels = torch.rand(4, 3, 32, 32, generator=seeded()), torch.arange(4)
    gradients = encoder_gradients(encoder, images, labels)
    scale = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0)
    loss, _ = by_hand(encoder, gradients, labels, images)
    assert bool((loss >= 0).all())
    assert bool((loss <= 1e-11 * scale).all())


def test_some_images_have_the_losses_they_have_among_all() -> None:
    shape = (3, 8, 8)
    encoder = build_encoder(3, (8, 8), 10, seed=3).double()
    gradients, labels, others = problem(encoder, shape, 10)
    chain = chain_of(encoder, shape)
    assert chain is not None
    wanted = wanted_gradients(chain, gradients, labels)
    loss, slope = matching(chain, wanted)(others.flatten(1))
    rows = torch.tensor([2, 0])
    some_loss, some_slope = matching(chain, wanted.of(rows))(others[rows].flatten(1))
    torch.testing.assert_close(some_loss, loss[rows], rtol=1e-13, atol=0)
    torch.testing.assert_close(some_slope, slope[rows], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "padding"), [(5, 2), (3, 0), (4, 1), (2, 3)])
def test_errors_are_carried_back_as_by_the_transposed_convolution(kernel: int, padding: int, stride: int) -> None:
    layer = nn.Conv2d(2, 3, kernel, stride, padding).double().requires_grad_(False)
    convolution = Convolution(layer, "weight", "bias", (2, 9, 12))
    values = torch.randn(4, 2, 9, 12, generator=seeded(), dtype=torch.float64, requires_grad=True)
    outcome = layer(values)
    found = convolution.weight @ convolution.columns(values.detach()).mT + convolution.bias
    torch.testing.assert_close(found, outcome.detach().flatten(2), rtol=1e-12, atol=1e-12)
    errors = torch.randn(outcome.shape, generator=seeded(1), dtype=torch.float64)
    (wanted,) = torch.autograd.grad(outcome, values, errors)
    torch.testing.assert_close(convolution.carry_back(errors), wanted.flatten(2), rtol=1e-12, atol=1e-12)


class Skipping(nn.Module):
    """The layers of a chain, wired in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.sigmoid = nn.Sigmoid()
        self.second = nn.Conv2d(2, 2, 3, padding=1)
        self.other = nn.Sigmoid()
        self.fc = nn.Linear(32, 5)

    def forward(self, images: Tensor) -> Tensor:
        inner = self.sigmoid(self.first(images))
        logits: Tensor = self.fc((inner + self.other(self.second(inner))).flatten(1))
        return logits


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5))


@pytest.mark.parametrize(
    "encoder",
    [
        Skipping(),
        sequence(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh()),
        sequence(nn.Conv2d(2, 2, 3, padding=1)),
        sequence(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.Sigmoid()),
        sequence(nn.Conv2d(2, 2, 3, padding=1, groups=2), nn.Sigmoid()),
        sequence(nn.Conv2d(2, 2, 3, padding=2, dilation=2), nn.Sigmoid()),
        sequence(nn.Conv2d(2, 2, 3, padding="same"), nn.Sigmoid()),
        sequence(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.Sigmoid()),
        sequence(nn.Conv2d(2, 2, (3, 1), padding=(1, 0)), nn.Sigmoid()),
        sequence(nn.Conv2d(2, 2, 3, padding=1), nn.Sigmoid(), nn.Dropout()),
        nn.Sequential(nn.Flatten(), nn.Linear(32, 5)),
    ],
    ids=lambda encoder: str(encoder).replace("\n", "")[:60],
)
def test_what_is_no_chain_is_not_taken_for_one(encoder: nn.Module) -> None:
    assert chain_of(encoder, (2, 4, 4)) is None


def test_a_chain_computes_what_the_encoder_does() -> None:
    encoder = sequence(nn.Conv2d(2, 2, 3, padding=1), nn.Sigmoid()).requires_grad_(False)
    images = torch.rand(3, 2, 4, 4, generator=seeded())
    chain = chain_of(encoder, (2, 4, 4))
    assert chain is not None
    torch.testing.assert_close(chain.logits(images), encoder(images))
    assert chain_of(encoder, (2, 4, 6)) is None
    assert chain_of(encoder, (3, 4, 4)) is None
