"""Validation of a client's report, and the order in which uploads are passed on."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from fcil.core.aggregate import MOST_SAMPLES
from fcil.core.messages import Message, ModelState, Report, encode


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


def validate_values(report: Report) -> str | None:
    """Return which values of a report are out of range, or None."""
    if not 1 <= report.samples <= MOST_SAMPLES:
        return f"it claims {report.samples} samples"
    for name, found in report.model.items():
        if found.is_floating_point() and not _is_finite(found):
            return f"it is not finite in {name}; a lower train.learning_rate may help"
    for name, weights in report.rows.items():
        if not bool(((weights >= 0) & (weights <= MOST_SAMPLES)).all()):  # false of NaN too
            return f"its weights for the rows of {name} are invalid"
    return None


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite; a finite sum, which is one pass without a copy, proves it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
