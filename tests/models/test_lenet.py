import pytest
import torch
import torch.nn.functional as F

from fcil.models import LeNet, build_encoder

WEIGHTS = [
    "body.0.weight",
    "body.0.bias",
    "body.2.weight",
    "body.2.bias",
    "body.4.weight",
    "body.4.bias",
    "fc.0.weight",
    "fc.0.bias",
]


@pytest.mark.parametrize("classes", [1, 10, 100])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 8), (8, 8), (16, 12), (31, 33), (64, 64)])
def test_any_size_channels_and_classes_fit(size: tuple[int, int], channels: int, classes: int) -> None:
    encoder = LeNet(channels, size, classes)
    assert encoder(torch.rand(2, channels, *size)).shape == (2, classes)


def test_the_released_shapes_for_cifar() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in LeNet(3, (32, 32), 100).state_dict().items()}
    assert list(shapes) == WEIGHTS
    assert shapes["body.0.weight"] == (12, 3, 5, 5)
    assert shapes["body.2.weight"] == shapes["body.4.weight"] == (12, 12, 5, 5)
    assert shapes["fc.0.weight"] == (100, 768)


def test_outputs_equal_those_of_the_equations() -> None:
    encoder = build_encoder(3, (12, 10), 6, seed=2).double()
    state = encoder.state_dict()
    images = torch.rand(3, 3, 12, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = images
    for layer, stride in (("body.0", 2), ("body.2", 2), ("body.4", 1)):
        values = F.conv2d(values, state[f"{layer}.weight"], state[f"{layer}.bias"], stride=stride, padding=2)
        values = 1 / (1 + torch.exp(-values))
    wanted = values.flatten(1) @ state["fc.0.weight"].T + state["fc.0.bias"]
    torch.testing.assert_close(encoder(images), wanted)


def test_an_encoder_is_a_function_of_its_seed() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_encoder(3, (16, 16), 10, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in WEIGHTS)
    assert not any(torch.equal(first[name], other[name]) for name in WEIGHTS)


def test_weights_fill_the_range_of_the_released_code() -> None:
    encoder = build_encoder(3, (32, 32), 100, seed=1)
    values = torch.cat([tensor.flatten() for tensor in encoder.state_dict().values()])
    assert 0.499 < values.max() <= 0.5
    assert -0.5 <= values.min() < -0.499
    assert values.std().item() == pytest.approx(1 / 12**0.5, rel=0.01)
    assert abs(values.mean().item()) < 0.01


def test_an_encoder_is_not_trained() -> None:
    assert not any(parameter.requires_grad for parameter in build_encoder(1, (8, 8), 4, seed=0).parameters())
