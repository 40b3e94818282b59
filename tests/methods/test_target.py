"""TARGET: what a client learns from real and synthetic images, what the server makes and sends, what is refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from support.objectives import Workshop, state_of
from support.parties import federation
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Reply, decode, encode, generator, model_digest
from fcil.experiment.config import load_config
from fcil.maths.distillation import distillation
from fcil.maths.losses import cross_entropy
from fcil.methods import Setting, get_method
from fcil.methods.synthetic_replay import IMAGES, PoolObjective, PoolState, SyntheticPool
from fcil.methods.target import Target, TargetConfig
from fcil.testing import blobs
from fcil.testing.recorded import Exchange, Listener

OLD = 2


def pool_of(count: int = 20) -> Tensor:
    return torch.randint(0, 256, (count, 1, 8, 8), generator=generator(3), dtype=torch.uint8)


def shop(**fields: Any) -> Workshop:
    """Return a client's place with two old and two new classes."""
    return Workshop("target", OLD, 4, **fields)


def objective_of(place: Workshop, samples: Tensor, pool: Tensor | None = None) -> Target:
    """Return the local objective of a client that was sent this pool, or none."""
    sent = {IMAGES: pool} if pool is not None else {}
    digest = model_digest(sent)
    extra = SyntheticPool(digest) if sent else None
    objective = place.objective(samples, extra, pools={digest: sent} if sent else {})
    assert isinstance(objective, Target)
    return objective


def rows(samples: Tensor) -> Tensor:
    return torch.arange(len(samples))


# --- the loss -----------------------------------------------------------------------------------------------------


def test_the_loss_is_cross_entropy_among_the_newest_and_distillation_of_the_old_on_the_pool() -> None:
    place, pool = shop(distillation_weight=0.7, temperature=3.0), pool_of(8)
    samples = place.of_classes(2, 3, each=4)
    objective, images = objective_of(place, samples, pool), place.local.images(samples)
    assert objective.problem.teacher is not None
    with torch.no_grad():
        found = objective.loss(images, rows(samples))
        logits, answers = objective.problem.net(images), objective.problem.net(pool.float() / 255)
        teacher = objective.problem.teacher(pool.float() / 255)
    distilled = distillation(answers, teacher, 3.0).mean()
    assert distilled > 1e-4
    expected = cross_entropy(logits[:, OLD:], objective.problem.targets - OLD).mean() + 0.7 * distilled
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_in_the_first_block_it_is_cross_entropy_over_all_outputs() -> None:
    place = Workshop("target", 0, 4)
    samples = place.of_classes(0, 3, each=4)
    objective, images = objective_of(place, samples), place.local.images(samples)
    assert objective.problem.teacher is None
    with torch.no_grad():
        expected = cross_entropy(objective.problem.net(images), objective.problem.targets).mean()
        assert objective.loss(images, rows(samples)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_real_images_of_new_classes_give_the_old_rows_of_the_head_no_gradient_at_all() -> None:
    place = shop()
    samples = place.of_classes(2, 3, each=6)
    objective = objective_of(place, samples)
    objective.loss(place.local.images(samples), rows(samples)).backward()  # type: ignore[no-untyped-call]
    weight, bias = objective.problem.net.head.weight.grad, objective.problem.net.head.bias.grad
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    assert not weight[:OLD].any()
    assert not bias[:OLD].any()
    assert bool(weight[OLD:].any(1).all())


def test_with_an_empty_pool_the_old_rows_move_by_weight_decay_alone() -> None:
    place = shop()
    samples = place.of_classes(2, 3)
    before = place.model["head.weight"]
    after = state_of(place.fit(objective_of(place, samples)))["head.weight"]
    assert torch.equal(after[:OLD], before[:OLD]), "this fit has no weight decay"
    assert not torch.equal(after[OLD:], before[OLD:])
    with_pool = state_of(place.fit(objective_of(place, samples, pool_of())))["head.weight"]
    assert not torch.equal(with_pool[:OLD], before[:OLD])


def test_real_samples_of_old_classes_are_distilled_and_not_classified() -> None:
    place = shop(distillation_weight=2.0)
    old, new = place.of_classes(0, 1, each=4), place.of_classes(2, each=8)
    samples = torch.cat([old, new])
    objective = objective_of(place, samples)
    assert objective.problem.teacher is not None
    images = place.local.images(samples)
    with torch.no_grad():
        logits, teacher = objective.problem.net(images), objective.problem.teacher(images[:8])
        found = objective.loss(images, rows(samples))
        only_old = objective.loss(images[:8], rows(samples)[:8])
    distilled = 2 * distillation(logits[:8], teacher).mean()
    expected = cross_entropy(logits[8:, OLD:], objective.problem.targets[8:] - OLD).mean() + distilled
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert only_old.item() == pytest.approx(distilled.item(), rel=1e-3)


def test_from_the_pool_alone_a_fresh_model_learns_what_the_teacher_says_of_old_classes() -> None:
    place = shop(distillation_weight=2.0)
    fresh = place.model
    place.pretrained().model = fresh
    samples, known = place.of_classes(2, 3), place.of_classes(0, 1)
    images, pool = place.local.images(known), place.local.samples.pixels(known)
    teacher = place.local.machine.net(place.teacher)

    def distance(objective: Target) -> float:
        net = place.fit(objective, epochs=8, rate=0.02, seed=6).problem.net
        with torch.no_grad():
            return float(distillation(net(images), teacher(images)).mean())

    assert distance(objective_of(place, samples, pool)) < 0.5 * distance(objective_of(place, samples))


# --- synthetic batches --------------------------------------------------------------------------------------------


def watched(objective: Target, epochs: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[Tensor]]:
    """Return the lengths of the real batches of some epochs, and the rows of the pool beside each."""
    real, beside = [], []
    monkeypatch.setattr("fcil.models.trainer.as_floats", lambda pixels: beside.append(pixels) or pixels.float() / 255)
    draw = generator(1)
    for _ in range(epochs):
        for batch in objective.epoch(draw):
            real.append(len(batch))
            objective.beside()
    marks = [pixels[:, 0, 0, 0].long() + 256 * pixels[:, 0, 0, 1].long() for pixels in beside]
    return real, marks


def numbered(count: int) -> Tensor:
    """Return images that can be told apart by their first two pixels."""
    images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(count) % 256, torch.arange(count) // 256
    return images


def test_the_pool_is_used_in_turn_and_never_shortens_the_real_data(monkeypatch: pytest.MonkeyPatch) -> None:
    place = shop()
    samples = place.of_classes(2, 3)  # forty of them, in batches of eight
    real, beside = watched(objective_of(place, samples, numbered(24)), 3, monkeypatch)
    assert real == [8] * 15
    assert [len(batch) for batch in beside] == [8] * 15
    for turn in range(5):
        assert sorted(torch.cat(beside[3 * turn : 3 * turn + 3]).tolist()) == list(range(24))
    assert beside[0].tolist() != beside[3].tolist()


@pytest.mark.parametrize(("each", "batches", "used"), [(64, 16, 6), (32, 8, 3)])
def test_as_released_a_pool_that_is_too_small_ends_the_epoch(
    each: int, batches: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,560 images where 8,000 were asked for: 6 of 16 batches, or 3 of 8."""
    place = Workshop("target", OLD, 4, blobs(per_class=64), **TargetConfig.editions["released"])
    objective = objective_of(place, place.of_classes(2, 3, each=each), numbered(2560))
    assert len(super(PoolObjective, objective).epoch(generator(1))) == batches
    real, beside = watched(objective, 2, monkeypatch)
    assert real == [8] * (2 * used)
    for epoch in (beside[:used], beside[used:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(2560))


def test_as_released_a_pool_that_is_large_enough_leaves_the_epoch_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    place = shop(replay="epoch", images=30)
    real, beside = watched(objective_of(place, place.of_classes(2, 3), numbered(30)), 1, monkeypatch)
    assert real == [8] * 5
    assert sorted(torch.cat(beside).tolist()) == list(range(30))


def test_without_a_teacher_or_a_pool_an_epoch_is_the_real_data() -> None:
    place = shop(replay="epoch")
    assert len(objective_of(place, place.of_classes(2, 3)).epoch(generator(1))) == 5
    first = Workshop("target", 0, 4, replay="epoch")
    assert len(objective_of(first, first.of_classes(0, 1), pool_of()).pool) == 0, "in the first block nothing is old"


# --- what travels -------------------------------------------------------------------------------------------------


@cache
def heard() -> tuple[list[Exchange], list[PoolState], list[int]]:
    """Return what was sent in each round of three blocks, the server's state then, and the bytes sent to clients."""
    made = federation("target", scenario={"tasks": (1, 1, 2), "rounds_per_task": 2})
    listener = Listener(made.simulation.engine)
    object.__setattr__(made.simulation, "engine", listener)
    states, down = [], []
    for state, record in made.simulation.rounds(made.simulation.start()):
        assert isinstance(state.server.role_state, PoolState)
        states.append(state.server.role_state)
        down.append(record.bytes_down)
    return listener.heard, states, down


def test_from_the_second_block_on_a_pool_travels_by_its_digest_and_stays_for_the_block() -> None:
    exchanges, states, _ = heard()
    assert [len(state.images) for state in states] == [0, 0, 40, 40, 40, 40]
    named = [exchange.broadcast.pools for exchange in exchanges]
    assert named[:2] == [(), ()]
    assert named[2] == named[3] != named[4] == named[5]
    for exchange, state in zip(exchanges[2:], states[2:], strict=True):
        assert exchange.broadcast.extra == SyntheticPool(*exchange.broadcast.pools)
        sent = exchange.models[exchange.broadcast.pools[0]]
        assert sent.keys() == {IMAGES}
        assert torch.equal(sent[IMAGES], state.images)
        assert model_digest(sent) == exchange.broadcast.pools[0]
        assert len(exchange.models) == 3, "the global model, the teacher and the pool are what a site keeps"


def test_a_report_has_a_model_and_nothing_else() -> None:
    exchanges, _, _ = heard()
    reports = [answer.report for exchange in exchanges for answer in exchange.answers if isinstance(answer, Reply)]
    found = [report for report in reports if report is not None]
    assert len(found) > 6
    for report in found:
        assert (report.rows, report.parts) == ({}, {})


def test_a_report_with_parts_is_refused() -> None:
    place = shop()
    assert place.objection(place.report()) is None
    assert "unasked" in str(place.objection(place.report(rows={"head.weight": torch.ones(4)})))


def test_a_resumed_server_sends_the_same_pool() -> None:
    place = shop()
    state = PoolState(pool_of())
    resumed = decode(encode(state), PoolState)
    first, again = (place.roles.server.extra(kept, place.context) for kept in (state, resumed))
    assert isinstance(again.message, SyntheticPool)
    assert again.message == first.message
    assert again.message.digest in again.pools
    assert {digest: model_digest(pool) for digest, pool in again.pools.items()} == {key: key for key in first.pools}
    assert place.roles.server.extra(place.roles.server.init(), place.context).message is None


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "cnn"])
def test_a_network_without_batch_norm_is_refused_unless_nothing_is_to_be_matched(name: str) -> None:
    settings = ["method.name=target", f"model.name={name}", "model.norm=group"]
    with pytest.raises(ConfigError, match=r"model\.norm: found group, should be batch, or method\.statistics_weight 0"):
        load_config("digits", settings)
    assert load_config("digits", [*settings, "method.statistics_weight=0"]).model.norm == "group"


def test_a_pool_that_no_checkpoint_could_hold_is_refused() -> None:
    config = TargetConfig(images=30_000)
    with pytest.raises(
        ConfigError, match=r"method\.images: found 30000, should be at most 14266 for images of 3 x 224"
    ):
        get_method("target").build(config, Setting(0, (3, 224, 224), None))
    assert get_method("target").build(TargetConfig(), Setting(0, (3, 224, 224), None)).client.memory == 0


def test_the_released_edition_never_has_a_student_and_makes_a_third_of_the_images() -> None:
    released, ours = (TargetConfig(**TargetConfig.editions[name]) for name in ("released", "fcil"))
    assert released.calls * released.synthesis_batch == 2560 < released.images
    assert released.calls < released.adversarial_from
    assert ours.calls * ours.synthesis_batch >= ours.images
    assert ours.calls > ours.adversarial_from
    assert (released.distillation_weight, released.student_rate) == (25.0, 0.2)
    assert (released.replay, released.generator_width) == ("epoch", 64)
