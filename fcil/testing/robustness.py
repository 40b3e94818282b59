"""The contracts about faults around a method: awkward scenarios, lost clients, cuts between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from fcil.core.messages import decode, model_digest
from fcil.data.columns import Kind
from fcil.data.scenario.scenario import Scenario
from fcil.federation.simulation import SimulationState
from fcil.methods import get_method
from fcil.testing.recorded import LONGER, SHORT, RecordedRun, Snapshot, intercept, recorded, snapshot
from fcil.testing.trial import CLASSES, Trial, blobs, trial


def is_finite(state: SimulationState) -> bool:
    """Say whether the global model has only finite values."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.model.values())


def classes_held(world: Scenario, round: int, client: int) -> int:
    """Return how many classes a client's current data has."""
    return len(set(blobs(per_class=10).train.labels[world.holding(round, client)].tolist()))


class Awkward(NamedTuple):
    """An awkward scenario, and the reason why it is."""

    scenario: dict[str, Any]
    premise: Callable[[Scenario], bool]


TWO_ROUNDS: dict[str, Any] = {"tasks": (2, 2)}
AWKWARD = {
    "a client with one class": Awkward({"class_fraction": 0.5}, lambda world: classes_held(world, 0, 0) == 1),
    "a memory smaller than its classes": Awkward({"memory": 1}, lambda world: classes_held(world, 0, 0) > 1),
    "no memory": Awkward({"memory": 0}, lambda world: world.config.memory == 0),
    "a client with one sample": Awkward(
        {**TWO_ROUNDS, "split": "disjoint", "class_fraction": 0.5, "initial_clients": 20, "joiners": 0},
        lambda world: 1 in [len(world.holding(0, client)) for client in world.participants(0)],
    ),
    "existing clients without new data": Awkward(
        {**TWO_ROUNDS, "both_share": 0.0, "joiners": 2, "participants": 5},
        lambda world: world.group(1, 0) == "S_o" and 0 in world.participants(1),
    ),
    "arrivals that come and go": Awkward(
        {**TWO_ROUNDS, "groups": "each-round", "both_share": 0.5, "participants": 3, "rounds_per_task": 3},
        lambda world: any(world.group(r, c) != world.group(r + 1, c) for r in (3, 4) for c in world.clients(r)),
    ),
    "a class that comes late to one client": Awkward(
        {**TWO_ROUNDS, "rounds_per_task": (2, 1), "arrivals": [{"round": 2, "classes": [5], "clients": [0]}]},
        lambda world: world.arrivals(1) == [0],
    ),
    "clients that come and go": Awkward(
        {"leavers": 1, "joins": [{"round": 2, "clients": 2}]},
        lambda world: not set(world.clients(0)) <= set(world.clients(2)),
    ),
    "a federation of one": Awkward(
        {**TWO_ROUNDS, "initial_clients": 1, "joiners": 0, "participants": 1}, lambda world: world.clients(1) == [0]
    ),
}


class Robustness:
    """A method survives every fault around it."""

    method: ClassVar[str]
    variant: ClassVar[Mapping[str, Any]] = {}
    network: ClassVar[Mapping[str, Any]] = {}
    kind: ClassVar[Kind] = "image"

    def trial(self, edition: str = "fcil", fields: Mapping[str, Any] | None = None, **parts: Any) -> Trial:
        """Return a small federation of the variant; `parts` are arguments of `fcil.testing.trial`."""
        return trial(
            self.method,
            edition,
            fields={**self.variant, **(fields or {})},
            model=self.network,
            **{"kind": self.kind, **parts},
        )

    def recorded(self, edition: str = "fcil", announce: str = "start") -> RecordedRun:
        """Return the run of the variant that several contracts look at."""
        variant, network = tuple(self.variant.items()), tuple(self.network.items())
        return recorded(self.method, edition, announce, variant, network, self.kind)

    @pytest.mark.parametrize("case", AWKWARD)
    def test_survives_an_awkward_scenario(self, case: str) -> None:
        """Every scenario runs to its end, without a failure and with a finite model."""
        scenario, premise = AWKWARD[case]
        made = self.trial(scenario={**SHORT, **scenario})
        assert premise(made.simulation.scenario), "the scenario is not the awkward one it should be"
        state, records = made.run()
        assert is_finite(state)
        assert all(not record.failures for record in records)
        assert sum(record.reports for record in records) > 0

    def test_every_edition_trains_on_coloured_images_to_the_end(self, edition: str) -> None:
        """No edition of the method fails, and all classes get their outputs."""
        coloured = blobs(per_class=10, channels=3) if self.kind == "image" else None
        made = self.trial(edition, source=coloured, scenario=SHORT)
        state, records = made.run()
        assert is_finite(state)
        assert [record.failures for record in records] == [[]] * len(records)
        assert len(state.server.catalogue.classes) == CLASSES

    @pytest.mark.parametrize(("ours", "announce"), [(True, "start"), (False, "reply")])
    def test_is_cut_after_every_round_and_resumed_to_the_same_bits(self, ours: bool, announce: str) -> None:
        """Whatever a method carries from round to round is in its messages."""
        editions = get_method(self.method).config.editions
        sources = [edition for edition in ("released", "official") if edition in editions and not ours]
        edition = (*sources, "fcil")[0]
        for before, after in pairwise(self.recorded(edition, announce).snapshots):
            resumed = self.trial(edition, scenario=LONGER, federation={"announce": announce, "merge_rounds": 0})
            loaded = decode(before, Snapshot)
            resumed.clients.restore({int(client): kept for client, kept in loaded.clients.items()}, loaded.table)
            state, _ = next(resumed.simulation.rounds(loaded.state))
            assert snapshot(resumed, state) == after

    def test_survives_a_failing_participant(self) -> None:
        """A client's error is written down, costs its report and nothing else."""
        honest = self.recorded()
        made = self.trial(scenario=LONGER)
        world = made.simulation.scenario
        victim = next(client for client in world.participants(2) if len(world.holding(2, client)))

        def stumble(round: int, client: int) -> None:
            if (round, client) == (2, victim):
                raise RuntimeError("the disk is full")

        state, records = intercept(made, stumble).run()
        expected = {"client": victim, "round": 3, "stage": "fit", "reason": "RuntimeError: the disk is full"}
        assert [failure for record in records for failure in record.failures] == [expected]
        assert len(records) == len(honest.records)
        assert is_finite(state)
        assert records[2].reports == honest.records[2].reports - 1
        if made.simulation.server.role.averages:  # else its samples are in its next report
            assert model_digest(state.model) != model_digest(honest.state.model)

    def test_trains_when_only_participants_look_at_their_data(self) -> None:
        """A client that does not train is not asked, and yet its classes get their outputs."""
        asked: list[int] = []
        made = self.trial(federation={"monitor": "participants"}, scenario=SHORT)
        state, records = intercept(made, lambda _, client: asked.append(client)).run()
        assert asked == [client for record in records for client in record.participants]
        assert sorted(made.clients.states()) == sorted(set(asked))
        assert is_finite(state)
        assert len(state.server.catalogue.classes) == CLASSES  # ids are announced by all
