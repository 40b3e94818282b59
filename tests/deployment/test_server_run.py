"""A federation between real sites ends as a simulation does, whoever is slow, killed or resumed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from support.consortium import CLASSES, PROXY, SITES, Build, Consortium, Wire, picture, small_config
from support.folders import class_counts
from torch import Tensor

from fcil.core.errors import CheckpointError, ConfigError
from fcil.core.messages import Failure, Order, Reply, Stream, model_digest
from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.deployment.client.begun_round import begun_round
from fcil.deployment.client.ingest import held_out_of
from fcil.deployment.party_store import ANSWER
from fcil.deployment.server.run import ServedRun, deployment_config, server_recipe
from fcil.deployment.transport.messages import EvaluateRequest
from fcil.experiment.checkpoint import FILE, PREVIOUS
from fcil.experiment.model_file import load_model
from fcil.federation.engines.serial import SerialEngine
from fcil.federation.proxy import ProxyParty
from fcil.federation.server import Server, ServerSeeds
from fcil.federation.simulated_clients import SimulatedClients
from fcil.federation.simulation import Simulation
from fcil.federation.traffic import RoundTraffic
from fcil.models.client_context import ClientContext

# round -> site -> what arrives there before it: class and seeds
Schedule = dict[int, dict[str, list[tuple[str, range]]]]
GROWING: Schedule = {
    0: {
        "aachen": [("ant", range(8)), ("bee", range(8))],
        "berlin": [("ant", range(20, 30))],
        "cork": [("bee", range(40, 47)), ("ant", range(40, 44))],
    },
    2: {"aachen": [("cow", range(9))], "cork": [("dog", range(6)), ("cow", range(60, 68))]},
    4: {"berlin": [("bee", range(80, 86)), ("elk", range(5))]},
}
ROUNDS = 6
NO_IMAGE, NO_INDEX = torch.empty(0, 1, 8, 8, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)


def deliver(made: Consortium, schedule: Schedule = GROWING) -> dict[int, Callable[[], object]]:
    """Return what puts the files of a schedule into the sites' folders."""

    def arrive(number: int) -> None:
        for site, found in schedule[number].items():
            for name, seeds in found:
                made.add(site, name, *seeds)

    return {number: partial(arrive, number) for number in schedule}


# --- the same federation, run by the simulation ----------------------------------------------------------------


@dataclass
class Stock:
    """A client's samples, built from the pictures themselves: additions in the order of classes and of digests."""

    name: str
    made: Consortium
    samples: Samples = field(default_factory=lambda: Samples(Split(NO_IMAGE, NO_INDEX), ()))
    held_out: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    arrival: Tensor = field(default_factory=lambda: NO_INDEX)

    def holding(self, round: int, client: int) -> Tensor:
        found = dict(GROWING.get(round, {}).get(self.name, ()))
        if found:
            self._add(found)
        return self.arrival

    def new_classes(self, round: int, client: int) -> bool:
        raise AssertionError("a real site is not told")

    def _add(self, found: dict[str, range]) -> None:
        secret = self.made.keys.sites[self.name].secret
        known = [name for name in CLASSES if secret.class_id(name) in self.samples.ids]
        names = sorted(known, key=lambda name: self.samples.ids.index(secret.class_id(name)))
        names += sorted(found.keys() - set(names))
        images, labels, kept = [], [], []
        for label, name in enumerate(names):
            folder = self.made.data(self.name) / name
            files = [(folder / f"{name}-{seed:03}.png", seed) for seed in found.get(name, ())]
            files.sort(key=lambda file: hashlib.sha256(file[0].read_bytes()).digest())
            before = int((self.samples.split.labels == label).sum())
            wanted = held_out_of(before + len(files), 0.1)
            wanted -= int((self.held_out & (self.samples.split.labels == label)).sum())
            images += [picture(name, seed)[None] for _, seed in files]
            labels += [label] * len(files)
            kept += [row < wanted for row in range(len(files))]
        split = Split(torch.from_numpy(np.stack(images)), torch.tensor(labels))
        indices = self.samples.append(split, [secret.class_id(name) for name in names])
        self.held_out = torch.cat([self.held_out, torch.tensor(kept)])
        self.arrival = indices[~self.held_out[indices]]


class Apart:
    """An engine in which each client has a `SerialEngine`, samples and a root of its own; seeds follow the order."""

    def __init__(self, engines: dict[int, SerialEngine], roots: dict[int, int]) -> None:
        self.engines = engines
        self.roots = roots

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for order in orders:
            task = begun_round(traffic.broadcast_to(order), order, None).task
            self.engines[order.client].clients.seeds = Stream(self.roots[order.client], "client", task)
            yield from self.engines[order.client].run(traffic, [order])

    def close(self) -> None:
        pass


class Membership:
    """The little that a simulation asks its scenario for: who is there, and for how long."""

    rounds = ROUNDS
    task = ends_task = staticmethod(lambda _: 0)
    group_sizes = staticmethod(lambda _: {})
    group_members = staticmethod(lambda _, __: {})
    arrivals = staticmethod(lambda _: [])

    def clients(self, _: int) -> list[int]:
        return [0, 1, 2]


def simulated(made: Consortium) -> list[str]:
    """Return the digests of the global models of a simulation of the same federation."""
    keys, config = made.keys, deployment_config(made.config)
    unmeasured = config.federation.model_copy(update={"max_drop": None})  # there are no test images
    plain = server_recipe(config)
    recipe = replace(plain, setting=replace(plain.setting, secret=keys.proxy.secret.encoder_seed))
    roles, machine = recipe.roles(), recipe.machine()
    engines = {}
    for number, name in enumerate(SITES[:3]):
        stock = Stock(name, made)
        sites = SimulatedClients(roles.client, Stream(keys.sites[name].root, "client"), stock, stock.samples)
        engines[number] = SerialEngine(sites, recipe.aggregator(), ClientContext.at(stock.samples, machine))
    server = Server(
        recipe.server(),
        recipe.aggregator(),
        unmeasured,
        machine,
        config.scenario.participants,
        roles.teaches,
        ServerSeeds.of(config.seed),
    )
    proxy = ProxyParty(roles.proxy, machine, Stream(keys.proxy.root, "proxy")) if roles.proxy else None
    roots = {number: keys.sites[name].root for number, name in enumerate(SITES[:3])}
    scenario, nobody = cast(Scenario, Membership()), engines[0].clients
    simulation = Simulation(server, proxy, nobody, Apart(engines, roots), scenario, Split(NO_IMAGE, NO_INDEX))
    return [model_digest(state.model) for state, _ in simulation.rounds(simulation.start())]


_known: dict[tuple[Path, str], list[str]] = {}  # by keys and method: several tests compare with it


def reference(made: Consortium) -> list[str]:
    """Return the results of the simulation, once per method; all files of the schedule must have arrived."""
    key = made.keys.place, made.config.method_name
    if key not in _known:
        _known[key] = simulated(made)
    return _known[key]


def served(made: Consortium, after: Callable[[], object] = int) -> list[str]:
    """Return the digests of the global models of sites and server; `after` is done after each round."""
    acts, digests = deliver(made), []
    acts[0]()
    while len(digests) < ROUNDS:
        next(made.rounds())
        digests.append(made.digest)
        acts.get(len(digests), int)()
        after()
    return digests


def build_growing(build: Build, method: str, *settings: str) -> Consortium:
    return build(method, "scenario.participants=2", *settings, rounds=ROUNDS)


@pytest.mark.numeric
@pytest.mark.parametrize("method", ["glfc", "icarl", "bic", "target"])
def test_it_plays_the_bits_that_a_simulation_plays(build: Build, method: str) -> None:
    """Requests, sealed boxes, disks and folders change nothing.

    In the simulation each client has a store of its own, as sites have. With one store for all, as `SimulatedClients`
    usually has, the last bits could differ: outputs depend on the block that a sample is computed in, and each
    store is cut into blocks of its own.
    """
    made = build_growing(build, method)
    digests = served(made)
    assert len(set(digests)) == ROUNDS
    assert digests == reference(made)
    assert made.warned == []
    assert all(record.failures == [] for record in made.journal)


def test_all_parties_may_stop_and_start_again_after_every_round(build: Build) -> None:
    made = build_growing(build, "glfc")

    def restart() -> None:
        for name in SITES[:3]:
            made.reopen(name)
        made.reopen("proxy")
        made.serve()

    digests = served(made, restart)
    assert digests == reference(made)
    assert len(made.journal) == ROUNDS


def test_answers_may_come_in_any_order(build: Build) -> None:
    made = build_growing(build, "glfc")
    draw = random.Random(5)
    made.wire.order = lambda answers: draw.sample(answers, len(answers))
    assert served(made) == reference(made)


def test_lost_answers_are_asked_for_again_and_change_nothing(build: Build) -> None:
    made = build_growing(build, "glfc", "federation.min_participants=2")
    losing = iter([1, PROXY, 0, 1])

    def lose() -> None:
        made.wire.deaf |= {next(losing, 0)}

    assert served(made, lose) == reference(made)
    assert made.wire.losses >= 2
    again = [line for said in made.said.values() for line in said if "asks for the last answer again" in line]
    assert again
    assert any("is tried again" in warning for warning in made.warned)


def test_whoever_is_killed_before_it_kept_its_answer_plays_the_round_again(build: Build) -> None:
    """In every round all sites and the proxy lose what they have just answered: alarms and memories come out alike."""
    made = build_growing(build, "glfc", "federation.min_participants=2", "deployment.attempts=3")
    everyone = {0, 1, 2, PROXY}

    def kill(number: int) -> None:
        name = "proxy" if number == PROXY else SITES[number]
        (made.state(name) / ANSWER).unlink(missing_ok=True)  # killed between two writes
        made.reopen(name)

    made.wire.lost = kill

    def lose() -> None:
        made.wire.deaf = set(everyone)

    assert served(made, lose) == reference(made)
    assert made.wire.losses == (ROUNDS - 1) * len(everyone)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_it_and_loses_nothing(build: Build) -> None:
    made = build_growing(build, "icarl")
    checkpoint, done = made.place / "run" / FILE, []

    def damage() -> None:
        if made.rounds_played == 3 and not done:
            content = bytearray(checkpoint.read_bytes())
            content[len(content) // 2] ^= 1
            checkpoint.write_bytes(content)
            made.serve()
            done.append(made.rounds_played)

    acts, digests = deliver(made), {}
    acts[0]()
    while made.rounds_played < ROUNDS:
        next(made.rounds())
        digests[made.rounds_played] = made.digest
        acts.pop(made.rounds_played, int)()
        damage()
    assert done == [2]
    (warning,) = made.warned
    assert "checkpoint.fcil is damaged" in warning
    assert warning.endswith("continuing from checkpoint.previous.fcil, after round 2")
    assert list(digests.values()) == reference(made)


def test_without_any_whole_checkpoint_it_is_refused(build: Build) -> None:
    made = build_growing(build, "icarl", "deployment.rounds=1")
    made.play()
    for name in (FILE, PREVIOUS):
        (made.place / "run" / name).write_bytes(b"FCILFILE")
    with pytest.raises(CheckpointError, match=r"cannot be resumed: .*, and for the previous checkpoint, "):
        made.serve()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "method.detector=oracle",
            "method.detector: the oracle reads a simulation's schedule; with real sites use labels",
        ),
        ("model.mean=[0.5, 0.5, 0.5]", "model.mean: found 3 values, should be 1, as deployment.channels says"),
    ],
)
def test_what_no_real_site_could_play_is_refused_before_anything_is_made(
    tmp_path: Path, setting: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ServedRun.start(small_config("icarl", setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- the same folder with another configuration -------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["seed=7", "train.epochs=2", "deployment.image_size=16"])
def test_another_configuration_is_refused_by_the_name_of_its_key(build: Build, setting: str) -> None:
    made = build(rounds=1)
    made.play()
    with pytest.raises(CheckpointError, match=f"was begun with another configuration: {setting.partition('=')[0]} "):
        made.serve(small_config("icarl", setting, rounds=1))
    made.serve(small_config("icarl", "description=the same", "deployment.deadline=9", rounds=1))


def test_more_rounds_are_played_if_the_configuration_asks_for_them(build: Build) -> None:
    made = build(rounds=2)
    made.add("aachen", "ant", *range(6))
    assert [record.round for record in made.play()] == [1, 2]
    assert made.run is not None
    assert made.run.finished
    longer = small_config("icarl", rounds=4)
    made.serve(longer)
    assert not made.run.finished
    assert made.run.reconfigured == {"rounds": [2, 4]}
    assert [record.round for record in made.rounds()] == [3, 4]
    assert [call.last for call in made.wire.requests(EvaluateRequest, 0)] == [True, True], (
        "each time the last one of a run"
    )


def test_what_the_parties_agree_on_leaves_each_its_own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def terms(*settings: str) -> str:
        run = ServedRun(small_config("glfc", *settings), tmp_path / "run")
        return run.serve(Wire(), print).terms.recipe

    assert terms() == terms("run.threads=2", "run.device=cuda", "deployment.rounds=9")
    assert terms() != terms("method.perturb_steps=2")
    assert '"secret": null' in terms()


def test_a_run_ends_with_a_model_a_summary_and_farewells(build: Build) -> None:
    made = build("icarl", "deployment.evaluate_every=0", rounds=3)
    made.add("aachen", "ant", *range(6))
    made.add("berlin", "bee", *range(6))
    made.play()
    assert made.run is not None
    assert made.server is not None
    summary = made.run.finish()
    made.server.dismiss()
    assert all(party.dismissed for party in made.parties.values())
    identity = made.keys.sites["aachen"].secret.class_id
    ids = tuple(sorted(map(identity, ("ant", "bee"))))
    theirs, ours = (load_model(made.place / place / "model.safetensors") for place in ("run", "state/aachen"))
    assert theirs.class_names == ids
    assert ours.class_names == tuple("ant" if one == identity("ant") else one for one in ids), "it knows its own"
    assert summary["last"] is not None


# --- what a site keeps --------------------------------------------------------------------------------------------


def test_images_that_no_kept_state_uses_are_gone_from_memory_and_disk(build: Build) -> None:
    made = build_growing(build, "icarl")
    served(made)
    site = made.site("aachen")
    counts = class_counts(site.data)
    assert counts["ant"].retired + counts["bee"].retired == 8 + 8 - 2 - 6, "all but the hold-out and six exemplars"
    held = sum(file.stat().st_size for file in site.folder.glob("images-*.fcil"))
    assert held < (2 + 6 + 9 + 1) * 64 + 1000
    assert counts["cow"].retired == 0
