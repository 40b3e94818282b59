"""The waiting of an open federation: it begins rounds once there is something to learn, and otherwise next to nothing.

Sites are asked from time to time whether they have new images: a yes or a no. All else is heartbeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fcil.core.errors import FederationError, StoppedError
from fcil.core.pulse import PULSE
from fcil.deployment.server.live_settings import LiveSettings, Schedule
from fcil.deployment.server.membership import PAUSE, Membership
from fcil.deployment.server.state import ServedState
from fcil.deployment.transport.messages import NewsRequest, NewsResult, Terms
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import OPEN

LOOK = 60.0  # seconds between two questions to the sites
TICK = 0.5  # seconds after which Ctrl-C is noticed
ANSWER = 15.0  # seconds that a site has to answer


class Idling:
    """Decides whether a federation goes on, and waits where it is open and has nothing to learn."""

    def __init__(
        self,
        schedule: Schedule,
        settings: LiveSettings,
        terms: Terms,
        exchange: ModelExchange,
        membership: Membership,
        warn: Callable[[str], None],
    ) -> None:
        self.schedule = schedule
        self.settings = settings
        self.terms = terms
        self.exchange = exchange
        self.membership = membership
        self.warn = warn

    def goes_on(self, state: ServedState, meanwhile: Callable[[str, bool], None]) -> bool:
        """Return whether another round follows, which in an open federation may take long.

        `meanwhile` is called again and again with what the federation waits for, and whether all parties are there.
        """
        told: bool | None = None  # of what the owner was told last: whether parties are absent
        since = time.monotonic()
        while True:
            config = self.settings.now
            if config.rounds != OPEN:
                return state.round < config.rounds
            reason = self._reason(state, time.monotonic() - since)
            if reason is not None:
                if told is not None:
                    self.warn(f"rounds go on: {reason}")
                return True
            absent = self.membership.absent()
            waits = f"waits: {' and '.join(absent)} connected" if absent else "waits for new images"
            if told is not bool(absent):
                told = bool(absent)
                why = "too few parties" if absent else "nothing to learn"
                self.warn(f"{why} after round {state.round}: the federation {waits}")
            meanwhile(waits, not absent)
            self._pause(state, PAUSE if absent else LOOK)

    def _reason(self, state: ServedState, seconds: float) -> str | None:
        """Return why a round follows, having planned it, or None."""
        config, number = self.settings.now, state.round
        if state.server.waiting:
            self.schedule.plan(number + config.burst)
        if number < self.schedule.until:
            return "they are planned"
        if not self.membership.complete():
            return None
        reason = self._news() or (f"deployment.every is {config.every:g} s" if 0 < config.every <= seconds else None)
        if reason is not None:
            self.schedule.plan(number + config.burst)
        return reason

    def _news(self) -> str | None:
        """Return a sentence if a site has new images."""
        sites = [site for site in self.membership.present("site") if self.exchange.knows(site, NewsRequest)]
        request = NewsRequest(self.terms, self.settings.now.new_images)
        asked = dict.fromkeys(sites, request)
        fresh = []
        for site, answer in self.exchange.ask(asked, lambda _: (), {}, NewsResult, "news", ANSWER):
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
            elif answer.fresh:
                fresh.append(self.membership.names[site])
        return f"there are new images at {', '.join(fresh)}" if fresh else None

    def _pause(self, state: ServedState, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.membership.interrupted():
                raise StoppedError(
                    f"interrupted while idle after round {state.round}; the same command with --resume continues"
                )
            PULSE.beat()
            time.sleep(TICK)
