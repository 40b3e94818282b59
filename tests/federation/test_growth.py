"""How classes come to their outputs: announced at the start or with replies, merged, settled, and made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.parties import BRIEF_GLFC, Constant, changed, federation, run_rounds
from torch import Tensor

from fcil.core.messages import Announcement, ModelState, Reply, RoundContext, model_digest
from fcil.federation.class_catalogue import LONGEST_ID, MOST_ANNOUNCED, MOST_CLASSES, Catalogue, believable
from fcil.federation.client import Client
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import FederationConfig, Server, ServerState
from fcil.federation.traffic import RoundTraffic
from fcil.methods.server import AveragingServer, Stateless
from fcil.models import Classifier, head_width
from fcil.models.trainer import Trainer
from fcil.testing import Trial

THREE_ROUNDS = {"rounds_per_task": 3, "class_order": (1, 3, 0, 2)}
Fits = list[tuple[int, set[int]]]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    """Return, for each local fit, the outputs of the network and the classes of the samples."""
    seen: Fits = []
    fit = Trainer.fit

    def watching(self: Trainer, net: Classifier, samples: Any, indices: Tensor, *rest: Any) -> float:
        seen.append((len(net.head.weight), set(samples.labels(indices).tolist())))
        return fit(self, net, samples, indices, *rest)

    monkeypatch.setattr(Trainer, "fit", watching)
    return seen


def played_by_round(made: Trial, fits: Fits) -> tuple[list[RoundRecord], list[Fits]]:
    records, by_round = [], []
    for _, record in made.simulation.rounds(made.simulation.start()):
        records.append(record)
        by_round.append(list(fits))
        fits.clear()
    return records, by_round


def test_classes_announced_with_the_reply_wait_one_round(fits: Fits) -> None:
    made = federation("icarl", announce="reply", merge_rounds=0, scenario=THREE_ROUNDS)
    records, by_round = played_by_round(made, fits)
    assert [record.classes for record in records] == [0, 2, 2, 2, 4, 4]
    assert by_round[0] == []
    assert [{label for _, labels in each for label in labels} for each in by_round[1:4]] == [{1, 3}] * 3
    assert {label for _, labels in by_round[4] for label in labels} >= {0, 2}
    assert [record.failures for record in records] == [[]] * 6


def test_classes_announced_at_the_start_are_trained_at_once(fits: Fits) -> None:
    records, by_round = played_by_round(federation(scenario=THREE_ROUNDS), fits)
    assert [record.classes for record in records] == [2, 2, 2, 4, 4, 4]
    assert [{outputs for outputs, _ in each} for each in by_round] == [{2}] * 3 + [{4}] * 3
    assert {label for _, labels in by_round[0] for label in labels} == {1, 3}
    assert {label for _, labels in by_round[3] for label in labels} >= {0, 2}


def test_announcing_with_replies_gives_the_same_catalogue_a_round_later() -> None:
    scenario = {"rounds_per_task": 2, "class_order": (3, 1, 2, 0)}
    early, _ = run_rounds(federation(scenario=scenario))
    late, _ = run_rounds(federation(scenario=scenario, announce="reply", merge_rounds=0))
    at_once = [state.server.catalogue for state in early]
    delayed = [state.server.catalogue for state in late]
    assert [catalogue.classes for catalogue in at_once] == [("1", "3")] * 2 + [("1", "3", "0", "2")] * 2
    assert [catalogue.blocks for catalogue in at_once] == [(2,)] * 2 + [(2, 4)] * 2
    assert delayed[0].classes == ()
    assert delayed[1:] == [replace(catalogue, began=catalogue.began + 1) for catalogue in at_once[:-1]]


@pytest.mark.parametrize(("announce", "window"), [("start", 0), ("reply", 3)])
def test_by_default_classes_that_trickle_in_with_replies_are_one_block(announce: str, window: int) -> None:
    assert FederationConfig(announce=announce).window == window
    assert FederationConfig(announce=announce, merge_rounds=7).window == 7
    states, _ = run_rounds(federation(announce=announce))
    assert states[-1].server.catalogue.blocks == ((4,) if window else (2, 4))


def test_growths_within_the_merging_rounds_are_one_block() -> None:
    states, _ = run_rounds(federation(wrap=Constant, merge_rounds=2))
    assert states[-1].server.catalogue.blocks == (4,)


def test_growing_keeps_the_outputs_that_exist() -> None:
    server = federation().simulation.server
    narrow = server.grow(server.start(), ["1", "0"])
    wide = server.grow(replace(narrow, round=1), ["2", "0", "3"])
    assert (head_width(narrow.model), head_width(wide.model)) == (2, 4)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(wide.model[name][:2], narrow.model[name])
    assert server.grow(wide, ["3"]) is wide


@pytest.mark.parametrize("method", ["finetune", "glfc"])
def test_a_model_without_outputs_is_evaluated_as_always_wrong(method: str) -> None:
    made = federation(method, announce="reply", hyper=BRIEF_GLFC if method == "glfc" else {})
    state, record = next(made.simulation.rounds(made.simulation.start()))
    assert record.classes == 0
    assert made.simulation.evaluate(state) == ([0], [10])


# --- what happens at a growth -------------------------------------------------------------------------------------


@dataclass
class Settled:
    """One call of the role, with what it was given."""

    classes: int
    outputs: int
    blocks: tuple[int, ...]
    seed: int


class NotingServer(AveragingServer[Stateless]):
    """Notes when it settles a block, and the seeds with which the head grows."""

    def __init__(self) -> None:
        super().__init__(Stateless())
        self.settled: list[Settled] = []
        self.seeds: list[int] = []

    def settle(
        self, state: Stateless, model: ModelState, context: RoundContext, seed: int, machine: Trainer
    ) -> Stateless:
        assert head_width(machine.net(model).state_dict()) == head_width(model), "the machine builds the old network"
        self.settled.append(Settled(context.classes, head_width(model), context.blocks, seed))
        return state

    def grow(
        self, state: Stateless, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[Stateless, ModelState]:
        self.seeds.append(seed)
        return super().grow(state, model, classes, new_block, seed)


def noting(merge_rounds: int = 0, teaches: bool = False) -> tuple[Server, NotingServer]:
    made, role = federation("icarl" if teaches else "finetune", merge_rounds=merge_rounds), NotingServer()
    return replace(made.simulation.server, role=role), role


def grown(server: Server, *announced: str) -> ServerState:
    """Return the state after a growth per round, each by the classes of a text."""
    state = server.start()
    for number, classes in enumerate(announced):
        state = server.grow(replace(state, round=number), classes.split())
    return state


def test_a_block_is_settled_once_before_the_head_grows_and_the_first_growth_settles_nothing() -> None:
    server, role = noting()
    grown(server, "0 1", "0", "2", "", "3 4")
    assert [(s.classes, s.outputs, s.blocks) for s in role.settled] == [(2, 2, (2,)), (3, 3, (2, 3))]


def test_a_merged_growth_settles_nothing() -> None:
    server, role = noting(merge_rounds=1)
    grown(server, "0 1", "2", "3")
    assert [(s.classes, s.blocks) for s in role.settled] == [(3, (3,))]


def test_every_growth_and_every_settling_has_a_seed_of_its_own() -> None:
    server, role = noting()
    grown(server, "0 1", "2", "3 4")
    seeds = [*role.seeds, *(settled.seed for settled in role.settled)]
    assert len(set(seeds)) == len(seeds) == 5


def test_the_model_before_the_newest_block_is_kept_where_it_teaches_and_only_there() -> None:
    server, _ = noting(merge_rounds=1, teaches=True)
    first = grown(server, "0 1")
    merged = server.grow(replace(first, round=1), ["2"])
    second = server.grow(replace(merged, round=5), ["3"])
    widened = server.grow(replace(second, round=6), ["4"])
    assert (first.previous, merged.previous) == (None, None)
    for state in (second, widened):
        assert state.previous is not None
        assert model_digest(state.previous) == model_digest(merged.model)
    assert grown(noting()[0], "0 1", "2").previous is None


# --- announcements that are made up -------------------------------------------------------------------------------


HOSTILE: dict[int, tuple[str, ...]] = {
    1: ("", "x" * (LONGEST_ID + 1), "a\nb", "\x00", "\ud800"),
    2: tuple(f"made up {number}" for number in range(200_000)),
    3: (),
}


@pytest.mark.parametrize("announce", ["start", "reply"])
def test_a_made_up_announcement_costs_no_other_site_its_classes(monkeypatch: pytest.MonkeyPatch, announce: str) -> None:
    def lie(traffic: RoundTraffic, reply: Reply) -> Reply:
        first = announce == "reply" and traffic.broadcast.context.round == 0
        return replace(reply, announced=HOSTILE.get(reply.client, reply.announced)) if first else reply

    honest: Callable[..., Announcement] = Client.announce

    def announcing(self: Client, *found: Any) -> Announcement:
        return Announcement(HOSTILE[self.client]) if self.client in HOSTILE else honest(self, *found)

    monkeypatch.setattr(Client, "announce", announcing)
    scenario = {"tasks": 1, "rounds_per_task": 2, "class_fraction": 1.0}
    states, records = run_rounds(federation(announce=announce, scenario=scenario, wrap=changed(lie)))
    assert states[0].server.waiting == (("0", "1", "2", "3") if announce == "reply" else ())
    assert states[1].server.catalogue.classes == ("0", "1", "2", "3")
    assert [record.failures for record in records] == [[], []]


def test_an_id_may_be_as_long_as_a_digest() -> None:
    server = federation().simulation.server
    longest = "f" * LONGEST_ID
    assert grown(server, f"{longest} 7").catalogue.classes == ("7", longest)


def test_an_announcement_ends_somewhere_and_leaves_room_for_others() -> None:
    made_up = [str(number) for number in range(MOST_ANNOUNCED)]
    assert len(believable([*made_up[1:], "\n"])) == MOST_ANNOUNCED - 1
    assert len(believable(made_up)) == MOST_ANNOUNCED
    assert believable([*made_up, "one more"]) == set()
    honest = "f" * 32  # longer than what is made up, so it comes after it
    found = Catalogue().with_classes({*believable(made_up), honest}, 0, 0)
    assert found.classes[-1] == honest


def test_the_catalogue_ends_somewhere() -> None:
    catalogue = federation().simulation.server.start().catalogue
    many = catalogue.with_classes((str(number) for number in range(MOST_CLASSES + 5)), 0, 0)
    assert many.classes[-1] == str(MOST_CLASSES - 1)
    assert many.with_classes(["one more"], 1, 0) is many
