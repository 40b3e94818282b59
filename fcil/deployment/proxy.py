"""The proxy as a party: it opens sealed prototypes, scores models on them and signs its choice of teachers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from fcil.core.errors import FederationError
from fcil.core.messages import Announcement, CodecError, Message, Missing, RoundContext, Stream, decode
from fcil.deployment.keys.make import ProxyKeys
from fcil.deployment.keys.sealing import SealError, unseal
from fcil.deployment.party import Party, Say
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.signed_teachers import signed_choice
from fcil.deployment.timed_trainer import TimedTrainer
from fcil.deployment.transport.messages import (
    Ended,
    EndRequest,
    IdentifyRequest,
    Identity,
    ProxyRequest,
    ProxyResult,
    Request,
    Sealed,
    SealedContent,
    SignedChoice,
    TeacherChoice,
    as_bytes,
)
from fcil.federation.class_catalogue import believable, in_order
from fcil.federation.client import Stamped
from fcil.federation.engines.base import Recipe
from fcil.federation.proxy import ProxyParty
from fcil.federation.reply_checks import mixing

M = TypeVar("M", bound=Message)


class ProxyRunner(Party):
    """Answers for the proxy, which learns no sender; the server learns no content."""

    kind = "proxy"

    def __init__(
        self,
        keys: ProxyKeys,
        folder: Path,
        say: Say,
        device: str = "cpu",
        threads: int = 1,
        limits: PartyLimits | None = None,
        accept: str | None = None,
    ) -> None:
        super().__init__(folder, keys.secret.encoder_seed, device, threads, say, limits, accept)
        self.keys = keys

    def build(self, recipe: Recipe, backbone: str) -> None:
        torch.set_num_threads(recipe.threads)
        role = recipe.roles().proxy
        if role is None:
            raise FederationError(f"the method {recipe.method} needs no proxy; the federation goes on without this one")
        self.machine = TimedTrainer.of(recipe.machine(), self.limits.seconds)
        self.proxy = ProxyParty(role, self.machine, Stream(self.keys.root, "proxy"))

    @property
    def authority(self) -> Path | None:
        return self.keys.ca

    def answer(self, request: Request) -> Message:
        if isinstance(request, IdentifyRequest):
            return Identity("proxy", "proxy")
        if isinstance(request, ProxyRequest):
            return self._round(request)
        if isinstance(request, EndRequest):
            self.dismissed = True
            return Ended()
        raise FederationError(f"a proxy does not answer a {type(request).__name__}")

    def _round(self, call: ProxyRequest) -> Message:
        context = call.context
        kept = self.store.before(context.round)
        state = kept.state if kept else self.proxy.start()
        state = self.proxy.role.offering(state, {call.sent, call.averaged, *call.candidates}, context)
        if call.allowed and len(call.allowed) != len(call.announcements):
            raise FederationError(f"{len(call.allowed)} limits came for {len(call.announcements)} announcements")
        missing = self.store.lacks([call.sent, call.averaged])
        if missing:
            return Missing(missing)
        self.store.use([call.averaged, call.sent])
        # Boxes arrive in random order; their contents are sorted, so that results do not depend on it.
        uploads = sorted(self._opened(call.uploads, Message, context.round), key=mixing)
        notices = self._contents(call.announcements, Announcement, context.round)
        sent, averaged = self.store.model(call.sent), self.store.model(call.averaged)
        self.machine.begin()
        state = self.proxy.round(state, uploads, sent, averaged, context)
        self.store.keep(Stamped(context.round, state))
        measures = self.proxy.role.measures(state)
        said = ", ".join(f"{key} {value:.4g}" for key, value in measures.items())
        self.say(f"round {context.round + 1}: {len(uploads)} prototypes, {said}")
        fresh = [in_order(self._new_ids(notice, context)) for notice in notices]
        allowed = call.allowed or (len(ids) for ids in fresh)
        announced = {name for ids, most in zip(fresh, allowed, strict=True) for name in ids[: max(most, 0)]}
        return ProxyResult(
            choices=self._choices(state, context, measures),
            announced=tuple(sorted(announced)),
            measures=measures,
            brought=tuple(map(len, fresh)),
        )

    def _new_ids(self, notice: Announcement | None, context: RoundContext) -> set[str]:
        return believable(notice.classes).difference(context.catalogue) if notice is not None else set()

    def _opened(self, boxes: Sequence[Sealed], expected: type[M], number: int) -> list[M]:
        """Return the contents of the boxes that open."""
        return [found for found in self._contents(boxes, expected, number) if found is not None]

    def _contents(self, boxes: Sequence[Sealed], expected: type[M], number: int) -> list[M | None]:
        """Return the contents of boxes; None, and a warning, for one that does not open or is of another round."""
        assert self.terms is not None
        found: list[M | None] = []
        for box in boxes:
            try:
                held = decode(unseal(as_bytes(box.box), self.keys.sealing), SealedContent)
                if (held.federation, held.round) != (self.terms.federation, number):
                    raise CodecError(f"it was sealed for round {held.round + 1}, not for round {number + 1}")
                if not isinstance(held.message, expected):
                    raise CodecError(f"it holds a {type(held.message).__name__}")
                found.append(held.message)
            except (SealError, CodecError) as error:
                self.say(f"warning: a sealed message is left out: {error}")
                found.append(None)
        return found

    def _choices(self, state: Message, context: RoundContext, measures: dict[str, float]) -> tuple[SignedChoice, ...]:
        """Return the choices for the next round: with the present head, and with one more block."""
        assert self.terms is not None
        following = replace(context, round=context.round + 1, rounds_since_growth=context.rounds_since_growth + 1)
        grown = replace(following, blocks=(*context.blocks, context.classes + 1), rounds_since_growth=0)
        signed = []
        for then in (following, grown):
            teachers = self.proxy.role.choice(state, then).teachers
            choosing = TeacherChoice(self.terms.federation, then.round, len(then.blocks), teachers, measures)
            signed.append(signed_choice(choosing, self.keys.signing))
        return tuple(signed)
