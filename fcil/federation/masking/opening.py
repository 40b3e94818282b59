"""The last turn of a masked round at the server: the sum is opened, or stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fcil.core.errors import FederationError
from fcil.core.messages import Failure
from fcil.federation.aggregation.masked import MaskedSum
from fcil.federation.masking.messages import Unmask, Unmasked

if TYPE_CHECKING:
    from fcil.federation.masking.server import MaskingServer
    from fcil.federation.replies import RoundReplies

UNMASK = "unmask"  # stage of the failure of a site that does not help to open the sum


def open_sum(
    server: MaskingServer, replies: RoundReplies, shares: Callable[[Unmask], Iterable[tuple[int, Unmasked]]]
) -> None:
    """Open the sum of a round's reports with the shares of those that reported, or note why it stays unknown."""
    replies.end()
    try:
        for number, answer in shares(server.ask(replies.reporters)):
            try:
                server.take_shares(number, answer)
            except FederationError as error:
                replies.failures.append(Failure(number, server.session.round, UNMASK, str(error)))
        masks = server.masks()
    except FederationError as error:
        replies.unopened = f"the masked sum does not open: {error}"
        return
    assert isinstance(replies.gathering, MaskedSum)
    replies.gathering.unmask(masks)
