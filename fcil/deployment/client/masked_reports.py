"""A site's half of masked rounds: its keys and shares, the masks of its report, and its shares of others' secrets."""

from __future__ import annotations

from fcil.core.errors import FederationError
from fcil.core.messages import Message
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.keys.sealing import Secret
from fcil.deployment.party_store import DiskStore
from fcil.deployment.transport.messages import (
    Answer,
    KeysRequest,
    KeysResult,
    Terms,
    TrainRequest,
    UnmaskRequest,
    decode_message,
)
from fcil.federation.masking.messages import Masks, Unmasked, digest_of
from fcil.federation.masking.site import MaskingSite

MASKS = "masks"  # stage of the failure of a site that has no masks for its report


class MaskError(FederationError):
    """A masked round without masks for this site; it says nothing against the model."""


class MaskedReports:
    """Takes part in masked rounds under fixed terms; all keys are in memory alone, and new after a restart.

    `least` is the site owner's own limit. The store knows which rounds were begun, also before a restart.
    """

    def __init__(self, terms: Terms, secret: Secret, least: int, store: DiskStore) -> None:
        self.site = MaskingSite(terms.masked, secret.masking, least)
        self.store = store

    def keys(self, call: KeysRequest) -> KeysResult:
        """Return this site's keys and shares for a round, unless it reports in that round with other partners."""
        session, voucher = call.session, self.site.voucher
        if session is None:
            return KeysResult(voucher)
        self.store.before(session.round)  # or the site refuses a server that lies behind it
        begun = self.store.begun(session.round)
        if begun is not None and begun.session not in ("", session.digest):
            return KeysResult(voucher, spent=True)
        if not self.site.is_named(session, call.number):
            return KeysResult(voucher)
        strangers = self.site.strangers(session)
        if strangers:
            return KeysResult(voucher, strangers=strangers)
        return KeysResult(voucher, self.site.message(session, call.number))

    def masks(self, call: TrainRequest) -> Masks:
        """Return the masks of this site's report; all participants must have been sent the same."""
        try:
            if call.partners is None:
                raise FederationError("the masked round comes without the keys of its participants")
            session, number = self.site.session(call.partners.session)
            if session.round != call.broadcast.context.round or session.sent != digest_of(call.broadcast):
                raise FederationError("the masked round was begun with another model or other classes")
            if number != call.order.client:
                raise FederationError(f"this site is participant {number} of the masked round, not {call.order.client}")
            return self.site.masks(call.partners)
        except FederationError as error:
            raise MaskError(str(error)) from error

    def reported(self, call: TrainRequest) -> Message | None:
        """Return the answer with the report that was made with a round's masks, if it was: there is no second one.

        The same request is answered before; one that comes here differs in the number of planned rounds.
        """
        if call.partners is None or not self.site.is_spent(call.partners.session):
            return None
        kept = self.store.last_answer
        if kept is None:
            raise FederationError("this site's report of the masked round is lost")
        return decode_message(kept, Answer, DEFAULT_LIMIT).content

    def spend(self, call: TrainRequest) -> None:
        """Note that a report with the masks of a round has been made."""
        assert call.partners is not None
        self.site.spend(call.partners.session)

    def unmasked(self, call: UnmaskRequest) -> Unmasked:
        """Return this site's shares, or refuse what would tell more than one sum."""
        return self.site.shares(call.question)
