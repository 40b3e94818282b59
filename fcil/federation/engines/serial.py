"""The plain engine: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcil.core.messages import Failure, Order, Reply
from fcil.federation.aggregation import Aggregator
from fcil.federation.client import play
from fcil.federation.simulated_clients import Sites
from fcil.federation.traffic import Post
from fcil.models.client_context import ClientContext


class SerialEngine:
    """Carries out every order in turn."""

    def __init__(self, sites: Sites, aggregator: Aggregator, local: ClientContext) -> None:
        self.sites = sites
        self.aggregator = aggregator
        self.local = local

    def run(self, post: Post, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer per order, in the order of the orders."""
        for order in orders:
            job, letter = self.sites.call(post, order), post.letter(order)
            store = self.sites.site(order.client).store
            models = {digest: store.model(digest) for digest in letter.digests(order.participate)}
            done = play(self.sites.role, self.aggregator, job, letter, models, self.local)
            yield self.sites.finish(post, job, done)

    def close(self) -> None:
        """Do nothing: there is nobody to stop."""
