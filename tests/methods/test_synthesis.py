"""The server's pool: images that the finished network takes for its data, a student that errs, and what is kept."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, get_args

import pytest
import torch
from support.objectives import SOURCE, Workshop, make_local
from torch import Tensor

from fcil.core.messages import ModelState, generator, model_digest
from fcil.maths.distillation import distillation
from fcil.maths.synthesis import Where
from fcil.methods.synthesis import STUDENT_LAST, Student, SynthesisConfig, as_pixels
from fcil.methods.target import TargetConfig, TargetSynthesis
from fcil.models import ModelConfig, grow, initial_state
from fcil.models.trainer import Trainer

SMALL: dict[str, Any] = {
    "images": 1000,
    "calls": 4,
    "synthesis_batch": 16,
    "generator_width": 4,
    "latent": 8,
    "generator_steps": 3,
    "adversarial_from": 2,
    "student_steps": 2,
}
SHAPE = SOURCE.image_shape


@cache
def finished() -> ModelState:
    """Return a model that has learned three classes."""
    return Workshop("target", 3, 6).pretrained().teacher


def synthesis(seed: int = 5, machine: Trainer | None = None, **changed: Any) -> TargetSynthesis:
    config = TargetConfig(**{**SMALL, **changed})
    return TargetSynthesis(config, finished(), SHAPE, seed, machine or make_local().machine)


def gap_of(images: Tensor) -> float:
    """Return L_bn of a pool under the finished model, by itself."""
    judge = synthesis(synthesis_batch=len(images))
    with torch.no_grad():
        judge.teacher(images.float() / 255)
        return float(judge._gap())


def test_a_pool_is_as_many_images_as_were_made_and_a_function_of_the_seed() -> None:
    before = torch.random.get_rng_state()
    first, again, other = synthesis().pool(), synthesis().pool(), synthesis(6).pool()
    assert (first.shape, first.dtype) == ((64, *SHAPE), torch.uint8)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_of_more_images_than_are_wanted_the_last_are_kept() -> None:
    assert torch.equal(synthesis(images=40).pool(), synthesis().pool()[-40:])


def test_the_pool_s_statistics_are_nearer_to_the_data_s_than_those_of_noise() -> None:
    noise = torch.randint(0, 256, (128, *SHAPE), generator=generator(1), dtype=torch.uint8)
    made = synthesis(calls=16, generator_steps=10, synthesis_batch=32, adversarial_weight=0.0, images=128).pool()
    assert gap_of(made) < gap_of(noise)


def test_images_are_of_the_labels_that_were_drawn_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without statistics and student all that is asked for is that the network names the drawn classes."""
    shown: list[tuple[Tensor, Tensor]] = []
    loss = TargetSynthesis._loss

    def noting(self: TargetSynthesis, images: Tensor, labels: Tensor, adversarial: bool) -> Tensor:
        shown.append((images.detach(), labels))
        return loss(self, images, labels, adversarial)

    monkeypatch.setattr(TargetSynthesis, "_loss", noting)
    plain = {"calls": 2, "generator_steps": 60, "statistics_weight": 0.0, "adversarial_weight": 0.0}
    made = synthesis(**plain, synthesis_batch=32, label_weight=1.0, latent_rate=0.1)
    made.pool()
    images, labels = shown[-1]
    with torch.no_grad():
        right = made.teacher(images).argmax(1) == labels
    assert right.float().mean() > 0.6
    assert len(labels.unique()) == 3
    assert len({tuple(drawn.tolist()) for _, drawn in shown}) == 2, "labels are those of a call"


def test_making_images_leaves_the_model_as_it_was() -> None:
    made = synthesis()
    made.pool()
    assert model_digest(made.teacher.state_dict()) == model_digest(finished())
    assert all(parameter.grad is None for parameter in made.teacher.parameters())


# --- one call -----------------------------------------------------------------------------------------------------


def test_the_generator_moves_by_the_sum_of_its_copy_s_gradients() -> None:
    """Adam's first step is the rate times the gradient's sign, whatever its size: here ten times the inner rate."""
    made = synthesis(generator_steps=10, generator_rate=1e-3)
    before = made.generator.linear.weight.detach().clone()
    made._call(0, adversarial=False)
    gradient = made.generator.linear.weight.grad
    assert gradient is not None
    moved = made.generator.linear.weight.detach() - before
    clear = gradient.abs() > 1e-5  # far above Adam's epsilon
    assert clear.float().mean() > 0.5
    torch.testing.assert_close(moved[clear], -0.01 * gradient[clear].sign(), rtol=2e-3, atol=0)


def test_the_summed_gradient_is_that_of_every_step() -> None:
    """With rates of next to nothing all steps see the same images, so the sum is a multiple of one step's gradient."""
    still = {"generator_rate": 1e-12, "latent_rate": 1e-12}
    gradients = []
    for steps in (1, 4):
        made = synthesis(generator_steps=steps, **still)
        made._call(0, adversarial=False)
        assert made.generator.linear.weight.grad is not None
        gradients.append(made.generator.linear.weight.grad)
    torch.testing.assert_close(gradients[1], 4 * gradients[0], rtol=1e-3, atol=1e-4 * float(gradients[0].abs().max()))


def test_of_a_call_s_steps_the_images_with_the_lowest_loss_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    values = iter([3.0, 1.0, 2.0])

    def loss(self: TargetSynthesis, images: Tensor, labels: Tensor, adversarial: bool) -> Tensor:
        seen.append(images.detach().clone())
        self.teacher(images)  # for the statistics
        return next(values) + images.sum() - images.detach().sum()

    monkeypatch.setattr(TargetSynthesis, "_loss", loss)
    found = synthesis(generator_rate=0.1)._call(0, adversarial=False)
    assert torch.equal(found, as_pixels(seen[1]))
    assert not any(torch.equal(found, as_pixels(seen[step])) for step in (0, 2))


def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    images = torch.rand(16, *SHAPE, generator=generator(2))
    labels = torch.arange(16) % 3

    def value(**changed: Any) -> float:
        none = {"label_weight": 0.0, "statistics_weight": 0.0, "adversarial_weight": 0.0}
        made = synthesis(**{**none, **changed})
        return float(made._loss(images, labels, adversarial=True).detach())

    label, statistics = value(label_weight=1.0), value(statistics_weight=1.0)
    # Where student and network agree is left to chance, but every image is in one of the two parts.
    gains = {where: value(adversarial_weight=1.0, adversarial_where=where) for where in get_args(Where)}
    where = min(gains, key=gains.__getitem__)
    assert label > 0
    assert statistics > 0
    assert gains[where] < 0, "it is a gain"
    together = value(label_weight=0.5, statistics_weight=10.0, adversarial_weight=2.0, adversarial_where=where)
    assert together == pytest.approx(0.5 * label + 10 * statistics + 2 * gains[where], rel=1e-5)


def test_statistics_are_mixed_with_those_of_the_calls_before_once_per_call() -> None:
    made = synthesis()
    made._call(0, adversarial=False)
    first = made.kept
    made._call(1, adversarial=False)
    last = made.statistics.given()
    assert first is not None
    assert made.kept is not None
    for old, new, kept in zip(first, last, made.kept, strict=True):
        torch.testing.assert_close(kept.mean, 0.9 * old.mean + 0.1 * new.mean)
        torch.testing.assert_close(kept.variance, 0.9 * old.variance + 0.1 * new.variance)


# --- the student --------------------------------------------------------------------------------------------------


def test_without_a_student_nothing_changes_before_its_first_call_and_everything_after_it() -> None:
    whole, without = synthesis().pool(), synthesis(adversarial_weight=0.0).pool()
    assert torch.equal(whole[:32], without[:32])
    assert not torch.equal(whole[32:], without[32:])
    late = synthesis(adversarial_from=4)
    fresh = model_digest(late.student.net.state_dict())
    assert torch.equal(late.pool(), without)
    assert model_digest(late.student.net.state_dict()) == fresh, "it is not trained for nothing"


def test_the_student_learns_what_the_network_says_of_the_pool() -> None:
    made = synthesis(student_steps=60, student_rate=0.03)
    pool = SOURCE.train.images[SOURCE.train.labels < 3]
    images = pool.float() / 255

    def distance() -> float:
        with torch.no_grad():
            return float(distillation(made.student.net(images), made.teacher(images), 1.0).mean())

    before = distance()
    made.student.learn(pool, 2)
    assert distance() < 0.7 * before
    assert not made.student.net.training


def test_the_student_s_rate_falls_along_a_cosine() -> None:
    student = synthesis(calls=12, adversarial_from=2, student_rate=0.4).student
    assert student._rate(2) == pytest.approx(0.4)
    assert student._rate(7) == pytest.approx(0.2 * (1 + STUDENT_LAST))
    assert 0.4 * STUDENT_LAST < student._rate(11) < 0.03 * 0.4


def test_a_student_that_diverged_does_not_spoil_the_images() -> None:
    made, without = synthesis(), synthesis(adversarial_weight=0.0)
    images, labels = torch.rand(16, *SHAPE, generator=generator(2)), torch.arange(16) % 3
    with torch.no_grad():
        made.student.net.head.weight.fill_(math.nan)
    assert float(made._loss(images, labels, adversarial=True)) == float(without._loss(images, labels, False))
    wild = synthesis(student_rate=1e6)
    assert not torch.equal(wild.pool()[-16:], torch.zeros(16, *SHAPE, dtype=torch.uint8))
    assert not all(bool(value.isfinite().all()) for value in wild.student.net.state_dict().values())
    assert all(bool(value.isfinite().all()) for value in wild.generator.parameters())


def test_the_student_is_trained_as_a_whole_and_afresh_whatever_the_network_s_backbone_is() -> None:
    frozen = make_local(model=ModelConfig(width=2, freeze=True)).machine
    teacher = frozen.net(grow(initial_state(frozen.model, SHAPE[0], 3), 3, 4))
    student = Student(SynthesisConfig(**SMALL), teacher, 9, frozen)
    before = {name: value.clone() for name, value in student.net.state_dict().items()}
    student.learn(SOURCE.train.images[:20], 2)
    changed = {name for name, value in student.net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == before.keys()


# --- pixels -------------------------------------------------------------------------------------------------------


def test_pixels_are_rounded_and_a_network_that_diverged_gives_black_ones() -> None:
    values = torch.tensor([0.0, 1.0, 0.5, 1 / 255, 1.49 / 255, 1.51 / 255, math.nan])
    assert as_pixels(values).tolist() == [0, 255, 128, 1, 1, 2, 0]
