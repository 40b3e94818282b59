"""The client's half of the method analytic: sums over samples that each are sent once, as they are or with noise."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.errors import FederationError, stage
from fcil.core.messages import Broadcast, Diagnostics, Order, Reply, Report
from fcil.core.messages import Weighted as Part
from fcil.maths.analytic import feature_sums, projected, triangle
from fcil.methods.base import ClientRole, Current
from fcil.methods.ledger import Batch, Receipts, SampleLedger, propose, settle, take_in, withdraw
from fcil.methods.local_objective import NOTHING
from fcil.methods.private_sums import NoisyRelease
from fcil.methods.server import ONE
from fcil.models.classifier import HEAD_ROWS, PROJECTION
from fcil.models.client_context import ClientContext

WEIGHT, BIAS = HEAD_ROWS
GRAM, CLASSES, COUNTS, NOISE = "gram", "class_sums", "counts", "noise"
PIECE = 4096  # samples whose features are in memory at once in double precision


class SumsClient(ClientRole[SampleLedger]):
    """Trains nothing: it sends the sums over samples that it has not sent before, until the server has them."""

    def __init__(self, release: NoisyRelease | None = None) -> None:
        self.release = release

    def init(self) -> SampleLedger:
        return SampleLedger()

    def round(
        self, state: SampleLedger, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[SampleLedger, Reply, Diagnostics]:
        receipts = broadcast.extra if isinstance(broadcast.extra, Receipts) else Receipts()
        with stage("arrive"):
            ledger = settle(state, *receipts.of(order.client))
            former, ledger = ledger, take_in(ledger, current.samples)
            alarm = ledger is not former and _brings_classes(former, ledger, local)
        reply, measured = Reply(order.client), Diagnostics(alarm=alarm)
        if not order.participate:
            return ledger, reply, measured
        with stage("sums"):
            context, release = broadcast.context, self.release
            if release is not None and not release.happens(context):
                return ledger, reply, measured
            first = context.old_classes if release else 0
            ready = local.samples.outputs(ledger.waiting, context) >= first
            ledger = propose(ledger, ready, context.round, even_empty=current.hidden or release is not None)
            if ledger.pending is not None and release is not None:
                release.check(ledger.pending)
                reply = replace(reply, report=_private_report(ledger.pending, release, broadcast, current, local))
            elif ledger.pending is not None:
                reply = replace(reply, report=_report(ledger.pending, broadcast, current, local))
        return ledger, reply, measured

    def spent(self, state: SampleLedger) -> float:
        return 0.0 if self.release is None else self.release.spent(state)

    def in_use(self, state: SampleLedger) -> Tensor:
        """Return all samples but those taken back: whoever may take back a sample needs its features once more."""
        lasting = state.known[~torch.isin(state.known, state.forgotten)]
        used: Tensor = torch.unique(torch.cat([state.latest, state.unsettled, lasting]))
        return used

    def placed(self, state: SampleLedger) -> Tensor:
        return torch.cat([NOTHING, *(batch.samples for batch in state.batches)])

    def withdraw(self, state: SampleLedger, samples: Tensor) -> SampleLedger:
        return withdraw(state, samples)


def _report(batch: Batch, broadcast: Broadcast, current: Current, local: ClientContext) -> Report:
    """Return the sums over a batch, times -1 if it is withdrawn; later rounds only add zeros, for new classes."""
    gram, classes, counts = _sums(batch, broadcast, current, local)
    sign = -1.0 if batch.withdrawn else 1.0
    parts = {GRAM: gram, CLASSES: classes, COUNTS: counts}
    return Report({}, len(batch.samples), parts={name: Part(sign * value, ONE) for name, value in parts.items()})


def _private_report(
    batch: Batch, release: NoisyRelease, broadcast: Broadcast, current: Current, local: ClientContext
) -> Report:
    """Return the sums over a batch's samples of the newest block with noise; its form tells of no sample."""
    gram, classes, _ = _sums(batch, broadcast, current, local, private=True)
    context, others = broadcast.context, current.participants
    gram, classes, variance = release.noised(gram, classes, context, others, current.noise_key)
    parts = {GRAM: gram, CLASSES: classes, NOISE: torch.tensor(variance, dtype=torch.float64)}
    return Report({}, 1, parts={name: Part(value, ONE) for name, value in parts.items()})


def _sums(
    batch: Batch, broadcast: Broadcast, current: Current, local: ClientContext, private: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the triangle of G, the class sums and the counts of a batch.

    If `private`, of unit features, and of the newest block's samples alone.
    """
    if not local.samples.has_pixels(batch.samples):
        raise FederationError(
            f"the server needs the sums over {len(batch.samples)} samples again, and this client has deleted their "
            "pixels; restore a newer state of the server"
        )
    context, outputs = broadcast.context, local.samples.outputs(batch.samples, broadcast.context)
    first = context.old_classes if private else 0
    size = current.models[broadcast.model][WEIGHT].shape[-1]  # of what the head sees
    gram = torch.zeros(size * (size + 1) // 2, dtype=torch.float64)
    totals = torch.zeros(context.classes, size, dtype=torch.float64)
    for output in torch.unique(outputs[outputs >= first]).tolist():
        found = _of_class(batch.samples[outputs == output], broadcast, current, local, private)
        totals[output] = found[:size]
        gram += found[size:]
    counts = torch.bincount(outputs, minlength=context.classes).to(torch.float64)
    return gram, totals, counts


def _of_class(samples: Tensor, broadcast: Broadcast, current: Current, local: ClientContext, unit: bool) -> Tensor:
    """Return the sum of the features of one class's samples, and then the triangle of the sum of their products.

    Simulated clients that hold the same samples share it.
    """
    model = current.models[broadcast.model]

    def compute() -> Tensor:
        total: Tensor | float = 0.0
        for piece in torch.split(samples, PIECE):
            features = local.inference.infer(broadcast.model, model, piece).features.cpu().to(torch.float64)
            seen = projected(features, model[PROJECTION]) if PROJECTION in model else features
            seen = F.normalize(seen, dim=1) if unit else seen
            sums = feature_sums(seen, torch.zeros(len(piece), dtype=torch.int64), 1)
            total = total + torch.cat([sums.classes[0], triangle(sums.gram)])
        assert isinstance(total, Tensor)
        return total

    kind = "unit sums" if unit else "sums"
    return local.inference.once((broadcast.model, kind, samples.numpy().tobytes()), compute)


def _brings_classes(former: SampleLedger, ledger: SampleLedger, local: ClientContext) -> bool:
    """Say whether a ledger knows samples of classes that it did not know before."""
    return bool(local.samples.classes(ledger.known) - local.samples.classes(former.known))
