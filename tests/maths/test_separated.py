import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from fcil.maths.separated import separated_cross_entropy, taskwise_distillation

TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_each_part_is_the_cross_entropy_of_a_model_of_its_own(dtype: torch.dtype) -> None:
    """Two linear heads trained apart, old samples by one and new ones by the other, have the joint head's gradients."""
    features, labels = draws(8, 4, dtype=dtype), torch.tensor([0, 4, 2, 3, 1, 4, 3, 0])
    old = labels < 3
    weight = draws(5, 4, seed=1, dtype=dtype).requires_grad_(True)
    loss = separated_cross_entropy(features @ weight.T, labels, 3).sum()
    (gradient,) = torch.autograd.grad(loss, weight)
    old_head, new_head = (weight.detach()[part].clone().requires_grad_(True) for part in (slice(3), slice(3, 5)))
    old_loss = F.cross_entropy(features[old] @ old_head.T, labels[old], reduction="sum")
    new_loss = F.cross_entropy(features[~old] @ new_head.T, labels[~old] - 3, reduction="sum")
    torch.testing.assert_close(loss, old_loss + new_loss)
    apart = torch.cat([torch.autograd.grad(old_loss, old_head)[0], torch.autograd.grad(new_loss, new_head)[0]])
    torch.testing.assert_close(gradient, apart)


def test_every_example_keeps_its_place() -> None:
    logits, labels = draws(6, 5), torch.tensor([4, 0, 3, 1, 2, 3])
    found = separated_cross_entropy(logits, labels, 2)
    for row, label in enumerate(labels.tolist()):
        part = logits[row, :2] if label < 2 else logits[row, 2:]
        wanted = torch.logsumexp(part, 0) - logits[row, label]
        torch.testing.assert_close(found[row], wanted)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 6), st.integers(0, 1000))
def test_a_sample_has_no_gradient_at_all_in_the_other_part(labels: list[int], old_classes: int, seed: int) -> None:
    logits, target = draws(len(labels), 6, seed=seed).requires_grad_(True), torch.tensor(labels)
    (gradient,) = torch.autograd.grad(separated_cross_entropy(logits, target, old_classes).sum(), logits)
    for row, label in zip(gradient.tolist(), labels, strict=True):
        other = row[old_classes:] if label < old_classes else row[:old_classes]
        assert other == [0.0] * len(other)
        assert sum(row) == pytest.approx(0, abs=1e-12)


def test_the_separated_loss_has_the_gradient_of_its_differences() -> None:
    labels = torch.tensor([0, 4, 2])
    assert gradcheck(lambda values: separated_cross_entropy(values, labels, 3), (draws(3, 5).requires_grad_(True),))


@pytest.mark.parametrize("dtype", TYPES)
def test_without_old_or_without_new_outputs_it_is_the_ordinary_cross_entropy(dtype: torch.dtype) -> None:
    logits, labels = draws(4, 5, dtype=dtype), torch.tensor([0, 4, 2, 2])
    wanted = F.cross_entropy(logits, labels, reduction="none")
    for old_classes in (0, 5):
        found = separated_cross_entropy(logits, labels, old_classes)
        assert found.dtype == dtype
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("label", [0, 1])
def test_a_part_of_one_class_has_nothing_to_learn(label: int) -> None:
    logits = draws(1, 2).requires_grad_(True)
    loss = separated_cross_entropy(logits, torch.tensor([label]), 1)
    assert loss.tolist() == [0.0]
    assert torch.autograd.grad(loss.sum(), logits)[0].tolist() == [[0.0, 0.0]]


def test_an_empty_batch_has_no_losses() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert separated_cross_entropy(torch.zeros(0, 4), none, 2).shape == (0,)
    assert taskwise_distillation(torch.zeros(0, 4), torch.zeros(0, 2), [2, 4]).shape == (0,)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.0])
def test_the_distillation_is_a_sum_of_divergences_over_the_tasks(temperature: float) -> None:
    logits, teacher = draws(4, 9), draws(4, 6, seed=1)
    found = taskwise_distillation(logits, teacher, [1, 4, 6, 9], temperature)
    wanted = torch.zeros(4, dtype=torch.float64)
    for first, last in itertools.pairwise([0, 1, 4, 6]):
        old = Categorical(logits=teacher[:, first:last] / temperature)
        wanted += temperature**2 * kl_divergence(old, Categorical(logits=logits[:, first:last] / temperature))
    torch.testing.assert_close(found, wanted)


def test_the_distillation_has_the_gradient_of_its_differences_and_none_in_the_newest_block() -> None:
    logits, teacher = draws(3, 6).requires_grad_(True), draws(3, 4, seed=1)
    assert gradcheck(lambda values: taskwise_distillation(values, teacher, [2, 4, 6]), (logits,))
    (gradient,) = torch.autograd.grad(taskwise_distillation(logits, teacher, [2, 4, 6]).sum(), logits)
    blocks = [slice(0, 2), slice(2, 4)]
    wanted = [2 * (F.softmax(logits.detach()[:, b] / 2, 1) - F.softmax(teacher[:, b] / 2, 1)) for b in blocks]
    torch.testing.assert_close(gradient[:, :4], torch.cat(wanted, 1))
    assert torch.equal(gradient[:, 4:], torch.zeros(3, 2, dtype=torch.float64))


@given(st.integers(0, 1000), st.floats(-50, 50), st.floats(-50, 50))
def test_the_distillation_does_not_compare_tasks_with_each_other(seed: int, first: float, second: float) -> None:
    """A shift of a whole block is a bias between tasks, which a softmax a task cannot see."""
    teacher = draws(2, 5, seed=seed)
    shifted = teacher + torch.tensor([first] * 2 + [second] * 3, dtype=torch.float64)
    assert taskwise_distillation(shifted, teacher, [2, 5]).abs().max() <= 1e-10


@pytest.mark.parametrize("dtype", TYPES)
def test_without_a_teachers_output_the_distillation_is_zero(dtype: torch.dtype) -> None:
    logits = draws(3, 2, dtype=dtype).requires_grad_(True)
    found = taskwise_distillation(logits, torch.zeros(3, 0, dtype=dtype), [2])
    assert found.dtype == dtype
    assert found.tolist() == [0.0, 0.0, 0.0]
    assert not torch.autograd.grad(found.sum(), logits)[0].any()


def test_a_teacher_that_ends_inside_a_block_is_followed_as_far_as_it_goes() -> None:
    logits, teacher = draws(2, 6), draws(2, 3, seed=1)
    assert torch.equal(
        taskwise_distillation(logits, teacher, [2, 6]), taskwise_distillation(logits, teacher, [2, 3, 6])
    )
