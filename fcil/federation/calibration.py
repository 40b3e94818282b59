"""The calibration of a model in a simulation, where test images stand for the hold-out images of sites."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fcil.federation.round_record import CalibrationRecord
from fcil.maths.calibration import ScoreSums, area_under_curve, calibration_error, fitted, score_sums, scores

DIGITS = 4
PLAIN = 1.0  # the temperature of outputs as they are


class Scored:
    """The outputs for test images: every other image of a class is fitted on, and the rest measured."""

    def __init__(self, labels: Tensor) -> None:
        self.is_fitted_on = alternate(labels)
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def see(self, indices: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Take in the outputs for images."""
        self.parts.append((self.is_fitted_on[indices], logits, targets))

    def calibration(self, unknown: Sequence[Tensor]) -> CalibrationRecord | None:
        """Return the calibration, given the outputs for images of classes that nobody has yet."""
        if not self.parts:
            return None
        fit, logits, targets = (torch.cat(column) for column in zip(*self.parts, strict=True))
        if not bool(logits.isfinite().all()) or bool(fit.all()) or not bool((targets[fit] >= 0).any()):
            return None
        strangers = torch.cat(list(unknown)) if unknown else None
        return record_of(score_sums(logits[fit], targets[fit]), logits[~fit], targets[~fit], strangers)


def record_of(sums: ScoreSums, logits: Tensor, targets: Tensor, strangers: Tensor | None) -> CalibrationRecord:
    """Return what these sums lead to, measured on other samples, and on samples of unknown classes if there are any."""
    found, measured = fitted(sums), score_sums(logits, targets)
    record = CalibrationRecord(
        temperature=found.temperature,
        threshold=found.threshold,
        error=_percent(calibration_error(measured, found.temperature)),
        uncalibrated=_percent(calibration_error(measured, PLAIN)),
    )
    if strangers is not None:
        known, unknown = (scores(outputs, found.temperature) for outputs in (logits, strangers))
        record["unknown"] = _percent(area_under_curve(known, unknown))
    return record


def alternate(labels: Tensor) -> Tensor:
    """Return whether each sample has an even place among those of its class.

    >>> alternate(torch.tensor([3, 3, 5, 3])).tolist()
    [True, False, True, True]
    """
    found = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels).tolist():
        found[(labels == label).nonzero().squeeze(1)[::2]] = True
    return found


def _percent(share: float) -> float:
    return round(100 * share, DIGITS)
