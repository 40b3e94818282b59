"""The answers of a round as the server takes them in: in turn, and only if they can be what they claim to be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fcil.core.messages import Failure, Message, ModelState, Order, Reply, Report, encode
from fcil.methods.server import MOST_SAMPLES


def mixing(upload: Message) -> bytes:
    """Return what uploads are sorted by: it follows from the content alone, so the order tells nothing of senders."""
    return hashlib.sha256(encode(upload)).digest()


def in_turn(
    answers: Iterable[Reply | Failure], orders: Sequence[Order], number: int, failures: list[Failure]
) -> Iterator[Reply | Failure]:
    """Yield participants' answers in the order in which they were asked, and those of bystanders as they come.

    A second answer of a client is a failure. An answer that comes before its turn is held until then.
    """
    turns = {order.client: turn for turn, order in enumerate(order for order in orders if order.participate)}
    asked = {order.client for order in orders}
    early: dict[int, Reply | Failure] = {}
    due, seen = 0, set[int]()
    for answer in answers:
        if answer.client not in asked or answer.client in seen:
            what = "answered twice" if answer.client in seen else "was not asked"
            failures.append(Failure(answer.client, number, "update", f"client {answer.client} {what}"))
            continue
        seen.add(answer.client)
        if answer.client not in turns:
            yield answer
            continue
        early[turns[answer.client]] = answer
        while due in early:
            yield early.pop(due)
            due += 1
    for turn in sorted(early):  # those after a client that never answered
        yield early[turn]


def validate_shape(report: Report, model: ModelState) -> str | None:
    """Say in what a report has not the form of the model that was sent, if in anything."""
    if report.model.keys() != model.keys():
        return f"it has other parameters: {sorted(report.model.keys() ^ model.keys())}"
    for name, wanted in model.items():
        found = report.model[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            ours = f"the model {wanted.dtype} {tuple(wanted.shape)}"
            return f"it has {name} as {found.dtype} {tuple(found.shape)}, {ours}"
    for name, weights in report.rows.items():
        if name not in model or weights.dtype != torch.float64 or weights.shape != model[name].shape[:1]:
            return f"it has unfit weights for the rows of {name}"
    return None


def validate_values(report: Report) -> str | None:
    """Say which values of a report cannot be, if any."""
    if not 1 <= report.samples <= MOST_SAMPLES:
        return f"it claims {report.samples} samples"
    for name, found in report.model.items():
        if found.is_floating_point() and not _is_finite(found):
            return f"it is not finite in {name}; a lower train.learning_rate may help"
    for name, weights in report.rows.items():
        if not bool(((weights >= 0) & (weights <= MOST_SAMPLES)).all()):  # false of NaN too
            return f"it has unfit weights for the rows of {name}"
    return None


def _is_finite(tensor: Tensor) -> bool:
    """Say whether all values are finite; a finite sum, one pass without a copy, proves it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
