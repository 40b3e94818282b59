"""PODNet: several proxies per class, the NCA loss on them, and distillation of pooled feature maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.bias import balanced_rows

PROXIES = 10  # a class
MARGIN = 0.6  # delta
RESTARTS = 10  # of k-means, the best one is kept
LLOYD_STEPS = 100


def proxy_similarities(features: Tensor, proxies: Tensor) -> Tensor:
    """Return s_ck = -|| f - w_ck ||^2 = 2 cos - 2 of normalised vectors, as (examples, classes, proxies)."""
    return 2 * torch.einsum("nd,ckd->nck", F.normalize(features, dim=1), F.normalize(proxies, dim=2)) - 2


def lsc_scores(features: Tensor, proxies: Tensor) -> Tensor:
    """Return the local similarity classifier's score of each class, sum_k softmax_k(s_c) s_ck."""
    similarities = proxy_similarities(features, proxies)
    return (F.softmax(similarities, 2) * similarities).sum(2)


def nca_loss(
    scores: Tensor,
    labels: Tensor,
    scale: Tensor | float = 1.0,
    *,
    nca: Literal["paper", "official"] = "paper",
    margin: float = MARGIN,
) -> Tensor:
    """Return the NCA loss per example; `scale` is the learned eta.

    paper: [-log(exp(eta (y_y - delta)) / sum_{i != y} exp(eta y_i))]_+, zero where there is no other class.
    official: -u_y + log(1 + sum_{i != y} exp(u_i)) with u = eta y - max(eta y). The released code subtracts delta from
    every score, so it cancels; it sets the true class's term of the sum to one instead of leaving it out, and so a
    gradient does flow through the maximum.
    """
    scaled = scale * scores
    true = F.one_hot(labels, scores.shape[1]).bool()
    if nca == "official":
        scaled = scaled - scaled.max(1, keepdim=True).values
        return torch.logsumexp(scaled.masked_fill(true, 0.0), 1) - scaled[true]
    others = torch.logsumexp(scaled.masked_fill(true, -math.inf), 1)
    return F.relu(others - scaled[true] + scale * margin)


def pooled_map(maps: Tensor) -> Tensor:
    """Return the squared maps summed over width and over height, side by side in one row of length one per example."""
    squares = maps.square()
    return F.normalize(torch.cat([squares.sum(3).flatten(1), squares.sum(2).flatten(1)], 1), dim=1)


def pod_spatial(maps: Sequence[Tensor], old_maps: Sequence[Tensor]) -> Tensor:
    """Return L_sp per example: the mean over the maps of || v - v_old ||, v the pooled map; the norm is not squared."""
    pairs = zip(maps, old_maps, strict=True)
    distances = [torch.linalg.vector_norm(pooled_map(now) - pooled_map(old), dim=1) for now, old in pairs]
    return torch.stack(distances).mean(0)


def pod_flat(features: Tensor, old_features: Tensor) -> Tensor:
    """Return L_fl = 1 - cos(f, f_old) per example."""
    return 1 - F.cosine_similarity(features, old_features, dim=1)


def pod_factor(classes: int, new_classes: int) -> float:
    """Return sqrt(C / C_n), the factor of both distillation terms; C counts the new classes.

    >>> pod_factor(40, 10)
    2.0
    """
    return math.sqrt(classes / new_classes)


def imprint(
    features: Tensor, generator: torch.Generator, *, proxies: int = PROXIES, existing: Tensor | None = None
) -> Tensor:
    """Return a new class's proxies: k-means centres of its normalised features, times the existing proxies' mean norm.

    With no more features than proxies, every feature is a proxy and they repeat in turn; one that repeats only weighs
    more. `existing` is (classes, proxies, size); without it the centres keep their own length.
    """
    if len(features) == 0:
        raise ValueError("a class without features cannot be imprinted")
    unit = F.normalize(features.detach(), dim=1)
    norm = existing.detach().norm(dim=2).mean() if existing is not None and len(existing) else 1.0
    if len(unit) <= proxies:
        return unit[torch.arange(proxies, device=unit.device) % len(unit)] * norm
    return k_means(unit, proxies, generator) * norm


def k_means(points: Tensor, clusters: int, generator: torch.Generator, *, restarts: int = RESTARTS) -> Tensor:
    """Return the centres of the best of several runs of Lloyd's algorithm from k-means++ starts, in double precision.

    The generator is of the CPU, and the same one gives the same centres.
    """
    rows = points.detach().cpu().double()
    runs = [lloyd(rows, _distant_rows(rows, clusters, generator)) for _ in range(restarts)]
    return min(runs, key=lambda centres: scatter(rows, centres)).to(points)


def scatter(points: Tensor, centres: Tensor) -> float:
    """Return the objective of k-means: the sum of the points' squared distances to their nearest centres."""
    return float(_squared_distances(points, centres).amin(1).sum())


def _squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    # not by a matrix product, whose rounding would give a point a distance to itself
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").square()


def _distant_rows(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Return the start of k-means++: each centre a point drawn by its squared distance to the centres before it."""
    chosen = points[torch.randint(len(points), (1,), generator=generator)]
    for _ in range(clusters - 1):
        distances = _squared_distances(points, chosen).amin(1)
        weights = distances if bool(distances.sum() > 0) else torch.ones_like(distances)
        chosen = torch.cat([chosen, points[torch.multinomial(weights, 1, generator=generator)]])
    return chosen


def lloyd(points: Tensor, centres: Tensor) -> Tensor:
    """Return the centres once no point changes its cluster; a cluster that loses all points keeps its centre."""
    before = None
    for _ in range(LLOYD_STEPS):
        nearest = _squared_distances(points, centres).argmin(1)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        members = F.one_hot(nearest, len(centres)).to(points)
        sizes = members.sum(0)[:, None]
        centres = torch.where(sizes > 0, members.T @ points / sizes.clamp(min=1), centres)
    return centres


def undersampled_rows(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows with as many samples of each class as the smallest class has: the set of the balanced fine-tune."""
    if len(labels) == 0:
        return torch.empty(0, dtype=torch.int64, device=labels.device)
    smallest = int(torch.unique(labels, return_counts=True)[1].min())
    return balanced_rows(labels, smallest, generator)
