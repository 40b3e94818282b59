"""The replies of one round as the server takes them in: validated, and summed in the order of the orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fcil.core.messages import Failure, Message, ModelState, Order, Reply, Report, RoundContext
from fcil.federation.class_catalogue import Admission
from fcil.federation.reply_checks import (
    ReportLimits,
    mixing,
    validate_claims,
    validate_parts,
    validate_shape,
    validate_update,
)
from fcil.models.classifier import is_head

if TYPE_CHECKING:
    from torch import Tensor

    from fcil.federation.aggregation import Aggregator
    from fcil.methods.base import ServerRole


REFUSAL = "refusal"  # stage of the failure of a site that does not do what the server asks
SUSPECT = "check"  # stage of the failure of a site that finds the model suspect


class RoundReplies:
    """Takes in a round's replies one by one, in any order.

    Reports are summed in the order of the orders, so the sum does not depend on which client was faster. A report that
    comes before its turn is held until then, unless it is masked. No other report is kept, so memory does not grow with
    the clients.
    """

    def __init__(
        self,
        role: ServerRole[Any],
        aggregator: Aggregator,
        limits: ReportLimits,
        admission: Admission,
        sent: ModelState,
        context: RoundContext,
        orders: Sequence[Order],
    ) -> None:
        participants = [order.client for order in orders if order.participate]
        self.role, self.inspects, self.limits = role, aggregator.inspects, limits
        self.sent, self.context = sent, context
        self.expected = role.expected(sent)  # tensors of the model in a report
        self.gathering = aggregator.open(sent, context, participants)
        self.expected = self.expected if self.gathering.expected is None else self.gathering.expected
        self.hides = aggregator.hides
        self.unopened = ""  # why the sum of masked reports stays unknown
        self.answered = 0  # participants whose reply is valid
        self.stuck = 0  # participants that refuse to train on the model, or whose own is not finite or too far away
        self.reporters: list[int] = []  # clients whose report is in the sum
        self.uploads: list[Message] = []
        self.failures: list[Failure] = []
        self.admission = admission
        self.trained: dict[int, Tensor | None] = {}  # samples per class of valid reports, where they are counted
        self.turns = {client: turn for turn, client in enumerate(participants)}
        self._asked = {order.client for order in orders}
        self._seen: set[int] = set()
        self._early: dict[int, Reply | Failure] = {}
        self._due = 0

    def add(self, answer: Reply | Failure) -> None:
        """Take in one answer; a second one of a client, or one of a client that was not asked, is a failure."""
        client = answer.client
        if client not in self._asked or client in self._seen:
            self._refuse(client, f"client {client} {'answered twice' if client in self._seen else 'was not asked'}")
            return
        self._seen.add(client)
        if client not in self.turns or self.hides:  # sums of whole numbers do not depend on the order
            self._take(answer)
            return
        self._early[self.turns[client]] = answer
        while self._due in self._early:
            self._take(self._early.pop(self._due))
            self._due += 1

    def end(self) -> None:
        """Take in the answers that were held behind a client which never answered, and put the rest in order."""
        for turn in sorted(self._early):
            self._take(self._early.pop(turn))
        self.uploads.sort(key=mixing)
        self.failures.sort(key=lambda failure: failure.client)

    def _take(self, answer: Reply | Failure) -> None:
        if isinstance(answer, Failure):
            self.stuck += answer.stage in (REFUSAL, SUSPECT) and answer.client in self.turns
            self.failures.append(answer)
            return
        excess = self.admission.announce(answer.client, answer.announced)
        if excess:
            self.failures.append(Failure(answer.client, self.context.round, "announce", excess))
        problem = self._problem(answer)
        if problem:
            self._refuse(answer.client, problem)
            return
        self.answered += answer.client in self.turns
        self.uploads += answer.uploads
        if answer.report is not None:
            counted = self.role.counted_rows
            self.trained[answer.client] = answer.report.rows[counted[0]].clone() if counted and self.inspects else None
            self.gathering.add(answer.client, answer.report)
            self.reporters.append(answer.client)

    def _refuse(self, client: int, problem: str) -> None:
        self.failures.append(Failure(client, self.context.round, "update", problem))

    def _problem(self, reply: Reply) -> str | None:
        """Return the reason why a client's update is invalid, or None."""
        report, client = reply.report, reply.client
        if report is None and not reply.uploads:
            return None
        if reply.client not in self.turns:
            return f"client {client} was not asked to train"
        if len(reply.uploads) > self.context.classes:
            return f"client {client} sent {len(reply.uploads)} uploads, more than there are classes"
        if report is None:
            return None
        if self.hides and (report.rows or report.parts):
            return f"client {client} sends more than a masked report"
        problem = validate_shape(report, self.expected) or (self._objection(report) if self.inspects else None)
        return f"the update of client {client} is refused: {problem}" if problem else None

    @property
    def _longest_update(self) -> float:
        """Return the bound on updates; where the head alone is trained there is none, since it begins near zero."""
        return self.limits.max_update if any(not is_head(name) for name in self.expected) else math.inf

    def _objection(self, report: Report) -> str | None:
        """Return an objection to the values of a report, or None."""
        most = self.limits.max_samples
        problem = validate_claims(report, most)
        if problem is None:
            problem = validate_update(report, self.expected, self._longest_update)
            self.stuck += problem is not None
        return problem or self.role.refusal(report, self.sent, self.context) or validate_parts(report, most)
