"""Validation of a client's report, and the order in which uploads are passed on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from fcil.core.messages import Message, ModelState, Report, Weighted, encode

STATISTICS = 100.0  # running statistics begin far from those of the data, and may move so much further than parameters
RUNNING, VARIANCE = "running_", "running_var"  # parts of the names of batch norm's statistics


class ReportLimits(Protocol):
    """The bounds on a report: settings of the table [federation]."""

    @property
    def max_samples(self) -> int:
        """Return the largest number of samples that a report may claim."""
        ...

    @property
    def max_update(self) -> float:
        """Return the largest norm of an update, in norms of the model that was sent."""
        ...


def mixing(upload: Message) -> bytes:
    """Return the key by which uploads are sorted; it depends on the content alone, so the order hides the senders."""
    return hashlib.sha256(encode(upload)).digest()


def validate_shape(report: Report, model: ModelState) -> str | None:
    """Return where a report's tensors differ in name, shape or type from the model that was sent, or None."""
    if report.model.keys() != model.keys():
        return f"it has other parameters: {sorted(report.model.keys() ^ model.keys())}"
    for name, wanted in model.items():
        found = report.model[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            ours = f"the model {wanted.dtype} {tuple(wanted.shape)}"
            return f"it has {name} as {found.dtype} {tuple(found.shape)}, {ours}"
    for name, weights in report.rows.items():
        if name not in model or weights.dtype != torch.float64 or weights.shape != model[name].shape[:1]:
            return f"its weights for the rows of {name} are invalid"
    return None


def validate_claims(report: Report, most: int) -> str | None:
    """Return which count of a report is out of range, or None."""
    if not 1 <= report.samples <= most:
        return f"it claims {report.samples} samples, federation.max_samples allows {most}"
    for name, weights in report.rows.items():
        if not _within(weights, most):
            return f"its weights for the rows of {name} are invalid"
    return None


def validate_parts(report: Report, most: int) -> str | None:
    """Return which part of a report cannot be summed, or None; a method's own checks know more."""
    for name, part in report.parts.items():
        if not _is_summable(part, most):
            return f"its part {name} is not finite, or has weights that are invalid"
    return None


def validate_update(report: Report, sent: ModelState, limit: float) -> str | None:
    """Return why the model of a report cannot be the model sent after some training, or None."""
    for name, found in report.model.items():
        if found.is_floating_point() and not _is_finite(found):
            return f"it is not finite in {name}; a lower train.learning_rate may help"
        if name.endswith(VARIANCE) and bool((found < 0).any()):
            return f"it has a negative variance in {name}"
    floats = [name for name, tensor in sent.items() if tensor.is_floating_point()]
    for moved in ([name for name in floats if RUNNING not in name], [name for name in floats if RUNNING in name]):
        allowed = limit * (STATISTICS if moved and RUNNING in moved[0] else 1.0) * _norm(sent[name] for name in moved)
        distance = _norm(report.model[name] - sent[name] for name in moved)
        if limit < math.inf and not distance <= allowed:  # an overflow is infinite
            what = "its running statistics move" if RUNNING in moved[0] else "it moves"
            return (
                f"{what} by {distance:.3g} from the model that was sent, federation.max_update allows {allowed:.3g}; "
                "a lower train.learning_rate may help"
            )
    return None


def is_finite_model(model: ModelState) -> bool:
    """Return whether all values of a model are finite."""
    return all(_is_finite(tensor) for tensor in model.values() if tensor.is_floating_point())


def _is_summable(part: Weighted, most: float) -> bool:
    """Return whether a part has finite values, and one weight or a weight per row, none of them out of range."""
    rows = part.value.shape[:1] if part.weight.ndim else part.weight.shape
    fits = part.weight.dtype == torch.float64 and part.weight.shape == rows
    return fits and _within(part.weight, most) and _is_finite(part.value)


def _within(weights: Tensor, most: float) -> bool:
    return bool(((weights >= 0) & (weights <= most)).all())  # false of NaN too


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in tensors))


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite; a finite sum, which is one pass without a copy, proves it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
