"""GeoDL: distillation along the geodesic from the subspace of old features to that of current ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.losses import at_least_single, in_double

GRID = 2  # feature maps are pooled to 2 x 2
LAMBDA = 10.0
RANK_TOLERANCE = 1e-5  # a singular value below this part of the largest one is noise in single precision
SINE_FLOOR = 1e-6  # a smaller principal angle has no direction of its own to turn to
FORM_FLOOR = 1e-12  # a quadratic form below it says that the kernel does not see the vector


@dataclass(frozen=True)
class FlowKernel:
    """G = integral of Phi(t) Phi(t)^T over [0, 1], with Phi(t) = A cos(t theta) - B sin(t theta)."""

    start: Tensor  # A = P_o U1, (size, dimension)
    turn: Tensor  # B = -(I - P_o P_o^T) P_c V / sin(theta), zero where the angle is
    angles: Tensor  # theta, the principal angles

    def apply(self, rows: Tensor) -> Tensor:
        """Return G x for every row x: A (L1 A^T x + L2 B^T x) + B (L2 A^T x + L3 B^T x)."""
        straight, mixed, turned = kernel_weights(self.angles)
        along, across = rows @ self.start, rows @ self.turn
        return (along * straight + across * mixed) @ self.start.T + (along * mixed + across * turned) @ self.turn.T


def kernel_weights(angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the diagonals of L1, L2, L3: the integrals of cos^2, -cos sin and sin^2 of t theta over [0, 1].

    With s = sin(2 theta) / (2 theta) they are (1 + s) / 2, (cos(2 theta) - 1) / (4 theta) and (1 - s) / 2, and 1, 0, 0
    at theta = 0.
    """
    sinc = torch.sinc(2 * angles / math.pi)
    return (1 + sinc) / 2, -torch.sin(angles) * torch.sinc(angles / math.pi) / 2, (1 - sinc) / 2


def flow_kernel(start: Tensor, end: Tensor) -> FlowKernel:
    """Return the geodesic flow kernel between two subspaces, each given by an orthonormal basis in its columns.

    No complement of the first basis is needed. The angles come from sine and cosine together: the arc cosine alone
    loses half of the digits of a small angle.
    """
    left, cosines, right = torch.linalg.svd(start.T @ end, full_matrices=False)
    turned = end @ right.T
    away = turned - start @ (start.T @ turned)
    sines = torch.linalg.vector_norm(away, dim=0)
    turn = torch.where(sines >= SINE_FLOOR, -away / sines.clamp(min=SINE_FLOOR), torch.zeros_like(away))
    return FlowKernel(start @ left, turn, torch.atan2(sines, cosines))


def pooled_features(maps: Tensor) -> Tensor:
    """Return the maps before the average pool, pooled to 2 x 2, flattened, and normalised to length one per example."""
    return F.normalize(F.adaptive_avg_pool2d(maps, GRID).flatten(1), dim=1)


def batch_kernel(features: Tensor, old_features: Tensor) -> FlowKernel:
    """Return the kernel between the subspaces of the old and the current features of one batch, without gradients.

    Each sample loses the mean of its own entries; a basis is the first d = b - 2 left singular vectors. d is capped by
    both ranks and is at least one, so that a batch of one or two has a kernel too; features without any spread have
    the empty one. Computed in double precision, returned in that of the features.
    """
    (old_basis, old_rank), (basis, rank) = _basis(old_features), _basis(features)
    dimension = min(max(len(features) - 2, 1), old_rank, rank)
    kernel = flow_kernel(old_basis[:, :dimension], basis[:, :dimension])
    return FlowKernel(kernel.start.to(features), kernel.turn.to(features), kernel.angles.to(features))


def _basis(features: Tensor) -> tuple[Tensor, int]:
    """Return the left singular vectors of the centred features, one per column, and how many of them carry weight."""
    rows = in_double(features)
    vectors, values, _ = torch.linalg.svd((rows - rows.mean(1, keepdim=True)).T, full_matrices=False)
    floor = RANK_TOLERANCE * torch.clamp(values[:1], min=1.0)  # examples have length one, so noise is measured by it
    return vectors, int((values > floor).sum())


def geodesic_loss(features: Tensor, old_features: Tensor, form: Literal["cosine", "released"] = "cosine") -> Tensor:
    """Return L_geo per example, for normalised features as `pooled_features` gives them; G is a constant.

    cosine (the paper): 1 - x_old^T G x / sqrt(x_old^T G x_old  x^T G x), zero for an example that G does not see.
    released (the training path of the code): (x_old - x)^T G (x_old - x).
    """
    with torch.autocast(features.device.type, enabled=False):  # a difference of nearly equal numbers
        return _geodesic_loss(at_least_single(features), at_least_single(old_features.detach()), form)


def _geodesic_loss(features: Tensor, old: Tensor, form: Literal["cosine", "released"]) -> Tensor:
    kernel = batch_kernel(features, old)
    if form == "released":
        difference = old - features
        return (difference * kernel.apply(difference)).sum(1)
    image, old_image = kernel.apply(features), kernel.apply(old)
    forms = (features * image).sum(1) * (old * old_image).sum(1)
    seen = forms > FORM_FLOOR**2
    cosine = (old * image).sum(1) / torch.where(seen, forms, torch.ones_like(forms)).sqrt()
    return torch.where(seen, 1 - cosine, torch.zeros_like(cosine))


def geodesic_weight(old_classes: int, new_classes: int, base: float = LAMBDA) -> float:
    """Return lambda = 10 sqrt(C_o / C_n).

    >>> geodesic_weight(40, 10)
    20.0
    """
    return base * math.sqrt(old_classes / new_classes)
