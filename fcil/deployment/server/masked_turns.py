"""The turns of a masked round between real sites: keys and shares before the reports, and unmasking after them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from fcil.core.errors import FederationError, one_line
from fcil.core.messages import Failure
from fcil.deployment.server.membership import Membership
from fcil.deployment.transport.messages import KeysRequest, KeysResult, Terms, UnmaskRequest
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.federation.masking.messages import Partners, Session, Unmask, Unmasked, Voucher, as_bytes, digest_of
from fcil.federation.masking.opening import UNMASK, open_sum
from fcil.federation.masking.server import MaskingServer
from fcil.federation.replies import RoundReplies
from fcil.federation.server import Opened

KEYS = "keys"  # stage of the failure of a site that has no part in a masked round


@dataclass
class MaskedRound:
    """A masked round once its keys are there: its participants, and the sites that it goes on without."""

    participants: list[int]
    server: MaskingServer | None = None  # None: too few participants for a sum
    failures: list[Failure] = field(default_factory=list)

    def partners(self, site: int) -> Partners | None:
        """Return the keys and shares for a participant."""
        return self.server.partners(site) if self.server and site in self.participants else None


class MaskedTurns:
    """Collects keys and shares, and opens sums; between two rounds it knows the lasting public keys of sites."""

    def __init__(
        self, terms: Terms, least: int, exchange: ModelExchange, membership: Membership, deadline: float
    ) -> None:
        self.terms, self.least, self.deadline = terms, least, deadline
        self.exchange, self.membership = exchange, membership
        self.vouchers: dict[int, Voucher] = {}

    # --- keys and shares --------------------------------------------------------------------------------------------

    def begin(self, opened: Opened, participants: Sequence[int]) -> MaskedRound:
        """Return a round with the keys and shares of its participants.

        The turn is repeated without those that do not answer it: nobody has reported yet, and all others then know the
        same partners. Sites that report in this round with other partners take no part. With too few others, the round
        has no sum if there are such sites, and is to be tried again if there are none.
        """
        found, number = MaskedRound(list(participants)), opened.state.round
        spent = renewed = frozenset[int]()
        while len(found.participants) >= self.least:
            unknown = [site for site in found.participants if site not in self.vouchers]
            vouchers = {site: self.vouchers[site] for site in found.participants if not unknown}
            session = None if unknown else Session.of(self.terms.masked, number, digest_of(opened.broadcast), vouchers)
            turn = _KeysTurn(MaskingServer(session) if session else None, self.vouchers, renewed)
            for site, answer in self._ask(unknown or found.participants, session):
                turn.take(site, answer)
            turn.leave_strangers_out()
            found.failures += [self._failure(site, number, KEYS, why) for site, why in sorted(turn.left_out.items())]
            found.participants = [site for site in found.participants if site not in turn.left_out]
            spent, renewed = spent | turn.spent, renewed | turn.renewed
            if turn.server is not None and not turn.left_out and not turn.renewed:
                found.server = turn.server
                return found
        if not spent:
            ready, reasons = len(found.participants), "; ".join(failure.reason for failure in found.failures)
            raise FederationError(f"{ready} sites are ready for a masked sum, {self.least} must be ({reasons})")
        found.participants = []
        return found

    def _ask(
        self, sites: Collection[int], session: Session | None
    ) -> Iterator[tuple[int, KeysResult | FederationError]]:
        """Yield the answers of sites, and note the silent ones."""
        requests = {site: KeysRequest(self.terms, site, session) for site in sites}
        for site, answer in self.exchange.ask(requests, lambda _: (), {}, KeysResult, KEYS, self.deadline):
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
            yield site, answer

    def _failure(self, site: int, round: int, stage: str, reason: str) -> Failure:
        return Failure(site, round, stage, f"site {self.membership.names[site]}: {reason}")

    # --- unmasking --------------------------------------------------------------------------------------------------

    def end(self, found: MaskedRound, replies: RoundReplies) -> None:
        """Open the sum of a round's reports, or note why it stays unknown."""
        replies.failures += found.failures
        if found.server is None:
            replies.unopened = f"sites have begun it with other partners, and fewer than {self.least} are left"
            return
        open_sum(found.server, replies, lambda question: self._shares(question, replies))

    def _shares(self, question: Unmask, replies: RoundReplies) -> Iterator[tuple[int, Unmasked]]:
        """Yield the shares of the sites that reported, and note those that give none."""
        requests = {site: UnmaskRequest(self.terms, question) for site in question.alive.tolist()}
        for site, answer in self.exchange.ask(requests, lambda _: (), {}, Unmasked, UNMASK, self.deadline):
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
                replies.failures.append(self._failure(site, replies.context.round, UNMASK, str(answer)))
            else:
                yield site, answer


@dataclass
class _KeysTurn:
    """One turn of keys and shares: its answers, and the sites that the next one goes on without, with the reasons."""

    server: MaskingServer | None  # None: only lasting keys are asked for
    vouchers: dict[int, Voucher]
    known: Collection[int]  # sites that have named a new key in this round already
    left_out: dict[int, str] = field(default_factory=dict)
    spent: frozenset[int] = frozenset()
    renewed: frozenset[int] = frozenset()
    objections: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by site, the keys that it does not know

    def take(self, site: int, answer: KeysResult | FederationError) -> None:
        """Take in the answer of a site."""
        if isinstance(answer, FederationError):
            self.left_out[site] = str(answer)
        elif answer.spent:
            self.left_out[site] = "it has begun this round with other partners, and reports once"
            self.spent |= {site}
        elif self.server is None or as_bytes(answer.voucher.key) != as_bytes(self.vouchers[site].key):
            self._renew(site, answer.voucher)
        elif answer.strangers:
            self.objections[site] = answer.strangers
        elif answer.message is None:
            self.left_out[site] = "it sends no keys"
        else:
            try:
                self.server.take_message(site, answer.message)
            except FederationError as error:
                self.left_out[site] = str(error)

    def _renew(self, site: int, voucher: Voucher) -> None:
        """Note the new lasting key of a site, as after a restart; one that has another each time is left out."""
        if site in self.known:
            self.left_out[site] = "it has another lasting key each time"
        self.vouchers[site] = voucher
        self.renewed |= {site}

    def leave_strangers_out(self) -> None:
        """Leave sites out whose key most others do not know, or else those that say so."""
        named = [stranger for strangers in self.objections.values() for stranger in set(strangers)]
        others = len(self.server.session.participants) - 1 if self.server else 0
        strangers = {site for site in named if 2 * named.count(site) > others}
        for site in strangers & self.vouchers.keys():
            reason = "its key is unknown to the others: its consortium.secret or its terms are not theirs"
            self.left_out.setdefault(site, reason)
        for site, objected in self.objections.items():
            if not strangers.intersection(objected):
                reason = f"it does not know the keys of {', '.join(map(str, objected))}"
                self.left_out.setdefault(site, one_line(reason))
