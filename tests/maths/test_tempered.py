"""FedCBDR's loss: two temperatures in one softmax, and a mean for old and for new samples."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths.tempered import group_weights, tempered_cross_entropy

LABELS = torch.tensor([0, 4, 2, 3, 1, 4])
OLD = LABELS < 3
TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def printed(logits: Tensor, old_temperature: float, new_temperature: float, old: float, new: float) -> Tensor:
    """Return the loss term by term, as the paper prints it."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for row, label in zip(logits, LABELS.tolist(), strict=True):
        scaled = [value / (old_temperature if place < 3 else new_temperature) for place, value in enumerate(row)]
        q = scaled[label].exp() / sum(value.exp() for value in scaled)
        groups[label < 3].append(-q.log())
    return old * sum(groups[True]) / len(groups[True]) + new * sum(groups[False]) / len(groups[False])


def ours(logits: Tensor, old_temperature: float, new_temperature: float, old: float, new: float) -> Tensor:
    losses = tempered_cross_entropy(logits, LABELS, 3, old_temperature, new_temperature)
    return (group_weights(OLD, old, new) * losses).sum()


@pytest.mark.parametrize("dtype", TYPES)
def test_the_loss_is_the_printed_one(dtype: torch.dtype) -> None:
    logits = draws(6, 5, dtype=dtype)
    torch.testing.assert_close(ours(logits, 0.9, 1.1, 1.1, 0.9), printed(logits, 0.9, 1.1, 1.1, 0.9))
    assert tempered_cross_entropy(logits, LABELS, 3).dtype == dtype


def test_the_paper_s_numbers_are_the_defaults() -> None:
    logits = draws(6, 5)
    losses = tempered_cross_entropy(logits, LABELS, 3)
    torch.testing.assert_close((group_weights(OLD) * losses).sum(), ours(logits, 0.9, 1.1, 1.1, 0.9))


def test_without_temperatures_and_with_weights_by_share_it_is_the_cross_entropy() -> None:
    logits, share = draws(6, 5), OLD.double().mean().item()
    torch.testing.assert_close(ours(logits, 1.0, 1.0, share, 1 - share), F.cross_entropy(logits, LABELS))


def test_its_gradient_is_that_of_its_differences() -> None:
    assert gradcheck(lambda values: ours(values, 0.9, 1.1, 1.1, 0.9), (draws(6, 5).requires_grad_(True),))


def test_equal_logits_by_hand() -> None:
    """Old outputs of 1 count e^(1 / 0.5), new ones e^(1 / 2)."""
    found = tempered_cross_entropy(torch.ones(2, 3), torch.tensor([0, 2]), 1, 0.5, 2.0)
    total = math.exp(2) + 2 * math.exp(0.5)
    assert found.tolist() == pytest.approx([math.log(total) - 2, math.log(total) - 0.5])


def test_a_group_that_a_batch_lacks_has_no_part_in_it() -> None:
    everything = torch.ones(4, dtype=torch.bool)
    assert group_weights(everything, 2.0, 3.0).tolist() == [0.5] * 4
    assert group_weights(~everything, 2.0, 3.0).tolist() == [0.75] * 4
    assert group_weights(everything[:0]).tolist() == []
