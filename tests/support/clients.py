"""One round of one client, run by hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fcil.core.messages import (
    Broadcast,
    Diagnostics,
    ModelState,
    Order,
    Reply,
    RoundContext,
    Teacher,
    Teachers,
    model_digest,
)
from fcil.methods.base import ClientRole, Current
from fcil.models import head_width
from fcil.models.client_context import ClientContext


def run_client(
    role: ClientRole[Any],
    state: Any,
    samples: Tensor,
    local: ClientContext,
    context: RoundContext,
    model: ModelState,
    *,
    participate: bool = False,
    teacher: ModelState | None = None,
    entropy: float | None = None,
    new_classes: bool | None = None,
) -> tuple[Any, Reply, Diagnostics]:
    """Return the state, the reply and the measures of a client that holds these samples and receives this model."""
    models = {model_digest(model): model}
    teachers = Teachers()
    if teacher is not None:
        teachers = Teachers(last=Teacher(model_digest(teacher), head_width(teacher)))
        models[model_digest(teacher)] = teacher
    broadcast = Broadcast(context, model_digest(model), teachers)
    current = Current(samples, models, 1, entropy, new_classes)
    return role.round(state, broadcast, Order(0, participate), current, local)
