"""A scenario that tells a false story about everything a method must not know."""

from __future__ import annotations

from fcil.data.scenario.scenario import Scenario


class LyingScenario:
    """Hands out the same samples and the same draws; all else that it says about tasks and groups is false.

    It has no other attributes than these, so a method that asks a scenario for more fails with an error.
    """

    def __init__(self, truth: Scenario) -> None:
        self.truth = truth
        self.clients, self.participants, self.holding = truth.clients, truth.participants, truth.holding
        self.announcers = truth.announcers
        self.rounds = 2 * truth.rounds + 1
        self.tasks = (tuple(reversed([label for task in truth.tasks for label in task])),)
        self.config = truth.config.model_copy(update={"tasks": 1, "rounds_per_task": self.rounds, "arrivals": ()})

    def task(self, round: int) -> int:
        """Return another task."""
        return 41 - round

    def start(self, task: int) -> int:
        """Return another beginning."""
        return self.truth.start(task) + 1

    def ends_task(self, round: int) -> bool:
        """Deny it."""
        return not self.truth.ends_task(round)

    def group(self, round: int, client: int) -> str:
        """Return one group for all."""
        return "S_o"

    def group_sizes(self, round: int) -> dict[str, int]:
        """Return sizes that fit no population."""
        return {"S_o": 7, "S_b": 0, "S_n": 0}

    def group_members(self, round: int, limit: int) -> dict[str, list[int]]:
        """Return strangers."""
        return {"S_o": [limit - 1], "S_b": [], "S_n": [round]}

    def new_classes(self, round: int, client: int) -> bool:
        """Deny it."""
        return not self.truth.new_classes(round, client)

    def arrivals(self, round: int) -> list[int]:
        """Return all but those with new classes."""
        return [client for client in self.clients(round) if self.new_classes(round, client)]
