import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fcil.maths.compensation import compensation_weights, gradient_measure


def test_the_measure_is_the_gradient_of_the_summed_loss_at_the_true_neuron() -> None:
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(20, 7, generator=draw, dtype=torch.float64).mul(4).requires_grad_(True)
    labels = torch.randint(0, 7, (20,), generator=draw)
    target = torch.eye(7, dtype=torch.float64)[labels]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient_measure(logits, labels), gradient[torch.arange(20), labels].abs())


def test_the_measure_by_hand_and_without_a_gradient_of_its_own() -> None:
    logits = torch.log(torch.tensor([[1.0, 3.0], [9.0, 1.0]])).requires_grad_(True)
    found = gradient_measure(logits, torch.tensor([1, 0]))
    torch.testing.assert_close(found, torch.tensor([0.25, 0.1]))
    assert not found.requires_grad


def test_the_measure_of_logits_in_half_precision_does_not_vanish() -> None:
    logits = torch.tensor([[5.0], [6.0], [7.0], [8.0]])
    found = gradient_measure(logits.bfloat16(), torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(found, torch.sigmoid(-logits).squeeze(1))


def test_weights_by_hand() -> None:
    measure = torch.tensor([0.2, 0.6, 0.1, 0.3, 0.8])
    old = torch.tensor([True, True, False, False, False])
    found = compensation_weights(measure, old)
    torch.testing.assert_close(found, torch.tensor([0.5, 1.5, 0.25, 0.75, 2.0]))


@pytest.mark.parametrize("kind", [True, False], ids=["only old: S_o", "only new: S_n"])
def test_a_batch_of_one_kind_uses_the_mean_of_that_kind(kind: bool) -> None:
    measure = torch.tensor([0.1, 0.2, 0.9])
    found = compensation_weights(measure, torch.full((3,), kind))
    torch.testing.assert_close(found, torch.tensor([0.25, 0.5, 2.25]))


def test_a_group_without_any_gradient_gets_weight_one() -> None:
    measure = torch.tensor([0.0, 0.0, 0.5, 1.5])
    found = compensation_weights(measure, torch.tensor([True, True, False, False]))
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 0.5, 1.5]))
    assert torch.equal(compensation_weights(torch.zeros(3), torch.tensor([True, False, False])), torch.ones(3))


def test_a_vanishing_example_in_a_living_group_gets_weight_zero() -> None:
    assert torch.equal(
        compensation_weights(torch.tensor([0.0, 1.0]), torch.tensor([True, True])), torch.tensor([0.0, 2.0])
    )


def test_an_empty_batch_has_no_weights() -> None:
    assert compensation_weights(torch.zeros(0), torch.zeros(0, dtype=torch.bool)).shape == (0,)


@given(st.lists(st.tuples(st.floats(0.001, 1), st.booleans()), min_size=1, max_size=12))
def test_the_mean_weight_is_one_in_each_group(examples: list[tuple[float, bool]]) -> None:
    measure = torch.tensor([value for value, _ in examples], dtype=torch.float64)
    old = torch.tensor([kind for _, kind in examples])
    weights = compensation_weights(measure, old)
    for group in (old, ~old):
        if group.any():
            assert weights[group].mean().item() == pytest.approx(1)
            ratio = weights[group] / measure[group]
            torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
