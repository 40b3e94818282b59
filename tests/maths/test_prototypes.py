from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck

from fcil.maths.losses import binary_cross_entropy
from fcil.maths.prototypes import encoder_gradients, nearest_to_mean, perturb
from fcil.models import LeNet, build_encoder

CLOSE = 1e-5  # of the largest entry: processors add up the float32 values of an image in different orders


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_network() -> tuple[nn.Module, nn.Module]:
    draw = seeded(5)
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh())
    head = nn.Linear(6, 4)
    for parameter in [*body.parameters(), *head.parameters()]:
        nn.init.uniform_(parameter, -1, 1, generator=draw)
    return body.double(), head.double()


def images_and_labels() -> tuple[Tensor, Tensor]:
    return torch.rand(5, 3, 2, 2, generator=seeded(1), dtype=torch.float64), torch.tensor([0, 1, 2, 3, 1])


def perturbed(noise: float, steps: int = 4, seed: int = 0, deviation: float = 1.0) -> Tensor:
    body, head = small_network()
    images, labels = images_and_labels()
    spread = torch.full((5, 6), deviation, dtype=torch.float64)
    return perturb(
        body, head, images, labels, spread, steps=steps, learning_rate=0.5, noise=noise, generator=seeded(seed)
    )


def test_the_prototype_is_the_row_nearest_to_the_mean() -> None:
    assert nearest_to_mean(torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0], [0.0, 4.0]])) == 2
    assert nearest_to_mean(torch.tensor([[7.0, 7.0]])) == 0


def test_the_prototype_equals_the_search_over_all_rows() -> None:
    for seed in range(20):
        features = torch.randn(9, 4, generator=seeded(seed), dtype=torch.float64)
        mean = [sum(column) / 9 for column in zip(*features.tolist(), strict=True)]
        squares = [sum((x - m) ** 2 for x, m in zip(row, mean, strict=True)) for row in features.tolist()]
        assert nearest_to_mean(features) == squares.index(min(squares))


def by_hand(weight: Tensor, noise: Tensor, start: Tensor, labels: Tensor) -> Tensor:
    """One step for the linear model z = W (x + noise): dL/dx = W^T (sigmoid(z) - onehot) / C."""
    logits = (start + noise) @ weight.T
    error = torch.sigmoid(logits) - torch.eye(len(weight), dtype=torch.float64)[labels]
    return start - 0.5 * error @ weight / len(weight)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_steps_of_a_linear_model_equal_those_by_hand(noise: float, steps: int) -> None:
    weight = torch.tensor([[1.0, -2.0], [0.5, 0.25], [3.0, 1.0]], dtype=torch.float64)
    images = torch.tensor([[0.2, 0.4], [0.6, 0.1]], dtype=torch.float64)
    labels = torch.tensor([2, 0])
    deviation = torch.tensor([[1.0, 2.0], [0.5, 3.0]], dtype=torch.float64)

    def extract(values: Tensor) -> Tensor:
        return values

    def classify(features: Tensor) -> Tensor:
        return features @ weight.T

    found = perturb(
        extract, classify, images, labels, deviation, steps=steps, learning_rate=0.5, noise=noise, generator=seeded(9)
    )
    wanted, draw = images, seeded(9)
    for _ in range(steps):
        drawn = torch.randn(2, 2, generator=draw).double() if noise > 0 else torch.zeros(2, 2, dtype=torch.float64)
        wanted = by_hand(weight, noise * deviation * drawn, wanted, labels)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_without_noise_every_image_moves_towards_its_class() -> None:
    body, head = small_network()
    images, labels = images_and_labels()
    target = torch.eye(4, dtype=torch.float64)[labels]
    moved = perturbed(0.0, steps=20)
    before = binary_cross_entropy(head(body(images)), target)
    after = binary_cross_entropy(head(body(moved)), target)
    assert bool((after < before).all())


def test_the_result_is_a_function_of_the_generator() -> None:
    assert torch.equal(perturbed(0.3, seed=1), perturbed(0.3, seed=1))
    assert not torch.equal(perturbed(0.3, seed=1), perturbed(0.3, seed=2))
    assert torch.equal(perturbed(0.0, seed=1), perturbed(0.0, seed=2))
    assert torch.equal(perturbed(0.3, seed=1, deviation=0.0), perturbed(0.0))


def test_the_global_generator_is_not_touched() -> None:
    body, head = small_network()
    images, labels = images_and_labels()
    spread = torch.ones(5, 6, dtype=torch.float64)
    before = torch.random.get_rng_state()
    perturb(body, head, images, labels, spread, steps=2, learning_rate=0.5, noise=0.3, generator=seeded())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_noise_a_batch_equals_its_images_one_by_one() -> None:
    body, head = small_network()
    images, labels = images_and_labels()
    together = perturbed(0.0)
    for row in range(5):
        alone = perturb(
            body,
            head,
            images[row : row + 1],
            labels[row : row + 1],
            torch.ones(1, 6, dtype=torch.float64),
            steps=4,
            learning_rate=0.5,
            noise=0.0,
            generator=seeded(),
        )
        torch.testing.assert_close(alone[0], together[row], rtol=1e-12, atol=1e-12)


def test_images_and_weights_are_left_as_they_were() -> None:
    body, head = small_network()
    images, labels = images_and_labels()
    copy = images.clone()
    spread = torch.ones(5, 6, dtype=torch.float64)
    found = perturb(body, head, images, labels, spread, steps=3, learning_rate=0.5, noise=0.1, generator=seeded())
    assert torch.equal(images, copy)
    assert not images.requires_grad
    assert not found.requires_grad
    assert not torch.equal(found, images)
    assert all(parameter.grad is None for parameter in [*body.parameters(), *head.parameters()])


@pytest.mark.parametrize(("channels", "size", "classes"), [(1, (8, 8), 4), (3, (16, 12), 10)])
def test_encoder_gradients_equal_plain_autograd_for_each_image(
    channels: int, size: tuple[int, int], classes: int
) -> None:
    encoder = build_encoder(channels, size, classes, seed=3)
    images = torch.rand(4, channels, *size, generator=seeded(2))
    labels = torch.randint(0, classes, (4,), generator=seeded(3))
    found = encoder_gradients(encoder, images, labels)
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    encoder.requires_grad_(True)
    for row in range(4):
        loss = F.cross_entropy(encoder(images[row : row + 1]), labels[row : row + 1])
        wanted = torch.autograd.grad(loss, list(encoder.parameters()))
        for (name, _), gradient in zip(encoder.named_parameters(), wanted, strict=True):
            assert found[name].shape == (4, *gradient.shape)
            assert (found[name][row] - gradient).abs().max() <= CLOSE * gradient.abs().max()


def test_encoder_gradients_are_differentiable_in_the_images() -> None:
    encoder = build_encoder(1, (4, 4), 3, seed=3).double()
    labels = torch.tensor([2, 0])

    def gradients(images: Tensor) -> tuple[Tensor, ...]:
        return tuple(encoder_gradients(encoder, images, labels).values())

    images = torch.rand(2, 1, 4, 4, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(gradients, (images,), fast_mode=True)


# The golden gradients were computed in single precision: in double precision, the same on any processor, they are up
# to 1.3e-6 of the largest entry away. In single precision another processor would add as much of its own.


def golden_encoder(weights: Callable[[str], Tensor]) -> LeNet:
    encoder = LeNet(3, (32, 32), 100)
    encoder.load_state_dict({name: weights(f"weight__{name}") for name in encoder.state_dict()})
    return encoder.double()


def golden_images(stored: Tensor) -> Tensor:
    return (stored.float() / 255).double()


def test_lenet_gradients_of_an_image_equal_the_released_code(golden_lenet) -> None:
    encoder = golden_encoder(golden_lenet.__getitem__)
    images, labels = golden_images(golden_lenet["images"][:1]), golden_lenet["labels"][:1]
    found = {name: value[0] for name, value in encoder_gradients(encoder, images, labels).items()}
    rows = found.pop("fc.0.weight")[[int(labels[0]), 0, 99]]
    wanted_rows = golden_lenet["grad0__fc.0.weight_rows"]
    assert (rows - wanted_rows).abs().max() <= CLOSE * wanted_rows.abs().max()
    for name, gradient in found.items():
        wanted = golden_lenet[f"grad0__{name}"]
        assert (gradient - wanted).abs().max() <= CLOSE * wanted.abs().max(), name


def test_lenet_losses_and_row_sums_equal_the_released_code(golden_lenet) -> None:
    encoder = golden_encoder(golden_lenet.__getitem__)
    for row, (image, label) in enumerate(zip(golden_lenet["images"], golden_lenet["labels"], strict=True)):
        images, labels = golden_images(image[None]), label[None]
        with torch.no_grad():
            loss = F.cross_entropy(encoder(images), labels)
        assert loss.item() == pytest.approx(golden_lenet["loss"][row].item(), rel=CLOSE)
        sums, wanted = encoder_gradients(encoder, images, labels)["fc.0.weight"][0].sum(1), golden_lenet["fc_row_sums"]
        assert (sums - wanted[row]).abs().max() <= CLOSE * wanted[row].abs().max()
