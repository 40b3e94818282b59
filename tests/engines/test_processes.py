"""Worker processes that die, owners that die, and nothing that stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.blobs import Trial, trial

from fcil.engines.arena import Arena
from fcil.engines.processes import ProcessEngine
from fcil.errors import FederationError
from fcil.wire import Broadcast, Failure, Order, Reply, encode


@dataclass
class CapturedError(Exception):
    """Carries a round's broadcast and orders out of the federation."""

    broadcast: Broadcast
    orders: list[Order]


class Recorder:
    def run(self, broadcast: Broadcast, orders: list[Order]) -> Any:
        raise CapturedError(broadcast, orders)

    def close(self) -> None:
        pass


def first_round(made: Trial) -> tuple[Broadcast, list[Order]]:
    with pytest.raises(CapturedError) as caught:
        next(replace(made.federation, engine=Recorder()).rounds(made.federation.start()))
    return caught.value.broadcast, caught.value.orders


@pytest.fixture
def made() -> Iterator[Trial]:
    built = trial("icarl", engine="processes", scenario={"participants": 4})
    yield built
    built.federation.engine.close()


def engine_of(made: Trial) -> ProcessEngine:
    assert isinstance(made.federation.engine, ProcessEngine)
    return made.federation.engine


def answers_of(made: Trial) -> list[bytes]:
    plain = trial("icarl", scenario={"participants": 4})
    broadcast, orders = first_round(plain)
    return sorted(encode(answer) for answer in plain.federation.engine.run(broadcast, orders))


def kill_on_submit(engine: ProcessEngine, times: int) -> list[int]:
    """Make the worker of the first job die as it is given, and again for as often as asked; return who it was for."""
    honest, victims = engine.submit, []

    def submit(worker: int, job: Any) -> None:
        honest(worker, job)
        if len(victims) < times and job.order.client in (victims[:1] or [job.order.client]):
            victims.append(job.order.client)
            engine.processes[worker].process.kill()

    engine.submit = submit  # type: ignore[method-assign]
    return victims


def test_a_worker_that_dies_is_replaced_its_order_repeated_and_closing_leaves_nobody(made: Trial) -> None:
    broadcast, orders = first_round(made)
    victims = kill_on_submit(engine_of(made), 1)
    answers = list(made.federation.engine.run(broadcast, orders))
    assert len(victims) == 1
    assert sorted(encode(answer) for answer in answers) == answers_of(made)
    numbers = [process.process.pid for process in engine_of(made).processes]
    assert len(numbers) == 2
    made.federation.engine.close()
    assert not any(_alive(number) for number in numbers)


def test_an_order_that_kills_its_workers_twice_is_a_failure_and_the_others_are_answered(made: Trial) -> None:
    broadcast, orders = first_round(made)
    victims = kill_on_submit(engine_of(made), 2)
    answers = {answer.client: answer for answer in made.federation.engine.run(broadcast, orders)}
    assert len(set(victims)) == 1
    failure = answers.pop(victims[0])
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.reason) == ("worker", "its worker died 2 times over this order")
    assert all(isinstance(answer, Reply) for answer in answers.values())
    assert len(answers) == len(orders) - 1


def test_a_round_that_was_given_up_does_not_reach_into_the_next(made: Trial) -> None:
    broadcast, orders = first_round(made)
    given_up = made.federation.engine.run(broadcast, [order for order in orders if order.participate])
    next(given_up)
    given_up.close()  # type: ignore[attr-defined]
    for client in list(made.store.states):
        del made.store.states[client]
    made.store.entropy[:] = float("nan")
    answers = [encode(answer) for answer in made.federation.engine.run(broadcast, orders)]
    assert sorted(answers) == answers_of(made)


def test_workers_that_never_start_stop_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch, made: Trial) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    broadcast, orders = first_round(made)
    with pytest.raises(FederationError, match="workers do not start: a worker process ended with code 1"):
        list(made.federation.engine.run(broadcast, orders))


def test_a_worker_that_the_system_does_not_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch, made: Trial) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    broadcast, orders = first_round(made)
    with pytest.raises(FederationError, match="workers do not start: /nowhere/python: No such file or directory;"):
        list(made.federation.engine.run(broadcast, orders))


ORPHANS = """
import sys, time
from support.blobs import trial
made = trial("icarl", engine="processes")
rounds = made.federation.rounds(made.federation.start())
next(rounds)
print(*[process.process.pid for process in made.federation.engine.processes], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_workers_go_with_their_owner(how: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    owner = subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    with owner:
        assert owner.stdout is not None
        workers = [int(number) for number in owner.stdout.readline().split()]
        assert len(workers) == 2
        owner.send_signal(how)
    patience = time.monotonic() + 60
    while any(_alive(worker) for worker in workers):
        assert time.monotonic() < patience, "a worker outlived its owner"
        time.sleep(0.1)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_arena_grows_under_views_that_stay_valid_and_is_seen_by_others() -> None:
    arena = Arena()
    first = arena.view(4)
    first[:4] = b"abcd"
    other = Arena(os.dup(arena.descriptor))
    larger = arena.view(10_000)
    larger[9_999:10_000] = b"z"
    larger[:1] = b"A"
    assert bytes(first[:4]) == b"Abcd"
    assert bytes(other.view(10_000)[9_999:10_000]) == b"z"
    arena.close()
    assert bytes(other.view(4)[:4]) == b"Abcd"
    other.close()
