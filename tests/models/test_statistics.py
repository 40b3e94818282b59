"""Statistics of batches beside the running ones of batch norms."""

from __future__ import annotations

import torch
from torch import nn

from fcil.models import ModelConfig, grow, initial_state, load_classifier
from fcil.models.statistics import BatchStatistics, has_batch_norm

IMAGES = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def network(**settings: object) -> nn.Module:
    config = ModelConfig.model_validate({"width": 2, **settings})
    state = grow(initial_state(config, 1, 3), 4, 5)
    return load_classifier(config, (0.5,), (0.2,), state, torch.device("cpu"))


def test_every_batch_norm_is_watched_in_order() -> None:
    net = network()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    watched = BatchStatistics(net)
    assert [kept.mean.shape for kept in watched.kept] == [norm.running_mean.shape for norm in norms]
    for number, norm in enumerate(norms):
        norm.running_mean.fill_(number)
    assert [kept.mean[0].item() for kept in watched.kept] == list(range(len(norms)))
    assert len(norms) == 20


def test_given_is_what_a_batch_norm_itself_would_have_taken_from_the_batch() -> None:
    net = network()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    counts: dict[int, int] = {}
    for number, norm in enumerate(norms):
        norm.momentum = 1.0  # what it keeps is then the last batch's
        norm.register_forward_pre_hook(
            lambda module, given, number=number: counts.update({number: given[0].numel() // given[0].shape[1]})
        )
    watched = BatchStatistics(net)
    net.train()(IMAGES)
    for number, (given, kept) in enumerate(zip(watched.given(), watched.kept, strict=True)):
        torch.testing.assert_close(given.mean, kept.mean)
        unbiased = given.variance * counts[number] / (counts[number] - 1)
        torch.testing.assert_close(unbiased, kept.variance)


def test_given_follows_the_latest_batch_and_has_gradients() -> None:
    net = network().eval()
    watched = BatchStatistics(net)
    net(IMAGES)
    before = watched.given()
    images = (0.5 * IMAGES).requires_grad_(True)
    net(images)
    after = watched.given()
    assert not torch.equal(before[0].mean, after[0].mean)
    after[-1].variance.sum().backward()
    assert images.grad is not None
    assert bool(images.grad.any())


def test_a_network_without_batch_norm_has_nothing_to_match() -> None:
    assert BatchStatistics(network(norm="group")).kept == []
    assert [
        has_batch_norm(ModelConfig(name=name, norm=norm)) for name in ("resnet18", "cnn") for norm in ("batch", "group")
    ] == [
        True,
        False,
        True,
        False,
    ]
