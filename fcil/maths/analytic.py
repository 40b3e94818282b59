"""Closed-form heads from sums over samples: ridge regression, generalised cross-validation and the Gaussian rule.

The sums are G = sum of h h^T over all samples, the sum of h for each class, and the samples of each class. They add up
over clients and rounds, so a head that follows from them does not depend on how the samples are split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

DECADES = tuple(10.0**power for power in range(-6, 3))  # penalties that are tried, in mean eigenvalues of G
SATURATED = 1e-9  # a share of residual degrees of freedom below which the cross-validation says nothing
ROUNDING, TINY = 1e-9, 1e-300  # of G's trace, by which sums may miss what is possible
SMALLEST = 1e-12  # variance of features below which they are not standardised any further
ABSENT = torch.finfo(torch.float32).min  # bias of a class without samples


@dataclass(frozen=True)
class Sums:
    """The sums over some samples, in double precision."""

    gram: Tensor  # features x features
    classes: Tensor  # classes x features: the sum of each class's features
    counts: Tensor  # samples of each class

    @property
    def means(self) -> Tensor:
        """Return each class's mean; that of a class without samples is zero."""
        return self.classes / self.counts.clamp(min=1)[:, None]

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.gram + other.gram, self.classes + other.classes, self.counts + other.counts)

    def exact(self) -> Sums:
        """Return the sums with rounding errors set to zero where all samples of a class, or all, were taken out."""
        some = self.counts > 0
        return Sums(self.gram * some.any(), self.classes * some[:, None], self.counts)

    def widened(self, classes: int) -> Sums:
        """Return the sums with a row of zeros for each class that is new: a new class changes nothing else."""
        more = classes - len(self.counts)
        return Sums(self.gram, F.pad(self.classes, (0, 0, 0, more)), F.pad(self.counts, (0, more)))


def feature_sums(features: Tensor, targets: Tensor, classes: int) -> Sums:
    """Return the sums over samples with these features and outputs."""
    h = features.to(torch.float64)
    totals = h.new_zeros(classes, h.shape[1]).index_add(0, targets, h)
    return Sums(h.T @ h, totals, torch.bincount(targets, minlength=classes).to(h))


def projected(features: Tensor, matrix: Tensor) -> Tensor:
    """Return ReLU(f R): each sample's features, standardised over themselves, times a matrix of random numbers."""
    standardised = F.layer_norm(features, features.shape[-1:], eps=SMALLEST)
    return F.relu(standardised @ matrix.to(features.dtype))


def triangle(gram: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row: all there is to send."""
    rows, columns = torch.triu_indices(*gram.shape, device=gram.device)
    return gram[rows, columns]


def symmetric(packed: Tensor) -> Tensor:
    """Return the symmetric matrix of an upper triangle."""
    size = math.isqrt(2 * len(packed))
    rows, columns = torch.triu_indices(size, size, device=packed.device)
    gram = packed.new_empty(size, size)
    gram[rows, columns] = packed
    gram[columns, rows] = packed
    return gram


def are_possible(sums: Sums, size: float = 0.0, error: float = 0.0) -> bool:
    """Say whether these can be the sums over some samples, up to the rounding of sums as large as `size`.

    Each number may be wrong by `error`.

    No count is below zero, a class without samples has no sum, and G - sum mu_c C_c^T, the scatter within classes, has
    no negative eigenvalue.
    """
    slack = ROUNDING * max(trace(sums), size) + TINY + 2 * error * len(sums.gram)
    scatter = sums.gram - sums.means.T @ sums.classes
    _, failed = torch.linalg.cholesky_ex(scatter + slack * torch.eye(len(scatter), dtype=scatter.dtype))
    strays = sums.classes[sums.counts == 0].square() > slack
    return not bool(failed) and not bool((sums.counts < 0).any()) and not bool(strays.any())


def trace(sums: Sums) -> float:
    """Return the trace of G: the squared length of all features together."""
    return float(sums.gram.diagonal().sum())


def ridge(gram: Tensor, classes: Tensor, penalty: float) -> Tensor:
    """Return (G + penalty I)^-1 C, a row per class: the minimiser of sum |y - h W|^2 + penalty |W|^2 for one-hot y."""
    damped = gram + penalty * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.cholesky_solve(classes.T, torch.linalg.cholesky(damped)).T


def penalty_grid(gram: Tensor) -> Tensor:
    """Return penalties a decade apart, around the mean eigenvalue of G: scaled features choose the scaled penalty."""
    mean = gram.diagonal().mean()
    return torch.tensor(DECADES, dtype=gram.dtype) * torch.where(mean > 0, mean, 1.0).cpu()


def cross_validation(sums: Sums, penalties: Tensor) -> Tensor:
    """Return the generalised cross-validation of each penalty: (RSS / N) / (1 - df / N)^2, from the sums alone.

    With eigenvalues e of G and p the squared length of C in each eigenvector's direction, df = sum e / (e + penalty)
    and RSS = N - sum p (e + 2 penalty) / (e + penalty)^2, as one-hot targets have N ones.
    """
    values, vectors = torch.linalg.eigh(sums.gram)
    e, samples = values.clamp(min=0), sums.counts.sum()
    p = (sums.classes @ vectors).square().sum(0)
    damped = e + penalties[:, None].to(e)
    freedom = 1 - (e / damped).sum(1) / samples
    residual = (samples - (p * (damped + penalties[:, None].to(e)) / damped.square()).sum(1)).clamp(min=0)
    found = (residual / samples) / freedom.square()
    return torch.where(freedom > SATURATED, found, torch.inf)


def chosen_penalty(sums: Sums, error: float = 0.0) -> float:
    """Return the penalty of the grid whose cross-validation is lowest; the largest where none says anything.

    Numbers of G that may be wrong by `error` move its eigenvalues by at most `error` times its size; a penalty below
    that would leave the solution to them.
    """
    grid = penalty_grid(sums.gram)
    found = cross_validation(sums, grid).cpu()
    best = float(grid[found.argmin()] if bool(found.isfinite().any()) else grid[-1])
    return max(best, 2 * error * len(sums.gram))


def absent_bias(counts: Tensor) -> Tensor:
    """Return a bias that keeps classes without samples out of every prediction."""
    return torch.zeros_like(counts).masked_fill(counts <= 0, ABSENT)


def ridge_head(sums: Sums, penalty: float, unit: bool) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the ridge solution; `unit` gives each class's weights the length one."""
    weight = ridge(sums.gram, sums.classes, penalty)
    return F.normalize(weight, dim=1) if unit else weight, absent_bias(sums.counts)


def within_covariance(sums: Sums) -> Tensor:
    """Return the covariance within classes, (G - sum n_c mu_c mu_c^T) / (N - K) for K classes with samples."""
    scatter = sums.gram - sums.means.T @ sums.classes
    spare = sums.counts.sum() - (sums.counts > 0).sum()
    return scatter / spare.clamp(min=1)


def gaussian_head(sums: Sums, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the linear discriminant: S^-1 mu_c and -mu_c^T S^-1 mu_c / 2, for equal priors.

    S = (1 - shrinkage) S_w + shrinkage tr(S_w) / d I.
    """
    within = within_covariance(sums)
    spread = within.diagonal().mean()
    level = torch.where(spread > 0, spread, 1.0)  # with one sample of each class there is no spread
    shrunk = (1 - shrinkage) * within + shrinkage * level * torch.eye(len(within), dtype=within.dtype)
    means = sums.means
    weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(shrunk)).T
    return weight, absent_bias(sums.counts) - (weight * means).sum(1) / 2
