"""Training with noise: clipping image by image, the deviation of the noise, and batches drawn image by image."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.models.classifier import Classifier, grow, initial_state
from fcil.models.config import ModelConfig
from fcil.models.noisy_trainer import ClippedGradients, NoisyFit, NoisyTrainer
from fcil.models.optimiser import Optimiser
from fcil.models.trainer import TrainConfig, Trainer

KEY = bytes(range(32))


def network(**settings: Any) -> tuple[Trainer, dict[str, Tensor]]:
    config = ModelConfig(**{"width": 2, "norm": "group", "mean": (0.5,) * 3, "deviation": (0.25,) * 3, **settings})
    return Trainer(config, TrainConfig(batch_size=4)), grow(initial_state(config, 3, 1), 4, 1)


def images(count: int) -> Samples:
    draw = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=draw)
    return Samples(Split(pixels, torch.arange(count) % 4), ("a", "b", "c", "d"))


def loss_of(net: Classifier, targets: Tensor, images: Tensor, rows: Tensor) -> Tensor:
    return F.cross_entropy(net(images), targets[rows])


def noisy(plain: Trainer, noise: float, steps: int, clip: float = 1.0, key: bytes = KEY) -> NoisyTrainer:
    return NoisyTrainer(plain, clip, key, lambda indices, epochs: NoisyFit(indices, noise, steps))


@pytest.mark.parametrize("settings", [{}, {"freeze": True}, {"head": "cosine"}, {"name": "cnn"}], ids=str)
def test_gradients_are_clipped_image_by_image(settings: dict[str, Any]) -> None:
    plain, model = network(**settings)
    if settings.get("head") == "cosine":
        model.pop("head.bias", None)
    machine = noisy(plain, 0.0, 1)
    net, samples = machine.net(model), images(7)
    inputs = machine.inputs(net, samples, torch.arange(7))
    loss, rows = partial(loss_of, net, samples.split.labels), torch.arange(7)
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    lengths, found = [], []
    for row in rows:  # a loop over images, with ordinary gradients
        gradient = torch.autograd.grad(loss(inputs[row : row + 1], row[None]), trained)
        found.append(torch.cat([value.flatten() for value in gradient]).double())
        lengths.append(float(found[-1].norm()))
    clip = sorted(lengths)[3]  # some are longer, some are not
    wanted = sum(value * min(1.0, clip / length) for value, length in zip(found, lengths, strict=True))
    total, _ = ClippedGradients(net.train(), loss, clip).total(inputs, rows)
    torch.testing.assert_close(torch.cat([v.flatten() for v in total.values()]).double(), wanted, rtol=1e-3, atol=1e-4)


def test_an_image_whose_gradient_is_not_finite_adds_nothing() -> None:
    plain, model = network(freeze=True)
    net = noisy(plain, 0.0, 1).net(model)
    inputs = torch.rand(3, net.head.weight.shape[1])
    inputs[1] = float("nan")
    loss = partial(loss_of, net, torch.tensor([0, 1, 2]))
    alone, _ = ClippedGradients(net, loss, 0.5).total(inputs[[0, 2]], torch.tensor([0, 2]))
    all_three, _ = ClippedGradients(net, loss, 0.5).total(inputs, torch.arange(3))
    for name, value in alone.items():
        torch.testing.assert_close(all_three[name], value)


def trained(noise: float, steps: int, clip: float = 1.0, key: bytes = KEY, epochs: int = 1) -> Tensor:
    """Return what a fit on four images adds to the numbers of a head of many features."""
    plain, model = network(freeze=True, width=64)
    machine, samples = noisy(plain, noise, steps, clip, key), images(4)
    net = machine.net(model)
    before = net.head.weight.detach().clone()
    step = Optimiser(1.0)
    machine.fit(net, samples, torch.arange(4), partial(loss_of, net, samples.split.labels), [1.0] * epochs, 0, step)
    assert [(len(fit.samples), fit.steps, times) for fit, times in machine.fits] == [(4, steps, epochs)]
    return (net.head.weight.detach() - before).flatten()


def test_noise_has_the_deviation_of_the_mechanism() -> None:
    """A step is divided by the images that are expected in a batch: n over the steps of an epoch."""
    for noise, clip, steps in ((3.0, 0.5, 1), (40.0, 0.1, 2)):
        added = trained(noise, steps, clip) - trained(0.0, steps, clip)
        wanted = noise * clip / (4 / steps) * steps**0.5  # of so many steps in a row
        assert float(added.std()) == pytest.approx(wanted, rel=0.06)  # of 2,048 numbers
        assert abs(float(added.mean())) < 4 * wanted / len(added) ** 0.5


def test_noise_comes_from_the_key_alone_and_never_twice() -> None:
    first = trained(3.0, 1, epochs=2)
    assert torch.equal(first, trained(3.0, 1, epochs=2))
    assert not torch.equal(first, trained(3.0, 1, epochs=2, key=bytes(32)))
    one, both = trained(1e3, 1), trained(1e3, 1, epochs=2)
    correlation = torch.corrcoef(torch.stack([one, both - one]))[0, 1]
    assert abs(float(correlation)) < 0.1


def test_images_are_drawn_into_batches_by_themselves() -> None:
    machine = noisy(network()[0], 1.0, 4)
    sizes = torch.tensor([len(machine._drawn(200, 4)) for _ in range(400)], dtype=torch.float64)
    assert float(sizes.mean()) == pytest.approx(50, abs=4 * (200 * 0.25 * 0.75 / 400) ** 0.5)
    assert float(sizes.var()) == pytest.approx(200 * 0.25 * 0.75, rel=0.3)
    assert len(machine._drawn(9, 1)) == 9


def test_a_batch_may_be_empty() -> None:
    assert bool(trained(1.0, 64).isfinite().all())


def test_the_owners_limit_of_seconds_ends_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = network(freeze=True)
    steps: list[int] = []

    def tick() -> None:
        steps.append(1)
        if len(steps) > 5:
            raise TimeoutError

    monkeypatch.setattr(plain, "tick", tick)
    machine, samples = noisy(plain, 1.0, 2), images(8)
    net = machine.net(model)
    with pytest.raises(TimeoutError):
        machine.fit(net, samples, torch.arange(8), partial(loss_of, net, samples.split.labels), [0.1] * 100, 1)
    assert len(steps) == 6


def test_an_image_without_a_finite_loss_raises_no_alarm() -> None:
    """A site reports a fit that has diverged, which a model made for that could have one image decide."""
    plain, model = network(freeze=True)
    machine, samples = noisy(plain, 1.0, 1), images(8)
    net = machine.net(model)

    def loss(inputs: Tensor, rows: Tensor) -> Tensor:
        return torch.where(rows[0] == 3, torch.inf, 1.0) * loss_of(net, samples.split.labels, inputs, rows)

    assert 0 < machine.fit(net, samples, torch.arange(8), loss, [0.0], 1) < 10
