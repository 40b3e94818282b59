"""The replies of one round as the server takes them in: validated, and summed in the order of the orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fcil.core.messages import Failure, Message, ModelState, Order, Reply, RoundContext
from fcil.federation.class_catalogue import believable
from fcil.federation.reply_checks import mixing, validate_shape, validate_values
from fcil.models.classifier import head_width

if TYPE_CHECKING:
    from fcil.federation.aggregation import Aggregator
    from fcil.methods.base import ServerRole


class RoundReplies:
    """Takes in a round's replies one by one, in whatever order they come.

    Reports are summed in the order of the orders, so the sum does not depend on which client was faster. A report that
    comes before its turn is held until then. No other report is kept, so memory does not grow with the clients.
    """

    def __init__(
        self,
        role: ServerRole[Any],
        aggregator: Aggregator,
        sent: ModelState,
        context: RoundContext,
        orders: Sequence[Order],
    ) -> None:
        participants = [order.client for order in orders if order.participate]
        self.role, self.inspects = role, aggregator.inspects
        self.sent, self.context = sent, context
        self.gathering = aggregator.gather(sent, context.round, participants)
        self.answered = 0  # participants whose reply is valid
        self.uploads: list[Message] = []
        self.failures: list[Failure] = []
        self.announced: set[str] = set()
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
        if client not in self.turns:
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
            self.failures.append(answer)
            return
        self.announced |= believable(answer.announced)
        problem = self._problem(answer)
        if problem:
            self._refuse(answer.client, problem)
            return
        self.answered += answer.client in self.turns
        self.uploads += answer.uploads
        if answer.report is not None:
            self.gathering.add(answer.client, answer.report)

    def _refuse(self, client: int, problem: str) -> None:
        self.failures.append(Failure(client, self.context.round, "update", problem))

    def _problem(self, reply: Reply) -> str | None:
        """Return the reason why a client's update is invalid, or None."""
        report, client = reply.report, reply.client
        if report is None and not reply.uploads:
            return None
        if reply.client not in self.turns:
            return f"client {client} was not asked to train"
        if len(reply.uploads) > head_width(self.sent):
            return f"client {client} sent {len(reply.uploads)} uploads, more than there are classes"
        if report is None:
            return None
        problem = validate_shape(report, self.sent)
        if self.inspects:
            problem = problem or validate_values(report) or self.role.refusal(report, self.sent, self.context)
        return f"the update of client {client} is refused: {problem}" if problem else None
