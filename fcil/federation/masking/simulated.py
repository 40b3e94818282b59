"""Masked sums in a simulation: all parties, with real keys, shares and masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fcil.core.errors import ConfigError
from fcil.core.messages import encoded_size
from fcil.federation.masking.fixed_point import MOST_PARTICIPANTS
from fcil.federation.masking.messages import Masks, Session, Unmask, Unmasked, least_in_sum
from fcil.federation.masking.opening import open_sum
from fcil.federation.masking.server import MaskingServer
from fcil.federation.masking.site import MaskingSite

if TYPE_CHECKING:
    from fcil.federation.replies import RoundReplies
    from fcil.federation.traffic import RoundTraffic

FEDERATION = "simulation"


class SimulatedMasking:
    """The masking halves of all simulated clients and of their server."""

    def __init__(self, secret: int, participants: int, fewest: int) -> None:
        self.least = least_in_sum(fewest)
        if not self.least <= participants <= MOST_PARTICIPANTS:
            raise ConfigError(
                f"federation.aggregator: masked takes sums over {self.least} to {MOST_PARTICIPANTS} participants, and "
                f"scenario.participants is {participants}"
            )
        self.secret = secret.to_bytes(32, "big")
        self.sites: dict[int, MaskingSite] = {}

    def begin(
        self, round: int, sent: str, participants: Sequence[int], traffic: RoundTraffic | None
    ) -> tuple[MaskingServer | None, dict[int, Masks]]:
        """Exchange the keys of a round; return its server and each client's masks, none with too few clients."""
        if len(participants) < self.least:
            return None, {}
        for number in participants:
            if number not in self.sites:
                self.sites[number] = MaskingSite(FEDERATION, self.secret, self.least)
        vouchers = {number: self.sites[number].voucher for number in participants}
        server = MaskingServer(Session.of(FEDERATION, round, sent, vouchers))
        for number in participants:
            message = self.sites[number].message(server.session, number)
            server.take_message(number, message)
            if traffic:
                traffic.exchanged(encoded_size(vouchers[number]) + encoded_size(message), encoded_size(server.session))
        masks = {}
        for number in participants:
            partners = server.partners(number)
            masks[number] = self.sites[number].masks(partners)
            if traffic:
                traffic.exchanged(0, encoded_size(partners))
        return server, masks

    def end(self, server: MaskingServer | None, replies: RoundReplies, traffic: RoundTraffic) -> None:
        """Open the sum of a round's reports, or note why it stays unknown."""
        if server is None:
            replies.unopened = f"fewer than {self.least} participants, the least for a masked sum"
            return
        open_sum(server, replies, lambda question: self.shares(question, traffic))

    def shares(self, question: Unmask, traffic: RoundTraffic | None) -> Iterator[tuple[int, Unmasked]]:
        """Yield the shares that each of those that reported gives."""
        for number in question.alive.tolist():
            answer = self.sites[number].shares(question)
            if traffic:
                traffic.exchanged(encoded_size(answer), encoded_size(question))
            yield number, answer
