import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from fcil.maths.entropy import official_entropy, relative_threshold, rises, softmax_entropy


@pytest.mark.parametrize("case", range(5))
def test_mean_entropy_and_signal_equal_the_released_code(golden_entropy, case: int) -> None:
    mean = official_entropy(golden_entropy[f"case{case}__logits"]).mean().item()
    previous = golden_entropy[f"case{case}__last"].item()
    assert mean == pytest.approx(golden_entropy[f"case{case}__mean"].item(), rel=1e-6)
    assert rises(mean, previous, 1.2, strict=True) == golden_entropy[f"case{case}__signal"].item()


@pytest.mark.parametrize("classes", [1, 2, 10, 100])
def test_uniform_predictions_have_the_logarithm_of_their_number(classes: int) -> None:
    logits = torch.full((2, classes), 3.5, dtype=torch.float64)
    assert softmax_entropy(logits).tolist() == pytest.approx([math.log(classes)] * 2, abs=1e-12)


def test_certain_predictions_have_none() -> None:
    assert softmax_entropy(torch.tensor([[1000.0, 0.0, 0.0], [0.0, -500.0, 0.0 - 500.0]])).tolist() == [0.0, 0.0]


def test_entropy_by_hand() -> None:
    logits = torch.log(torch.tensor([[1.0, 1.0, 2.0]], dtype=torch.float64))
    assert softmax_entropy(logits).item() == pytest.approx(1.5 * math.log(2))


def test_entropy_has_the_gradient_of_its_differences() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert gradcheck(softmax_entropy, (logits,))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(-100, 100))
def test_entropy_is_between_none_and_uniform_and_ignores_a_shift(values: list[float], shift: float) -> None:
    logits = torch.tensor([values], dtype=torch.float64)
    entropy = softmax_entropy(logits).item()
    assert -1e-12 <= entropy <= math.log(len(values)) + 1e-12
    assert softmax_entropy(logits + shift).item() == pytest.approx(entropy, abs=1e-9)


def test_the_official_entropy_adds_its_epsilon_inside_the_logarithm() -> None:
    logits = torch.log(torch.tensor([[1.0, 3.0]], dtype=torch.float64))
    wanted = -(0.25 * math.log(0.25 + 1e-5) + 0.75 * math.log(0.75 + 1e-5))
    assert official_entropy(logits).item() == pytest.approx(wanted, rel=1e-12)


def test_an_alarm_needs_the_threshold_or_more_than_it() -> None:
    assert rises(1.5, 0.5, 1.0)
    assert not rises(1.5, 0.5, 1.0, strict=True)
    assert rises(1.5, 0.25, 1.0, strict=True)
    assert not rises(1.25, 0.5, 1.0)
    assert not rises(0.5, 1.75, 1.0)


@pytest.mark.parametrize(
    ("outputs", "wanted"), [(10, 0.5 * math.log(10)), (2, 0.5 * math.log(2)), (1, 0.5 * math.log(2))]
)
def test_a_relative_threshold_is_a_share_of_the_largest_entropy(outputs: int, wanted: float) -> None:
    assert relative_threshold(0.5, outputs) == pytest.approx(wanted)
