from pathlib import Path

import numpy
import pydantic
import pytest
import torch
from torch import Tensor

from fcil.models import Classifier, ModelConfig, grow, initial_state, load_classifier

CONFIG = ModelConfig(width=2)
MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
CPU = torch.device("cpu")


def bits(state: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in state.items()}


def images(size: int = 8, channels: int = 3) -> Tensor:
    return torch.rand(4, channels, size, size, generator=torch.Generator().manual_seed(0))


def head(weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {"head.weight": weight, "head.bias": bias, "other": torch.ones(3)}


def test_the_configuration_is_checked_and_frozen() -> None:
    published = ModelConfig()
    assert (published.width, published.stem, published.last_relu) == (64, "cifar", True)
    for wrong in ({"width": 0}, {"stem": "mnist"}, {"depth": 50}):
        with pytest.raises(pydantic.ValidationError):
            ModelConfig(**wrong)
    with pytest.raises(pydantic.ValidationError):
        published.width = 3


def test_an_initial_state_is_a_function_of_its_seed() -> None:
    assert bits(initial_state(CONFIG, 3, 5)) == bits(initial_state(CONFIG, 3, 5))
    first, second = initial_state(CONFIG, 3, 5), initial_state(CONFIG, 3, 6)
    for name in first:
        if name.endswith("conv1.weight"):
            assert not torch.equal(first[name], second[name])


def test_an_initial_state_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    state = initial_state(CONFIG, 3, 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    assert bits(initial_state(CONFIG, 3, 5)) == bits(state)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_initial_state_has_no_output_and_no_normalisation(channels: int) -> None:
    state = initial_state(CONFIG, channels, 0)
    assert state["head.weight"].shape == (0, 16)
    assert state["head.bias"].shape == (0,)
    assert state["backbone.stem.0.weight"].shape == (2, channels, 3, 3)
    assert "mean" not in state
    assert "deviation" not in state
    assert not any(tensor.requires_grad for tensor in state.values())


def test_a_grown_head_keeps_its_rows_bit_for_bit_as_the_released_code_does() -> None:
    with numpy.load(Path(__file__).parents[1] / "golden" / "i_head.npz") as golden:
        weight, bias, wide, wide_bias = (
            torch.from_numpy(golden[name]) for name in ("w_before", "b_before", "w_after", "b_after")
        )
    grown = grow(head(weight, bias), 20, seed=3)
    assert grown["head.weight"].shape == wide.shape
    assert grown["head.bias"].shape == wide_bias.shape
    for found, released, before in (
        (grown["head.weight"], wide, weight),
        (grown["head.bias"], wide_bias, bias),
    ):
        assert bits({"rows": found[:10]}) == bits({"rows": released[:10]}) == bits({"rows": before})
        assert found[10:].abs().max() <= 1 / 16**0.5
        assert released[10:].abs().max() <= 1 / 16**0.5


def test_new_rows_fill_the_range_of_a_fresh_linear_layer() -> None:
    grown = grow(head(torch.zeros(0, 16), torch.zeros(0)), 4000, seed=1)
    for tensor in (grown["head.weight"], grown["head.bias"]):
        assert 0.245 < tensor.max() <= 0.25
        assert -0.25 <= tensor.min() < -0.245
        assert tensor.std().item() == pytest.approx(0.5 / 12**0.5, rel=0.03)
        assert abs(tensor.mean().item()) < 0.01


def test_growth_is_a_function_of_its_seed_and_touches_nothing_else() -> None:
    model = head(torch.ones(2, 16), torch.ones(2))
    copy = bits(model)
    before = torch.random.get_rng_state()
    grown = grow(model, 5, seed=1)
    assert bits(grown) == bits(grow(model, 5, seed=1))
    assert bits(grown) != bits(grow(model, 5, seed=2))
    assert bits(model) == copy
    assert torch.equal(grown["other"], model["other"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_growth_to_the_same_width_changes_nothing_and_a_head_cannot_shrink() -> None:
    model = head(torch.rand(3, 4), torch.rand(3))
    assert bits(grow(model, 3, seed=1)) == bits(model)
    with pytest.raises(ValueError, match="3 outputs cannot shrink to 2"):
        grow(model, 2, seed=1)


def test_a_grown_head_keeps_the_type_of_the_model() -> None:
    grown = grow(head(torch.rand(1, 4).double(), torch.rand(1).double()), 2, seed=1)
    assert grown["head.weight"].dtype == grown["head.bias"].dtype == torch.float64


def original() -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        network = Classifier(CONFIG, MEAN, DEVIATION, 5)
        network.train()(images())
    return network.eval()


def test_a_loaded_classifier_predicts_the_same_as_the_original() -> None:
    network = original()
    loaded = load_classifier(CONFIG, MEAN, DEVIATION, network.state_dict(), CPU).eval()
    with torch.no_grad():
        assert torch.equal(loaded(images()), network(images()))
    assert bits(loaded.state_dict()) == bits(network.state_dict())
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_training_a_loaded_classifier_does_not_touch_the_given_state() -> None:
    state = {name: tensor.clone() for name, tensor in original().state_dict().items()}
    copy = bits(state)
    loaded = load_classifier(CONFIG, MEAN, DEVIATION, state, CPU).train()
    optimiser = torch.optim.SGD(loaded.parameters(), lr=0.5)
    loaded(images()).square().sum().backward()
    optimiser.step()
    assert bits(state) == copy
    trained = bits(loaded.state_dict())
    assert {name for name in trained if trained[name] == copy[name]} == set()


def test_loading_leaves_the_global_generator_alone() -> None:
    state = original().state_dict()
    before = torch.random.get_rng_state()
    load_classifier(CONFIG, MEAN, DEVIATION, state, CPU)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("classes", [1, 7])
def test_a_loaded_classifier_has_as_many_outputs_as_its_state(classes: int) -> None:
    state = grow(initial_state(CONFIG, 3, 0), classes, seed=1)
    loaded = load_classifier(CONFIG, MEAN, DEVIATION, state, CPU).eval()
    assert loaded.head.out_features == classes
    assert loaded(images()).shape == (4, classes)


def test_a_state_without_outputs_can_be_loaded() -> None:
    loaded = load_classifier(CONFIG, MEAN, DEVIATION, initial_state(CONFIG, 3, 0), CPU).eval()
    assert loaded.extract(images()).shape == (4, 16)
    assert loaded(images()).shape == (4, 0)


def test_images_are_normalised_inside_the_model() -> None:
    network = original()
    plain = Classifier(CONFIG, [0.0] * 3, [1.0] * 3, 5)
    plain.load_state_dict(network.state_dict())
    plain.eval()
    normalised = torch.stack(
        [(images()[:, channel] - MEAN[channel]) / DEVIATION[channel] for channel in range(3)], dim=1
    )
    with torch.no_grad():
        torch.testing.assert_close(network(images()), plain(normalised))
        assert not torch.allclose(network(images()), plain(images()))


def test_logits_are_the_head_on_the_features() -> None:
    network = original()
    with torch.no_grad():
        features = network.extract(images())
        torch.testing.assert_close(network(images()), features @ network.head.weight.T + network.head.bias)
    assert features.shape == (4, 16)


@pytest.mark.parametrize("last_relu", [True, False])
def test_the_configured_activation_reaches_the_features(last_relu: bool) -> None:
    config = ModelConfig(width=2, last_relu=last_relu, stem="imagenet")
    state = grow(initial_state(config, 1, 3), 2, seed=0)
    network = load_classifier(config, [0.5], [0.25], state, CPU).eval()
    with torch.no_grad():
        assert bool((network.extract(images(32, 1)) < 0).any()) is not last_relu
