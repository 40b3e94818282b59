"""Bicubic scaling against PyTorch's, which smooths as well, and against a straight line."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fcil.core.messages import generator
from fcil.maths.scaling import bicubic, cubic


def test_the_kernel_is_one_at_its_place_and_zero_at_all_others() -> None:
    assert cubic(torch.tensor([0.0, 1.0, -1.0, 2.0, 3.0])).tolist() == [1, 0, 0, 0, 0]
    assert cubic(torch.tensor([0.5, 1.5], dtype=torch.float64)).tolist() == [0.5625, -0.0625]


@pytest.mark.parametrize(("before", "after"), [(8, 16), (8, 20), (32, 112), (20, 8), (16, 5)])
def test_it_is_the_interpolation_of_pytorch(before: int, after: int) -> None:
    images = torch.rand(2, 3, before, before + 3, generator=generator(0), dtype=torch.float64)
    wanted = F.interpolate(images, (after, after + 3), mode="bicubic", align_corners=False, antialias=True)
    torch.testing.assert_close(bicubic(images, after, after + 3), wanted.clamp(0, 1))


def test_it_keeps_a_straight_line_away_from_the_edges() -> None:
    ramp = torch.linspace(0.2, 0.8, 8, dtype=torch.float64).expand(1, 1, 8, 8)
    inner = bicubic(ramp, 16, 16)[0, 0, 8, 4:12]
    torch.testing.assert_close(inner.diff(), torch.full((7,), 0.3 / 7, dtype=torch.float64))
