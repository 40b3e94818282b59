import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcil.models import ModelConfig, multiply_adds, parameter_bytes
from fcil.models.registry import Stem
from fcil.models.resnet import ResNet18


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def expected_count(channels: int, width: int, stem_kernel: int) -> int:
    """Convolutions have no bias; a batch normalisation has two values a channel."""
    total = channels * width * stem_kernel**2 + 2 * width
    inputs = width
    for outputs in (width, 2 * width, 4 * width, 8 * width):
        shortcut = inputs * outputs + 2 * outputs if inputs != outputs else 0
        first = 9 * inputs * outputs + 2 * outputs + 9 * outputs**2 + 2 * outputs + shortcut
        second = 2 * (9 * outputs**2 + 2 * outputs)
        total += first + second
        inputs = outputs
    return total


def seeded_network(channels: int = 3, width: int = 4, stem: str = "cifar", last_relu: bool = True) -> ResNet18:
    draw = torch.Generator().manual_seed(0)
    network = ResNet18(channels, width, stem, last_relu)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            low, high = (0.5, 1.5) if name.endswith("running_var") else (-0.5, 0.5)
            tensor.uniform_(low, high, generator=draw)
    return network.eval()


def images(channels: int, size: int) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(size))


def test_the_published_network_has_its_number_of_parameters() -> None:
    assert expected_count(3, 64, 3) == 11_168_832
    with torch.device("meta"):
        assert count(ResNet18(3, 64, "cifar", True)) == 11_168_832


@pytest.mark.parametrize(("stem", "kernel"), [("cifar", 3), ("imagenet", 7)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [1, 4, 10])
def test_the_number_of_parameters_follows_from_width_channels_and_stem(
    width: int, channels: int, stem: Stem, kernel: int
) -> None:
    network = ResNet18(channels, width, stem, True)
    assert count(network) == expected_count(channels, width, kernel)
    assert parameter_bytes(ModelConfig(width=width, stem=stem), channels) == 4 * count(network)
    assert network.features == 8 * width


@pytest.mark.parametrize("size", [8, 16, 32, 64])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_size_give_one_feature_row_each(channels: int, stem: str, size: int) -> None:
    network = seeded_network(channels, 2, stem)
    with torch.no_grad():
        features = network(images(channels, size))
    assert features.shape == (2, 16)
    assert bool(torch.isfinite(features).all())
    assert not torch.equal(features[0], features[1])


def test_the_last_activation_can_be_left_out() -> None:
    with torch.no_grad():
        with_activation = seeded_network(last_relu=True)(images(3, 16))
        without = seeded_network(last_relu=False)(images(3, 16))
    assert bool((with_activation >= 0).all())
    assert bool((without < 0).any())


def reference(state: dict[str, Tensor], x: Tensor, stem: str, last_relu: bool) -> Tensor:
    def normalise(values: Tensor, name: str) -> Tensor:
        mean, variance, weight, bias = (
            state[f"{name}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (values - mean) / torch.sqrt(variance + 1e-5) * weight + bias

    stride, padding = (1, 1) if stem == "cifar" else (2, 3)
    x = normalise(F.conv2d(x, state["stem.0.weight"], stride=stride, padding=padding), "stem.1").clamp(min=0)
    if stem == "imagenet":
        x = F.max_pool2d(x, 3, 2, 1)
    for stage in range(4):
        for block in range(2):
            at = f"stages.{stage}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            out = F.conv2d(x, state[f"{at}.conv1.weight"], stride=stride, padding=1)
            out = F.conv2d(normalise(out, f"{at}.bn1").clamp(min=0), state[f"{at}.conv2.weight"], padding=1)
            if stride == 2:
                x = normalise(F.conv2d(x, state[f"{at}.shortcut.0.weight"], stride=2), f"{at}.shortcut.1")
            x = normalise(out, f"{at}.bn2") + x
            if last_relu or (stage, block) != (3, 1):
                x = x.clamp(min=0)
    return x.flatten(2).mean(2)


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_features_equal_those_of_the_equations(stem: str, last_relu: bool) -> None:
    network = seeded_network(3, 3, stem, last_relu).double()
    x = images(3, 20).double()
    with torch.no_grad():
        torch.testing.assert_close(network(x), reference(network.state_dict(), x, stem, last_relu))


def test_every_parameter_is_trained() -> None:
    network = seeded_network().train()
    network(images(3, 32)).square().sum().backward()
    assert [name for name, parameter in network.named_parameters() if not bool(parameter.grad.abs().sum() > 0)] == []


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize(("width", "size"), [(4, (8, 8)), (3, (17, 9)), (16, (32, 32))])
def test_the_work_of_an_image_is_that_of_its_convolutions(stem: Stem, width: int, size: tuple[int, int]) -> None:
    counted = []

    def note(layer: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        counted.append(output[0].numel() * layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1])

    net = ResNet18(3, width, stem, last_relu=True).eval()
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(note)
    net(torch.zeros(1, 3, *size))
    assert multiply_adds(ModelConfig(width=width, stem=stem), (3, *size)) == sum(counted)


@pytest.mark.parametrize("width", range(1, 9))
def test_training_with_any_width_stays_within_its_memory(width: int) -> None:
    # few channels in the channels-last format once crashed PyTorch's strided 1 x 1 convolution
    net = ResNet18(3, width, "cifar", last_relu=True)
    images = torch.rand(16, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    for _ in range(5):
        net(images).square().sum().backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in net.parameters())
