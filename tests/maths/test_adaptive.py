from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fcil.maths.adaptive import accelerated_measure, adaptive_weights
from fcil.maths.compensation import compensation_weights

Examples = list[tuple[float, int, bool]]  # |G|, block, learned before


def weights_of(examples: Examples, before: int, grouping: str) -> torch.Tensor:
    measure = torch.tensor([value for value, _, _ in examples], dtype=torch.float64)
    block = torch.tensor([number for _, number, _ in examples])
    old = torch.tensor([learned for _, _, learned in examples], dtype=torch.bool)
    return adaptive_weights(measure, block, old, before, grouping)  # type: ignore[arg-type]


def slowly(examples: Examples, before: int, grouping: str) -> list[float]:
    """Return the weights one by one: each is a sum over the groups that its example belongs to."""
    groups = [[row for row, (_, _, learned) in enumerate(examples) if not learned]]
    for last in range(before):
        first = 0 if grouping == "cumulative" else last
        groups.append([row for row, (_, block, learned) in enumerate(examples) if learned and first <= block <= last])
    found = [0.0] * len(examples)
    for group in groups:
        mean = math.fsum(examples[row][0] for row in group) / max(1, len(group))
        for row in group:
            found[row] += examples[row][0] / mean if mean > 0 else 1.0
    return found


@pytest.mark.parametrize("before", range(1, 10))
def test_two_new_samples_weigh_as_their_gradients_to_a_power_that_grows_with_the_blocks(before: int) -> None:
    measure, new = torch.tensor([0.9, 0.1], dtype=torch.float64), torch.tensor([False, False])
    powered = accelerated_measure(measure, before)
    large, small = adaptive_weights(powered, torch.tensor([before] * 2), new, before, "block").tolist()
    assert large / small == pytest.approx(9 ** (before / (before + 1)), rel=1e-12)
    plain = compensation_weights(measure, new).tolist()
    assert plain[0] / plain[1] == pytest.approx(9), "GLFC's weights"


def test_in_the_first_block_gradients_stay_as_they_are() -> None:
    measure = torch.tensor([0.9, 0.1])
    assert torch.equal(accelerated_measure(measure, 0), measure)
    assert accelerated_measure(torch.zeros(2), 3).tolist() == [0, 0]


@pytest.mark.parametrize("before", [1, 4, 9])
def test_with_equal_gradients_older_blocks_weigh_more_if_groups_are_cumulative_and_all_the_same_if_not(
    before: int,
) -> None:
    examples = [(0.3, block, block < before) for block in range(before + 1) for _ in range(3)]
    cumulative = weights_of(examples, before, "cumulative").view(before + 1, 3)
    expected = [*range(before, 0, -1), 1]  # the old blocks, oldest first, and the new one
    torch.testing.assert_close(cumulative, torch.tensor(expected, dtype=torch.float64)[:, None].expand(-1, 3))
    assert torch.allclose(weights_of(examples, before, "block"), torch.ones(1, dtype=torch.float64))


def test_weights_by_hand() -> None:
    examples = [(0.2, 0, True), (0.6, 0, True), (0.4, 1, True), (0.1, 2, False), (0.3, 2, False)]
    # means: block 0 has 0.4, block 1 has 0.4, both together 0.4, the new samples 0.2
    assert weights_of(examples, 2, "block").tolist() == pytest.approx([0.5, 1.5, 1, 0.5, 1.5])
    assert weights_of(examples, 2, "cumulative").tolist() == pytest.approx([1, 3, 1, 0.5, 1.5])


def test_a_class_of_an_old_block_that_was_not_learned_is_a_new_one() -> None:
    examples = [(0.2, 0, False), (0.6, 1, False), (0.5, 0, True)]
    for grouping in ("block", "cumulative"):
        assert weights_of(examples, 1, grouping).tolist() == pytest.approx([0.5, 1.5, 1])


def test_groups_without_any_gradient_count_one_each() -> None:
    examples = [(0.0, 0, True), (0.0, 1, True), (0.0, 2, False)]
    assert weights_of(examples, 2, "cumulative").tolist() == [2, 1, 1]
    assert weights_of(examples, 2, "block").tolist() == [1, 1, 1]
    assert weights_of([], 2, "block").shape == (0,)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.booleans()), max_size=12),
    st.sampled_from(["block", "cumulative"]),
)
def test_weights_are_those_of_a_slow_computation(drawn: Examples, grouping: str) -> None:
    examples = [(value, block, learned and block < 3) for value, block, learned in drawn]  # the fourth block is new
    assert weights_of(examples, 3, grouping).tolist() == pytest.approx(slowly(examples, 3, grouping))
