"""BiC: distillation of the old outputs, and a scale and a shift that correct the bias towards the newest block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.distillation import TEMPERATURE
from fcil.maths.losses import cross_entropy, in_double

BETA_PENALTY = 0.1  # weight of beta^2 / 2 in stage 2
HELD_OUT = 0.1  # part of each old class's exemplars that stage 2 is fitted on

GRADIENT_TOLERANCE = 1e-10
NEWTON_STEPS = 100
HALVINGS = 60
DAMPING = 1e-12  # keeps the Hessian invertible where the newest block is empty or the softmax saturated
SUFFICIENT_DECREASE = 1e-4  # Armijo's constant
ROUNDING = 1e-15  # a loss in double precision cannot tell two points apart below it


class Correction(NamedTuple):
    """The correction alpha z + beta of the newest block's outputs; the default changes nothing."""

    alpha: float = 1.0
    beta: float = 0.0


def distillation_share(old_classes: int, classes: int) -> float:
    """Return lambda = C_o / C of stage 1, L = lambda L_d + (1 - lambda) L_c.

    >>> distillation_share(40, 50)
    0.8
    """
    return old_classes / classes


def softened_cross_entropy(logits: Tensor, teacher_logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return L_d = -sum_k softmax(teacher / T)_k log softmax(z / T)_k over the teacher's outputs, without a factor T^2.

    The teacher's logits are those after its own bias correction. Without old outputs the loss is zero.
    """
    target = F.softmax(teacher_logits / temperature, 1)
    return -(target * F.log_softmax(logits[:, : teacher_logits.shape[1]] / temperature, 1)).sum(1)


def correct(logits: Tensor, old_classes: int, correction: Correction) -> Tensor:
    """Return the logits with alpha z + beta in the newest block, which begins after `old_classes` outputs.

    >>> import torch
    >>> correct(torch.tensor([[1.0, 2.0, 4.0]]), 1, Correction(0.5, -1.0)).tolist()
    [[1.0, 0.0, 1.0]]
    """
    newest = correction.alpha * logits[:, old_classes:] + correction.beta
    return torch.cat([logits[:, :old_classes], newest], 1)


def fit_correction(logits: Tensor, labels: Tensor, old_classes: int, *, alpha_penalty: float = 0.0) -> Correction:
    """Return the minimiser of the mean cross-entropy of the corrected logits + 0.1 beta^2 / 2 on a validation set.

    Damped Newton steps from (1, 0) in double precision until the gradient vanishes; the loss is convex. Where no finite
    alpha is best, because scaling separates the validation set, it ends at one whose gradient is below the tolerance.
    `alpha_penalty` adds its multiple of (alpha - 1)^2 / 2, which the paper does not have. Without samples or without
    a newest block nothing is corrected.
    """
    if len(labels) == 0:
        return Correction()
    problem = _Objective(in_double(logits), labels, old_classes, alpha_penalty)
    point = problem.start
    for _ in range(NEWTON_STEPS):
        gradient, hessian = problem.derivatives(point)
        if bool(gradient.abs().max() <= GRADIENT_TOLERANCE):
            break
        direction = -torch.linalg.solve(hessian + DAMPING * torch.eye(2).to(hessian), gradient)
        moved = problem.descend(point, direction, float(gradient @ direction))
        if moved is None:
            break
        point = moved
    return Correction(*point.tolist())


class _Objective:
    """The loss of stage 2 as a function of (alpha, beta): corrected logits are `fixed + slopes @ (alpha, beta)`."""

    def __init__(self, logits: Tensor, labels: Tensor, old_classes: int, alpha_penalty: float) -> None:
        self.labels = labels.to(logits.device)
        self.fixed, self.slopes = logits.clone(), torch.stack([logits, torch.ones_like(logits)], 2)
        self.fixed[:, old_classes:] = 0
        self.slopes[:, :old_classes] = 0
        self.start = logits.new_tensor(Correction())
        self.penalty = logits.new_tensor([alpha_penalty, BETA_PENALTY])

    def loss(self, point: Tensor) -> float:
        entropy = cross_entropy(self.fixed + self.slopes @ point, self.labels).mean()
        return float(entropy + (self.penalty * (point - self.start).square()).sum() / 2)

    def derivatives(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient and Hessian: mean and covariance of the slopes under the softmax, plus the penalty's."""
        p = F.softmax(self.fixed + self.slopes @ point, 1)
        mean = torch.einsum("nc,nci->ni", p, self.slopes)
        true = self.slopes[torch.arange(len(self.labels)), self.labels]
        centred = self.slopes - mean[:, None]  # a difference of moments could lose its sign to rounding
        covariance = torch.einsum("nc,nci,ncj->ij", p, centred, centred) / len(self.labels)
        gradient = (mean - true).mean(0) + self.penalty * (point - self.start)
        return gradient, covariance + torch.diag(self.penalty)

    def descend(self, point: Tensor, direction: Tensor, slope: float) -> Tensor | None:
        """Return the first of the full step, half of it, ... that lowers the loss enough, or None."""
        before = self.loss(point)
        for halving in range(HALVINGS):
            share = 0.5**halving
            allowed = before + SUFFICIENT_DECREASE * share * slope + ROUNDING * abs(before)
            if self.loss(point + share * direction) <= allowed:
                return point + share * direction
        return None


def held_out_per_class(old_counts: Sequence[int], new_counts: Sequence[int], fraction: float = HELD_OUT) -> int:
    """Return how many samples of every class, old and new alike, stage 2 holds out: floor(0.1 exemplars), at least one.

    The class with the fewest exemplars decides, so that the validation set is balanced, and one sample of each class
    is left to train on. Zero means that stage 2 is skipped: a class has fewer than two samples, or there are no old or
    no new classes.

    >>> held_out_per_class([20, 20], [500, 400]), held_out_per_class([5, 9], [3]), held_out_per_class([1, 9], [3])
    (2, 1, 0)
    """
    smallest = min([*old_counts, *new_counts], default=0)
    if not old_counts or not new_counts or smallest < 2:
        return 0
    wanted = math.floor(round(fraction * min(old_counts), 9))  # 0.29 * 100 is 28.999999999999996
    return min(max(wanted, 1), smallest - 1)


def balanced_rows(labels: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Return the rows of `per_class` samples of each class (all of a smaller one), drawn at random, in rising order."""
    return first_rows(labels, per_class, torch.randperm(len(labels), generator=generator).to(labels.device))


def first_rows(labels: Tensor, per_class: int, order: Tensor) -> Tensor:
    """Return the rows of the first `per_class` samples of each class in an order of the rows, in rising order.

    >>> import torch
    >>> first_rows(torch.tensor([5, 7, 5, 7]), 1, torch.tensor([3, 2, 1, 0])).tolist()
    [2, 3]
    """
    chosen = [order[labels[order] == label][:per_class] for label in torch.unique(labels)]
    return torch.cat([order[:0], *chosen]).sort().values
