"""MFCL: what a client learns from real and drawn images, how the server trains its generator, what travels."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.objectives import SOURCE, Workshop, state_of
from torch import Tensor

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import ModelState, decode, encode, model_digest
from fcil.experiment.config import load_config
from fcil.maths.generated import balance_loss, gaussian_gap, roughness, weighted_distance
from fcil.maths.losses import cross_entropy
from fcil.methods.mfcl import GeneratorState, Mfcl, MfclConfig, SentGenerator, as_images, generator_loss
from fcil.models.generator import NormalisedGenerator, drawn, load_generator
from fcil.models.statistics import BatchStatistics, Statistics
from fcil.testing import trial
from fcil.testing.recorded import Exchange, Listener

OLD, LATENT, WIDTH = 2, 6, 2
SHAPE = SOURCE.image_shape
SMALL: dict[str, Any] = {"latent": LATENT, "generator_width": WIDTH, "synthesis_batch": 16, "generator_steps": 5}


def shop(**fields: Any) -> Workshop:
    """Return a client's place with two old and two new classes."""
    return Workshop("mfcl", OLD, 4, **{**SMALL, **fields})


@cache
def sent() -> ModelState:
    """Return a generator as a server sends it."""
    made = drawn(lambda: NormalisedGenerator(LATENT, WIDTH, SHAPE), 3)
    return {name: tensor.detach() for name, tensor in made.state_dict().items()}


def objective_of(place: Workshop, samples: Tensor, state: ModelState | None = None) -> Mfcl:
    """Return the local objective of a client that was sent this generator, or none."""
    digest = model_digest(state or {})
    extra = SentGenerator(digest) if state is not None else None
    objective = place.objective(samples, extra, pools={digest: state} if state is not None else {})
    assert isinstance(objective, Mfcl)
    return objective


def rows(samples: Tensor) -> Tensor:
    return torch.arange(len(samples))


# --- the loss -----------------------------------------------------------------------------------------------------


def test_the_loss_is_the_weighted_sum_of_its_three_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    place = shop(head_weight=0.7, distillation_weight=0.3, replay_ratio=2)
    samples = place.of_classes(2, 3, each=4)
    objective, images = objective_of(place, samples, sent()), place.local.images(samples)
    net, teacher, targets = objective.problem.net, objective.problem.teacher, objective.problem.targets
    assert teacher is not None
    drawn_images = objective.beside(8)[0]
    monkeypatch.setattr(objective, "beside", lambda real: [drawn_images])
    with torch.no_grad():
        found = objective.loss(images, rows(samples))
        everything = torch.cat([images, drawn_images])
        features, old = net.extract(everything), teacher.extract(everything)
        labels = torch.cat([targets, teacher(drawn_images).argmax(1)])
        classified = cross_entropy(net(images)[:, OLD:], targets - OLD).mean()
        finetuned = cross_entropy(net(everything), labels).mean()
        distance = weighted_distance(features, old, teacher.head.weight).mean()
    assert len(drawn_images) == 16
    assert min(classified, finetuned, distance) > 1e-5
    assert found.item() == pytest.approx((classified + 0.7 * finetuned + 0.3 * distance).item(), rel=1e-4)


def test_without_new_samples_and_distance_the_head_alone_has_a_gradient() -> None:
    place = shop(distillation_weight=0.0)
    samples = place.of_classes(0, 1, each=4)
    objective = objective_of(place, samples, sent())
    objective.loss(place.local.images(samples), rows(samples)).backward()  # type: ignore[no-untyped-call]
    net = objective.problem.net
    assert not any(p.grad is not None and bool(p.grad.any()) for p in net.backbone.parameters())
    assert isinstance(net.head.weight.grad, Tensor)
    assert bool(net.head.weight.grad.any(1).all())


def test_in_the_first_block_it_is_cross_entropy_over_all_outputs() -> None:
    place = Workshop("mfcl", 0, 4)
    samples = place.of_classes(0, 3, each=4)
    objective, images = objective_of(place, samples), place.local.images(samples)
    with torch.no_grad():
        expected = cross_entropy(objective.problem.net(images), objective.problem.targets).mean()
        assert objective.loss(images, rows(samples)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_every_batch_has_images_of_its_own_which_follow_from_the_client_s_seed() -> None:
    place = shop(replay_ratio=3)
    samples = place.of_classes(2, 3, each=4)
    one, again = (objective_of(place, samples, sent()) for _ in range(2))
    first, second = one.beside(8)[0], one.beside(8)[0]
    assert first.shape == (24, *SHAPE)
    assert not torch.equal(first, second)
    assert torch.equal(first, again.beside(8)[0])
    assert not first.requires_grad


def test_as_released_a_second_pass_counts_in_batch_norm_again() -> None:
    means = []
    for passes in (1, 2):
        place = shop(passes=passes)
        samples = place.of_classes(2, 3, each=4)
        objective = objective_of(place, samples, sent())
        objective.problem.net.train()
        objective.loss(place.local.images(samples), rows(samples))
        means.append(int(state_of(objective)["backbone.stem.1.num_batches_tracked"]))
    assert means == [1, 2]


def test_a_generator_of_another_form_is_refused() -> None:
    place = shop(latent=LATENT + 1)
    with pytest.raises(FederationError, match="does not have the form that the settings describe"):
        objective_of(place, place.of_classes(2, 3), sent())


# --- the server ---------------------------------------------------------------------------------------------------


def test_the_generator_s_loss_is_the_sum_of_its_four_parts() -> None:
    weights = {"balance_weight": 0.5, "statistics_weight": 3.0, "smoothness_weight": 0.25}
    config = MfclConfig(label_temperature=2.0, **weights)
    place = shop()
    net = place.local.machine.net(place.teacher)
    statistics, images = BatchStatistics(net), place.local.images(place.of_classes(0, 1))
    with torch.no_grad():
        logits = net(images)
        found = generator_loss(config, images, logits, statistics)
        label = cross_entropy(logits / 2, logits.argmax(1)).mean()
        gaps = [gaussian_gap(*a, *b) for a, b in zip(statistics.given(), statistics.kept, strict=True)]
        expected = label + 0.5 * balance_loss(logits) + 3 * sum(gaps) / len(gaps) + 0.25 * roughness(images).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def settled(place: Workshop, state: GeneratorState, seed: int = 1) -> GeneratorState:
    found = place.roles.server.settle(state, place.teacher, place.context, seed, place.local.machine)
    assert isinstance(found, GeneratorState)
    return found


def test_training_brings_the_images_nearer_to_the_data_s_statistics_and_goes_on_from_block_to_block() -> None:
    place = shop(generator_steps=15).pretrained(4)
    net = place.local.machine.net(place.teacher)

    def gap(state: ModelState) -> float:
        statistics = BatchStatistics(net)
        noise = torch.randn(64, LATENT, generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            net(as_images(load_generator(LATENT, WIDTH, SHAPE, state), noise, net))
        pairs: list[tuple[Statistics, Statistics]] = list(zip(statistics.given(), statistics.kept, strict=True))
        return float(sum(gaussian_gap(*found, *wanted) for found, wanted in pairs))

    before = torch.random.get_rng_state()
    once = settled(place, GeneratorState())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model_digest(settled(place, GeneratorState()).generator) == model_digest(once.generator)
    twice = settled(place, once, seed=2)
    assert gap(twice.generator) < gap(once.generator) < 0.8 * gap(sent())
    assert model_digest(net.state_dict()) == model_digest(place.teacher)


def test_the_images_are_what_the_network_s_normalisation_turns_back() -> None:
    place = shop()
    net, made = place.local.machine.net(place.teacher), load_generator(LATENT, WIDTH, SHAPE, sent())
    noise = torch.randn(4, LATENT, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close((as_images(made, noise, net) - net.mean) / net.deviation, made(noise))
    assert not made.training, "its running statistics hold for every batch"


# --- what travels -------------------------------------------------------------------------------------------------


def test_a_generator_travels_by_its_digest_in_the_place_of_images() -> None:
    made = trial("mfcl", scenario={"tasks": (2, 2)}, fields=SMALL)
    listener = Listener(made.simulation.engine)
    object.__setattr__(made.simulation, "engine", listener)
    states = [state.server.role_state for state, _ in made.simulation.rounds(made.simulation.start())]
    exchanges: list[Exchange] = listener.heard
    assert [exchange.broadcast.pools for exchange in exchanges[:2]] == [(), ()]
    for exchange, state in zip(exchanges[2:], states[2:], strict=True):
        assert isinstance(state, GeneratorState)
        (digest,) = exchange.broadcast.pools
        assert exchange.broadcast.extra == SentGenerator(digest)
        assert digest == model_digest(state.generator) == model_digest(exchange.models[digest])
        assert "images" not in exchange.models[digest]
        assert len(exchange.models) == 3, "the global model, the teacher and the generator are what a site keeps"
        resumed = decode(encode(state), GeneratorState)
        assert model_digest(resumed.generator) == digest


# --- settings -----------------------------------------------------------------------------------------------------


def test_a_network_without_batch_norm_is_refused_with_both_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("digits", ["method.name=mfcl", "model.norm=group"])
    assert "model.norm: found group, should be batch, for method.name mfcl" in str(caught.value)
    with pytest.raises(ConfigError, match=r"statistics_weight"):
        load_config("digits", ["method.name=mfcl", "model.norm=group", "method.statistics_weight=0"])


def test_the_published_rate_falls_to_a_tenth_by_equal_factors() -> None:
    rates = MfclConfig.native.rates(1000, 0)
    assert rates[0] == 0.1
    assert rates[500] == pytest.approx(0.1 * 0.1**0.5)
    assert {round(after / before, 12) for before, after in pairwise(rates)} == {round(0.1**0.001, 12)}
    assert MfclConfig.native.over(20).rates(20, 0)[10] == pytest.approx(0.1 * 0.1**0.5)
