"""LANDER: features near anchors at clients and in the synthesis, what travels, which anchors are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.objectives import SOURCE, Workshop, catalogue, state_of
from torch import Tensor

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import generator, model_digest
from fcil.experiment.config import load_config
from fcil.maths.anchors import anchor_loss, random_anchors, shares
from fcil.maths.distillation import distillation
from fcil.maths.losses import cross_entropy
from fcil.methods.lander import (
    AnchoredPool,
    Lander,
    LanderBatch,
    LanderConfig,
    LanderStudent,
    LanderSynthesis,
    anchors_of,
    mapped,
)
from fcil.methods.synthetic_replay import IMAGES
from fcil.testing import trial
from fcil.testing.recorded import Listener

OLD, SIZE = 2, 16
SHAPE = SOURCE.image_shape
SMALL: dict[str, Any] = {
    "anchor_size": SIZE,
    "images": 1000,
    "calls": 4,
    "warm_up": 2,
    "synthesis_batch": 15,
    "generator_width": 4,
    "latent": 8,
    "generator_steps": 3,
    "adversarial_from": 2,
    "student_lead": 1,
    "student_steps": 2,
}


def shop(old: int = OLD, **fields: Any) -> Workshop:
    """Return a client's place with two old and two new classes."""
    return Workshop("lander", old, 4, **{**SMALL, **fields})


def pool_of(count: int = 8) -> Tensor:
    return torch.randint(0, 256, (count, *SHAPE), generator=generator(3), dtype=torch.uint8)


def objective_of(place: Workshop, samples: Tensor, pool: Tensor | None = None, anchors: Tensor | None = None) -> Lander:
    """Return the local objective of a client that was sent anchors, and perhaps a pool."""
    images = {IMAGES: pool} if pool is not None else {}
    digest = model_digest(images) if images else ""
    known = anchors if anchors is not None else random_anchors(catalogue(4), SIZE).half()
    objective = place.objective(samples, AnchoredPool(digest, known), pools={digest: images} if images else {})
    assert isinstance(objective, Lander)
    return objective


def synthesis(seed: int = 5, **changed: Any) -> LanderSynthesis:
    place = shop(3, **changed)
    anchors = random_anchors(catalogue(3), SIZE)
    assert isinstance(place.config, LanderConfig)
    return LanderSynthesis(place.config, place.teacher, SHAPE, anchors, seed, place.local.machine)


# --- the client ---------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_new_and_of_synthetic_images_in_their_shares() -> None:
    place, pool = shop(anchor_weight=3.0), pool_of()
    samples = place.of_classes(2, 3, each=4)
    objective, images = objective_of(place, samples, pool), place.local.images(samples)
    net, teacher, targets = objective.problem.net, objective.problem.teacher, objective.problem.targets
    assert teacher is not None
    synthetic = pool.float() / 255
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        anchors = random_anchors(catalogue(4), SIZE).half().float()[targets]
        current = cross_entropy(net(images)[:, OLD:], targets - OLD).mean()
        current += 3 * anchor_loss(mapped(net, net.extract(images)), anchors, 0.015)
        distance = (mapped(net, net.extract(synthetic)) - mapped(teacher, teacher.extract(synthetic))).square().mean()
        previous = distillation(net(synthetic), teacher(synthetic)).mean() + distance
    ahead, behind = shares(2, 4, 0.2, 0.4)
    assert min(distance, current, previous) > 1e-4
    assert found.item() == pytest.approx((ahead * current + behind * previous).item(), rel=1e-4)


def test_in_the_first_block_it_is_cross_entropy_and_the_anchor_loss() -> None:
    place = shop(0)
    samples = place.of_classes(0, 3, each=4)
    objective, images = objective_of(place, samples), place.local.images(samples)
    net, targets = objective.problem.net, objective.problem.targets
    with torch.no_grad():
        anchors = random_anchors(catalogue(4), SIZE)[targets]
        expected = cross_entropy(net(images), targets).mean()
        expected = expected + 5 * anchor_loss(mapped(net, net.extract(images)), anchors, 0.015)
        assert objective.loss(images, torch.arange(8)).item() == pytest.approx(expected.item(), rel=1e-3)


def test_real_samples_of_old_classes_are_distilled_and_neither_classified_nor_anchored() -> None:
    place = shop()
    samples = place.of_classes(0, 1, each=4)
    objective = objective_of(place, samples)
    far = objective_of(place, samples, anchors=torch.full((4, SIZE), 99.0).half())
    images = place.local.images(samples)
    found = objective.loss(images, torch.arange(8))
    assert found.item() > 0
    assert found.item() == far.loss(images, torch.arange(8)).item()


def test_training_draws_features_to_the_anchors_and_the_map_decides_no_prediction() -> None:
    place = shop(0)
    samples = place.of_classes(0, 1, 2, 3)
    objective, images = objective_of(place, samples), place.local.images(samples)
    anchors = random_anchors(catalogue(4), SIZE)[objective.problem.targets]

    def distance() -> float:
        net = objective.problem.net
        with torch.no_grad():
            return float((mapped(net, net.extract(images)) - anchors).square().mean())

    before = distance()
    place.fit(objective, epochs=6, rate=0.002)  # at 0.05 the small network oscillates
    assert distance() < 0.7 * before
    state = dict(state_of(objective))
    shifted = {name: tensor + ("head.map" in name) for name, tensor in state.items()}
    nets = [place.local.machine.net(weights) for weights in (state, shifted)]
    with torch.no_grad():
        assert torch.equal(nets[0](images), nets[1](images))


@pytest.mark.parametrize("anchors", [torch.zeros(3, SIZE).half(), torch.zeros(4, SIZE - 1).half()])
def test_anchors_of_another_shape_are_refused(anchors: Tensor) -> None:
    place = shop()
    with pytest.raises(FederationError, match=rf"the server sent anchors \d x \d+, should be 4 x {SIZE}"):
        objective_of(place, place.of_classes(2, 3), anchors=anchors)


# --- the synthesis ------------------------------------------------------------------------------------------------


def test_the_pool_is_a_function_of_the_seed_and_lacks_the_batches_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, bool]] = []
    learned: list[tuple[int, int]] = []
    call, learn = LanderSynthesis._call, LanderStudent.learn

    def noted(self: LanderSynthesis, number: int, adversarial: bool) -> Tensor:
        calls.append((number, adversarial))
        return call(self, number, adversarial)

    def noting(self: LanderStudent, pool: Tensor, number: int) -> None:
        learned.append((number, len(pool)))
        learn(self, pool, number)

    monkeypatch.setattr(LanderSynthesis, "_call", noted)
    monkeypatch.setattr(LanderStudent, "learn", noting)
    before = torch.random.get_rng_state()
    first = synthesis().pool()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (first.shape, first.dtype) == ((60, *SHAPE), torch.uint8)
    assert calls == [(number, number >= 2) for number in range(-2, 4)]
    assert learned == [(1, 15), (2, 30), (3, 45)]
    assert torch.equal(first, synthesis().pool())


def test_no_two_images_of_a_batch_are_one_and_noise_is_drawn_anew_in_every_call() -> None:
    """With three classes, three rows share a noisy layer; ten would have one image several times."""
    made = synthesis()
    assert made.generator.group == 3
    assert len(made.generator.noise_weight) == 5
    batches = [made.begin(generator(number)) for number in (1, 2, 1)]
    first = batches[0].labels
    assert first.tolist() == [0, 1, 2] * 5
    with torch.no_grad():
        last, weight = batches[2].images(), made.generator.noise_weight.clone()
        made.begin(generator(2))
        assert not torch.equal(weight, made.generator.noise_weight)
        assert len(last.flatten(1).unique(dim=0)) == 15
    assert not made.generator.noise_bias.any()


def test_steps_move_the_generator_and_the_normalisation_and_nothing_is_put_back() -> None:
    made = synthesis(adversarial_weight=0.0, learned_normalisation=True)
    assert (made.mean.unique().item(), made.deviation.unique().item()) == pytest.approx((0.5, 0.2))
    weight = made.generator.body.linear.weight.detach().clone()
    made._call(0, adversarial=False)
    assert not torch.equal(weight, made.generator.body.linear.weight)
    moved = float((made.mean.detach() - 0.5).abs().max())
    assert 0 < moved <= 1.01 * 3 * made.config.latent_rate
    assert model_digest(made.teacher.state_dict()) == model_digest(shop(3).teacher)
    images = torch.rand(4, *SHAPE, generator=generator(2))
    assert not torch.equal(made.shown(images), images)
    own = synthesis()
    own._call(0, adversarial=False)
    assert torch.equal(own.shown(images), images), "the network's own normalisation, which clients have too"


def test_the_loss_of_the_synthesis_holds_mapped_features_to_the_anchors() -> None:
    made = synthesis(label_weight=0.0, statistics_weight=0.0, adversarial_weight=0.0, anchor_weight=2.0)
    images, labels = torch.rand(15, *SHAPE, generator=generator(2)), torch.arange(15) % 3
    with torch.no_grad():
        place = mapped(made.teacher, made.teacher.extract(made.shown(images)))
        expected = 2 * anchor_loss(place, made.anchors[labels], made.config.radius)
        assert made._loss(images, labels, adversarial=False).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_student_learns_the_mapped_features_too_at_a_constant_rate() -> None:
    made = synthesis(student_rate=0.3)
    assert isinstance(made.student, LanderStudent)
    images = torch.rand(15, *SHAPE, generator=generator(2))
    with torch.no_grad():
        distance = mapped(made.student.net, made.student.net.extract(images))
        distance = (distance - mapped(made.teacher, made.teacher.extract(images))).square().mean()
        divergence = distillation(made.student.net(images), made.teacher(images), 20.0, rescaled=True).mean()
        expected = divergence + 5 * distance
        assert made.student.loss(images).item() == pytest.approx(expected.item(), rel=1e-5)
    assert {made.student._rate(call) for call in (1, 2, 3)} == {0.3}
    assert isinstance(made.begin(generator(1)), LanderBatch)


# --- anchors and what travels -------------------------------------------------------------------------------------


def test_anchors_of_all_classes_travel_from_the_first_round_on_and_a_pool_from_the_second_block_on() -> None:
    made = trial("lander", scenario={"tasks": (2, 2)}, fields=SMALL)
    listener = Listener(made.simulation.engine)
    object.__setattr__(made.simulation, "engine", listener)
    list(made.simulation.rounds(made.simulation.start()))
    for number, exchange in enumerate(listener.heard):
        extra = exchange.broadcast.extra
        assert isinstance(extra, AnchoredPool)
        ids = exchange.broadcast.context.catalogue
        assert torch.equal(extra.anchors, random_anchors(ids, SIZE).half())
        assert exchange.broadcast.pools == ((extra.digest,) if number > 1 else ())
        assert bool(extra.digest) == (number > 1)


def test_anchors_from_a_file_are_put_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    file = tmp_path / "text.safetensors"
    rows = {name: torch.full((SIZE,), float(name)) for name in ("7", "3", "5")}
    save_file(rows, file)
    config = LanderConfig(anchors=str(file), anchor_size=SIZE)
    assert anchors_of(config, ("5", "7"))[:, 0].tolist() == [5, 7]
    assert anchors_of(config, ()).shape == (0, SIZE)
    with pytest.raises(ConfigError, match=r"method\.anchors: .*has nothing for the class id 4, should have 16 numbers"):
        anchors_of(config, ("3", "4"))
    with pytest.raises(ConfigError, match=r"has \(16,\) for the class id 3, should have 512 numbers"):
        anchors_of(LanderConfig(anchors=str(file)), ("3",))
    file.write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match=r"method\.anchors: .* cannot be read"):
        anchors_of(config, ("3",))


def test_settings_that_cannot_be_are_refused() -> None:
    lander = ["method.name=lander"]
    with pytest.raises(ConfigError, match=r"model\.norm: found group, should be batch, for method\.name lander"):
        load_config("digits", [*lander, "model.norm=group"])
    with pytest.raises(ConfigError, match=r"method\.anchors: found '', should be random, or the name of a file"):
        load_config("digits", [*lander, 'method.anchors=""'])
    config = load_config("digits", lander).model
    assert (config.head, config.projection) == ("mapped", 512)


def test_the_constants_of_the_synthesis_are_the_published_ones() -> None:
    config = LanderConfig()
    weights = (config.statistics_weight, config.label_weight, config.adversarial_weight, config.anchor_weight)
    assert weights == (1.0, 0.5, 1.0, 5.0)
    assert (config.warm_up + 1, config.warm_up + config.calls) == (10, 50), "kept from the tenth of fifty calls on"
    assert config.calls * config.synthesis_batch == 10_496
    assert config.warm_up + config.adversarial_from + 1 == 13
    assert (config.generator_steps, config.generator_rate, config.latent_rate) == (40, 2e-3, 0.01)
    assert (config.radius, config.student_temperature, config.student_steps) == (0.015, 20.0, 50)


def test_the_published_rate_falls_along_a_cosine_to_a_thousandth() -> None:
    rates = LanderConfig.native.rates(200, 0)
    assert rates[0] == 0.04
    assert rates[100] == pytest.approx((0.04 + 0.001) / 2)
    assert rates[199] == pytest.approx(0.001, abs=1e-5)
