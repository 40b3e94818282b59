"""Flower's engine: what it sends and to whom, nodes that are lost, and its own simulation from start to end."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cluster import free_for_flower, on_flower, without_flower
from support.rounds import first_round

from fcil.core.errors import ConfigError
from fcil.core.messages import Broadcast, Failure, Missing, encode, model_digest
from fcil.federation.traffic import Post
from fcil.testing import Trial, trial
from fcil.testing.played import SHORT
from fcil.testing.trial import blobs

pytestmark = without_flower
SMALL: dict[str, Any] = {"scenario": {"participants": 4}, "train": {"epochs": 1}}


@pytest.fixture
def shared() -> Iterator[Trial]:
    made = trial("icarl", engine=on_flower(), seed=41, source=blobs(per_class=11), **SMALL)  # new to all processes
    yield made
    made.simulation.engine.close()


def sent_parts(engine: Any) -> list[tuple[str, ...]]:
    """Let an engine write down which parts go along with each message that it sends."""
    honest, noted = engine._send, []

    def send(sent: Any) -> None:
        noted.append(sent.asked)
        honest(sent)

    engine._send = send
    return noted


def test_what_many_jobs_need_is_sent_to_those_who_lack_it_and_kept_by_them(shared: Trial) -> None:
    post, orders = first_round(shared)
    engine: Any = shared.simulation.engine
    noted = sent_parts(engine)
    answers = [encode(answer) for answer in sorted(engine.run(post, orders), key=lambda answer: answer.client)]
    first = [parts for parts in noted if parts]
    assert len(noted) == len(orders) + len(first)  # each job once, and again for whoever lacked something
    assert 1 <= len(first) <= 3
    assert {len(parts) for parts in first} == {2}  # samples and model
    noted.clear()
    repeated = [encode(answer) for answer in sorted(engine.run(post, orders), key=lambda answer: answer.client)]
    assert repeated == answers
    assert sum(map(len, noted)) <= 2  # a process that had no job so far may ask now; nobody asks twice


@pytest.mark.parametrize("announce", ["start", "reply"])
def test_whenever_classes_are_announced_the_final_weights_are_those_of_the_serial_engine(announce: str) -> None:
    options: dict[str, Any] = {"scenario": SHORT, "federation": {"announce": announce}}
    made, plain = trial("icarl", engine=on_flower(), **options), trial("icarl", **options)
    assert model_digest(made.play()[0].model) == model_digest(plain.play()[0].model)


def test_an_app_that_fails_and_a_node_that_is_gone_are_failures_of_their_clients(shared: Trial) -> None:
    post, orders = first_round(shared)
    engine: Any = shared.simulation.engine
    engine.recipe = replace(engine.recipe, method="glfc")
    text, honest = engine.recipe.text(), engine.publish

    def publish(published: Any) -> None:
        honest(published)
        engine.recipe_text = text.replace('"glfc"', '"nobody"')

    engine.publish = publish
    failed = list(engine.run(post, orders))
    assert [type(answer) for answer in failed] == [Failure] * len(orders)
    assert {answer.reason for answer in failed} == {"its worker died 2 times over this order"}

    def publish_to_a_stranger(published: Any) -> None:
        honest(published)
        engine.nodes = [12345]

    engine.publish = publish_to_a_stranger
    broken = Post(Broadcast(replace(post.broadcast.context, round=1), "broken"), {"broken": {}})
    assert [type(answer) for answer in engine.run(broken, orders)] == [Failure] * len(orders)


def actors() -> list[int]:
    """Return the processes that play Flower's nodes below this one."""
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::ClientAppActor" in line]


def below(process: int) -> set[int]:
    """Return all processes below one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found, new = set[int](), {process}
    while new:
        new = {child for child, parent in parents if parent in new}
        found |= new
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes")
@pytest.mark.soak  # each starts a simulation of its own
@pytest.mark.parametrize("deaths", [0, 1])
def test_an_engine_of_its_own_survives_a_killed_node_and_leaves_no_process(deaths: int) -> None:
    made, plain = trial("icarl", engine="flower", **SMALL), trial("icarl", **SMALL)
    engine: Any = made.simulation.engine
    honest, victims, jobs = engine.submit, list[int](), list[Any]()

    def submit(worker: int, job: Any) -> None:
        jobs.append(job)
        if len(victims) < deaths:
            victims.append(min(set(actors()) & below(os.getpid())))
            os.kill(victims[-1], signal.SIGKILL)
        honest(worker, job)

    with free_for_flower():
        before, path = below(os.getpid()), os.environ.get("PYTHONPATH")
        try:
            rounds = made.simulation.rounds(made.simulation.start())
            expected = plain.simulation.rounds(plain.simulation.start())
            assert model_digest(next(rounds)[0].model) == model_digest(next(expected)[0].model)
            engine.submit = submit
            (state, record), (wanted, _) = next(rounds), next(expected)
            assert len(victims) == deaths
            assert record.failures == []
            assert model_digest(state.model) == model_digest(wanted.model)
            for number in engine.runtime.processes:
                os.kill(number, signal.SIGSTOP)  # a job that would never end does not keep the engine from closing
            honest(engine.idle()[0], jobs[-1])
        finally:
            engine.close()
            engine.close()
        assert {number for number in below(os.getpid()) - before if Path(f"/proc/{number}/exe").exists()} == set()
        assert os.environ.get("PYTHONPATH") == path


def test_ray_that_is_in_use_already_is_not_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    made = trial("icarl", engine="flower")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match=r"run.engine: Ray is in use in this process, .* or set run.engine to ray"):
        next(made.simulation.rounds(made.simulation.start()))
    made.simulation.engine.close()


def test_a_process_drops_what_it_used_least_recently() -> None:
    from fcil.federation.engines.flower.app import PARTS_KEPT, Shelf

    shelf = Shelf()
    names = [f"part {number}" for number in range(PARTS_KEPT + 2)]
    shelf.receive({name: encode(Missing((name,))) for name in names})
    shelf.use(names[:1])
    assert shelf.lacks(names) == tuple(names[1:3])
    shelf.receive({name: encode(Missing((name,))) for name in names})
    shelf.use(names)  # a job that needs more than are kept has them all
    assert shelf.lacks(names) == ()


@pytest.mark.parametrize(
    ("missing", "what"), [("flwr", r"flower \(flwr\)"), ("ray", "ray, on which Flower simulates,")]
)
def test_without_flower_or_ray_the_engine_says_what_to_install(
    missing: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(
        ConfigError, match=rf"run.engine: {what} is not installed; install fcil with its extras `ray,flow"
    ):
        trial("icarl", engine="flower")
