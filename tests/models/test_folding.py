from __future__ import annotations

import pytest
import torch
from support.objectives import SOURCE, make_local
from torch import Tensor, nn

from fcil.core.messages import ModelState, generator, model_digest
from fcil.models import ModelConfig, grow, initial_state
from fcil.models.classifier import Classifier, load_classifier
from fcil.models.folding import folded, halved

SHAPES = {"mlp": (5, 1, 1), "cnn1d": (3, 1, 16), "efficientnet-lite0": (3, 32, 32)}


def trained(config: ModelConfig, channels: int) -> ModelState:
    """Return a model whose norms have seen something: no statistic, scale or shift is what it was."""
    draw, state = generator(3), grow(initial_state(config, channels, 1), 4, 2)
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.ndim == 1:
            state[name] = tensor + torch.rand(tensor.shape, generator=draw) * 0.5 + 0.01
    return state


def made(name: str = "resnet18", **fields: object) -> tuple[Classifier, Tensor]:
    """Return a network in double precision, and inputs for it."""
    shape = SHAPES.get(name, (1, 8, 8))
    width = {} if name == "efficientnet-lite0" else {"width": 4}
    config = ModelConfig.model_validate({"name": name, **width, **fields})
    state, size = trained(config, shape[0]), shape[0]
    net = load_classifier(config, [0.4] * size, [0.3] * size, state, torch.device("cpu")).double().eval()
    return net, torch.rand(3, *shape, generator=generator(0)).double()


def norms(net: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())


@pytest.mark.parametrize("name", ["resnet18", "cnn", "mlp", "cnn1d", "efficientnet-lite0"])
def test_a_folded_network_gives_the_same_outputs_without_batch_norms_and_leaves_the_other_as_it_is(name: str) -> None:
    net, images = made(name)
    before = model_digest(net.state_dict())
    fixed = folded(net)
    assert (norms(fixed), norms(net) > 1) == (0, True)
    with torch.no_grad():
        assert torch.allclose(fixed(images), net(images), rtol=1e-10, atol=1e-12)
        if hasattr(net.backbone, "maps"):
            for found, expected in zip(fixed.maps(images), net.maps(images), strict=True):
                assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert model_digest(net.state_dict()) == before
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


def test_groups_of_channels_depend_on_the_image_and_stay() -> None:
    net, images = made(norm="group")
    assert torch.allclose(folded(net)(images), net(images), rtol=1e-10, atol=1e-12)


def test_a_network_with_a_frozen_part_and_one_of_another_package_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for freeze in (True, "stages:1"):
        net, _ = made(freeze=freeze)
        assert folded(net) is net
    net, _ = made()
    monkeypatch.setattr(type(net.backbone), "__module__", "elsewhere.network")
    assert folded(net) is net


def layouts(net: Classifier) -> list[bool]:
    """Note of every convolution that works on more than one pixel whether it gives maps with channels last."""
    found: list[bool] = []

    def look(module: nn.Module, given: tuple[Tensor, ...], maps: Tensor) -> None:
        if min(maps.shape[1:]) > 1:
            found.append(maps.is_contiguous(memory_format=torch.channels_last))

    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(look)
    return found


def test_maps_of_images_with_one_channel_have_their_channels_last() -> None:
    local = make_local()
    net = local.machine.net(grow(initial_state(local.machine.model, 1, 0), 5, 0))
    assert SOURCE.image_shape[0] == 1
    noted = layouts(net)
    loss = lambda images, rows: net(images).square().mean()  # noqa: E731
    local.machine.fit(net, local.samples, torch.arange(8), loss, [0.1], 0)
    assert noted and all(noted)
    assert all(parameter.is_contiguous() for parameter in net.parameters()), "others read a model row by row"
    fixed = folded(net)
    noted = layouts(fixed)
    fixed(local.images(torch.arange(8)))
    assert noted and all(noted)


def test_weights_are_halved_as_autocast_does() -> None:
    net, images = made()
    fixed, images = folded(net.float()), images.float()
    half = halved(fixed)
    assert {module.weight.dtype for module in half.modules() if isinstance(module, nn.Conv2d)} == {torch.bfloat16}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = half(images), fixed(images)
    assert torch.equal(found, expected)
    assert not torch.equal(found, fixed(images))
