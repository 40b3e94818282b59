"""Worker processes that die, owners that die, and nothing that stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rounds import first_round

from fcil.core import allocator
from fcil.core.allocator import PRELOAD
from fcil.core.errors import FederationError
from fcil.core.messages import Failure, Reply, encode
from fcil.federation.client import Job
from fcil.federation.engines.processes import ProcessEngine
from fcil.federation.engines.shared_memory import Arena
from fcil.federation.traffic import RoundTraffic
from fcil.testing import Trial, trial


@pytest.fixture
def made() -> Iterator[Trial]:
    built = trial("icarl", engine="processes", scenario={"participants": 4})
    yield built
    built.simulation.engine.close()


def engine_of(made: Trial) -> ProcessEngine:
    assert isinstance(made.simulation.engine, ProcessEngine)
    return made.simulation.engine


@pytest.fixture(scope="module")
def expected() -> tuple[list[bytes], int, int]:
    """Return the answers of the serial engine, and what was sent up and down for them."""
    plain = trial("icarl", scenario={"participants": 4})
    traffic, orders = first_round(plain)
    return sorted(encode(answer) for answer in plain.simulation.engine.run(traffic, orders)), traffic.up, traffic.down


def kill_on_submit(engine: ProcessEngine, times: int) -> list[Job]:
    """Make the worker of the first job die, as often as asked; return all jobs of that client."""
    honest, jobs = engine.submit, list[Job]()

    def submit(worker: int, job: Job) -> None:
        honest(worker, job)
        if not jobs or job.order.client == jobs[0].order.client:
            jobs.append(job)
            if len(jobs) <= times:
                engine.processes[worker].process.kill()

    engine.submit = submit  # type: ignore[method-assign]
    return jobs


def test_a_worker_that_dies_is_replaced_its_order_repeated_and_closing_leaves_nobody(
    made: Trial, expected: tuple[list[bytes], int, int]
) -> None:
    traffic, orders = first_round(made)
    jobs = kill_on_submit(engine_of(made), 1)
    answers = sorted(encode(answer) for answer in made.simulation.engine.run(traffic, orders))
    assert [encode(job) for job in jobs] == [encode(jobs[0])] * 2, "a repeated order is the same job"
    assert (answers, traffic.up, traffic.down) == expected
    numbers = [process.process.pid for process in engine_of(made).processes]
    assert len(numbers) == 2
    made.simulation.engine.close()
    assert not any(_alive(number) for number in numbers)


def test_an_order_that_kills_its_workers_twice_is_a_failure_and_the_others_are_answered(made: Trial) -> None:
    traffic, orders = first_round(made)
    jobs = kill_on_submit(engine_of(made), 2)
    answers = {answer.client: answer for answer in made.simulation.engine.run(traffic, orders)}
    assert len(jobs) == 2
    victim = jobs[0].order.client
    failure = answers.pop(victim)
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.reason) == ("worker", "its worker died 2 times over this order")
    assert all(isinstance(answer, Reply) for answer in answers.values())
    assert len(answers) == len(orders) - 1
    assert sorted(made.clients.kept) == sorted(answers), "a client that was lost keeps what it had: nothing"


def test_a_worker_that_dies_with_nothing_to_do_is_replaced_and_missed_by_nobody(made: Trial) -> None:
    traffic, orders = first_round(made)
    engine = engine_of(made)
    list(engine.run(traffic, orders))
    engine.processes[1].process.kill()
    engine.processes[1].process.wait()
    one = [order for order in orders if order.participate][:1]
    answers = list(engine.run(RoundTraffic(traffic.broadcast, traffic.models), one))
    assert [answer.client for answer in answers] == [one[0].client]
    assert isinstance(answers[0], Reply)


def test_a_round_that_was_given_up_does_not_reach_into_the_next(
    made: Trial, expected: tuple[list[bytes], int, int]
) -> None:
    traffic, orders = first_round(made)
    given_up = made.simulation.engine.run(traffic, [order for order in orders if order.participate])
    next(given_up)
    given_up.close()  # type: ignore[attr-defined]
    assert len(made.clients.kept) == 1
    again = RoundTraffic(traffic.broadcast, traffic.models)
    answers = [encode(answer) for answer in made.simulation.engine.run(again, orders)]
    assert sorted(answers) == expected[0]


def test_workers_that_never_start_stop_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch, made: Trial) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    traffic, orders = first_round(made)
    with pytest.raises(FederationError, match="workers do not start: a worker process ended with code 1"):
        list(made.simulation.engine.run(traffic, orders))


def test_a_worker_that_the_system_does_not_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch, made: Trial) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    traffic, orders = first_round(made)
    with pytest.raises(FederationError, match="workers do not start: /nowhere/python: No such file or directory;"):
        list(made.simulation.engine.run(traffic, orders))


ORPHANS = """
import signal, time
from fcil.testing import trial
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background has it ignored
made = trial("icarl", engine="processes")
rounds = made.simulation.rounds(made.simulation.start())
next(rounds)
print(*[process.process.pid for process in made.simulation.engine.processes], flush=True)
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


def test_workers_use_the_faster_allocator_where_it_is_installed(
    made: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[str] = []

    def begin(command: list[str], env: dict[str, str], **_: object) -> None:
        begun.append(env[PRELOAD])
        raise OSError("enough")

    monkeypatch.setattr(allocator, "library", lambda: tmp_path / "libtcmalloc_minimal.so.4")
    monkeypatch.delenv(PRELOAD, raising=False)
    monkeypatch.setattr(subprocess, "Popen", begin)
    with pytest.raises(FederationError, match="enough"):
        list(made.simulation.engine.run(*first_round(made)))
    assert begun == [str(tmp_path / "libtcmalloc_minimal.so.4")]
