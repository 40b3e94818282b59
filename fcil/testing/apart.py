"""A worker in this process that is reached by encoded messages alone, as one on another machine would be."""

from __future__ import annotations

from fcil.core.messages import decode, encode
from fcil.federation.client import Done, Job
from fcil.federation.engines.base import Publication, Recipe, SharedSamples, Worker, Workplace
from fcil.federation.engines.pool import Pool


class Apart(Pool):
    """Builds its roles from the recipe's text, and shares no object with the simulation."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place)
        samples = decode(encode(SharedSamples.of(place.local.samples)), SharedSamples).samples()
        self.worker = Worker(Recipe.read(place.recipe.text()), samples, 0)
        self.done: list[Done] = []

    def publish(self, published: Publication) -> None:
        self.worker.published = decode(encode(published), Publication)

    def idle(self) -> list[int]:
        return [] if self.done else [0]

    def submit(self, worker: int, job: Job) -> None:
        self.done = [decode(encode(self.worker.run(decode(encode(job), Job))), Done)]

    def collect(self, timeout: float | None) -> list[tuple[int, Done | None]]:
        found: list[tuple[int, Done | None]] = [(0, done) for done in self.done]
        self.done = []
        return found

    def close(self) -> None:
        """Nothing runs elsewhere."""
