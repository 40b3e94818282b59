"""Limits on the claims of reports: capped weights, rows with enough holders, and parts of a bounded norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import PartSum, by_row
from fcil.core.messages import Report, Weighted
from fcil.core.settings_table import SettingsTable
from fcil.maths.robust import capped, lower_median


class ClaimSettings(SettingsTable):
    """The settings of every aggregator that does not believe all claims."""

    least_holders: int = Field(1, ge=1, description="holders that a row of the head needs to change")


def sample_weights(reports: Sequence[Report], by_samples: bool) -> Tensor:
    """Return the weight of each report: 1, or its samples, capped."""
    if not by_samples:
        return torch.ones(len(reports), dtype=torch.float64)
    return capped(torch.tensor([float(report.samples) for report in reports], dtype=torch.float64))


def row_weights(claims: Sequence[Tensor], own: ClaimSettings) -> Tensor:
    """Return the capped weights (reports, rows) of the rows of one tensor; zero where a row has too few holders."""
    found = capped(torch.stack(list(claims)))
    return found * ((found > 0).sum(0) >= own.least_holders)


def all_row_weights(reports: Sequence[Report], own: ClaimSettings) -> dict[str, Tensor]:
    """Return the capped weights (reports, rows) of every tensor whose rows have weights of their own."""
    names = dict.fromkeys(name for report in reports for name in report.rows)
    return {name: row_weights([_claims(report, name) for report in reports], own) for name in names}


def _claims(report: Report, name: str) -> Tensor:
    """Return the weights of a tensor's rows in a report; 1 each where it gives none."""
    return report.rows.get(name, torch.ones(len(report.model[name]), dtype=torch.float64))


def bounded_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Return updates of rows (reports, rows, ...), each of at most the median norm of those that hold the row."""
    norms = values.flatten(2).norm(dim=2) if values.ndim > 2 else values.abs()
    most = lower_median(torch.where(weights > 0, norms, 0.0))
    scale = torch.where(norms > most, most / norms, 1.0)
    return values * scale.view(*scale.shape, *[1] * (values.ndim - 2))


def bounded_parts(parts: Sequence[Mapping[str, Weighted]]) -> dict[str, PartSum]:
    """Return the sums of parts whose norms and weights are at most the medians of the round, row by row.

    The norm is that of the whole part, or of each row where rows have weights of their own.
    """
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: _bounded([one[name] for one in parts if name in one]) for name in names}


def _bounded(found: Sequence[Weighted]) -> PartSum:
    weights = capped(torch.stack([part.weight for part in found]))
    norms = torch.stack([_norm(part) for part in found])
    most = lower_median(torch.where(weights > 0, norms, 0.0))
    factors = torch.where(norms > most, most / norms, 1.0) * weights
    values = torch.stack(
        [part.value.double() * by_row(factor, part.value) for part, factor in zip(found, factors, strict=True)]
    )
    return PartSum(values.sum(0), weights.sum(0))


def _norm(part: Weighted) -> Tensor:
    value = part.value.double()
    norm: Tensor = value.flatten(1).norm(dim=1) if part.weight.ndim else value.norm()
    return norm
