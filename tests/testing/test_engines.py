"""The contract of every engine: the same bits as the plain one, errors as messages, no trace once it is closed.

`MethodContract` runs every method at a worker; here each engine runs GLFC, and Ray a server's images, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from support.cluster import start_cluster, without_ray
from support.rounds import aggregated, first_round

from fcil.core.messages import Broadcast, Failure, Reply, Report, derive_seed, encode, model_digest
from fcil.federation.client import Job
from fcil.federation.engines import ENGINES
from fcil.federation.engines.base import Publication
from fcil.federation.engines.pool import Pool
from fcil.federation.traffic import RoundTraffic
from fcil.methods import methods
from fcil.methods.base import Current
from fcil.testing import Trial, trial
from fcil.testing.recorded import SHORT, snapshot

NEEDS = {"ray": [without_ray]}
CHOICES = [pytest.param(name, marks=NEEDS.get(name, [])) for name in ENGINES]


def on_ray(method: str) -> Any:
    """Return the case of a method on Ray: a proxy and images of the server's in the suite, the others in the soak."""
    marks = [without_ray] if method in ("glfc", "target") else [without_ray, pytest.mark.soak]
    return pytest.param("ray", method, marks=marks)


PLAYED = [("processes", "glfc"), *map(on_ray, methods())]


@pytest.fixture
def make() -> Iterator[Callable[..., Trial]]:
    made: list[Trial] = []

    def build(*arguments: Any, **fields: Any) -> Trial:
        if fields.get("engine") == "ray":
            start_cluster()
        made.append(trial(*arguments, **fields))
        return made[-1]

    yield build
    for entry in made:
        entry.simulation.engine.close()


def kept(made: Trial) -> dict[int, bytes]:
    """Return what the store of each client holds, encoded."""
    return {client: encode(stamped) for client, stamped in made.clients.kept.items()}


@pytest.mark.parametrize("engine", CHOICES)
def test_answers_equal_those_of_roles_played_one_by_one(engine: str, make: Callable[..., Trial]) -> None:
    made, plain = make("glfc", "paper", engine=engine), make("glfc", "paper")  # its detection looks at the model
    traffic, orders = first_round(made)
    answers = {answer.client: answer for answer in made.simulation.engine.run(traffic, orders)}
    assert sorted(answers) == [order.client for order in orders]
    assert {order.participate for order in orders} == {True, False}
    role, world, sent = plain.roles.client, plain.simulation.scenario, traffic.broadcast
    for order in orders:
        broadcast = sent if order.participate else Broadcast(sent.context, sent.model)
        seed = derive_seed(5, "client", 0, order.client)
        current = Current(world.holding(0, order.client), traffic.models, seed)
        state, expected, measured = role.round(role.init(), broadcast, order, current, plain.local)
        assert encode(answers[order.client]) == encode(expected)
        assert encode(made.clients.states()[order.client]) == encode(state)
        assert encode(made.clients.diagnostics[order.client]) == encode(measured)
        stamped = made.clients.kept[order.client]
        assert (stamped.round, stamped.entropy) == (0, measured.entropy)
    # A client's error is a message, in the same engine and after a good round, and leaves its store alone.
    before, changed = kept(made), set(made.clients.changed)
    broken = Broadcast(replace(sent.context, round=1), "broken")
    failed = list(made.simulation.engine.run(RoundTraffic(broken, {"broken": {}}), orders))
    assert [type(answer) for answer in failed] == [Failure] * len(orders)
    assert sorted(answer.client for answer in failed) == sorted(answers)
    assert (kept(made), made.clients.changed) == (before, changed)


def overheard(engine: Pool) -> tuple[list[Publication], list[tuple[int, Job]]]:
    """Let an engine with workers write down what it publishes, and its jobs with the number of publications so far."""
    publish, submit = engine.publish, engine.submit
    published: list[Publication] = []
    jobs: list[tuple[int, Job]] = []

    def publish_and_note(publication: Publication) -> None:
        published.append(publication)
        publish(publication)

    def submit_and_note(worker: int, job: Job) -> None:
        jobs.append((len(published), job))
        submit(worker, job)

    engine.publish, engine.submit = publish_and_note, submit_and_note  # type: ignore[method-assign]
    return published, jobs


@pytest.mark.parametrize(("engine", "method"), PLAYED)
def test_a_whole_run_gives_the_bits_of_the_serial_engine_and_only_participants_travel(
    engine: str, method: str, make: Callable[..., Trial]
) -> None:
    workers = 2 if method == "glfc" else 1
    ours, plain = make(method, engine=engine, scenario=SHORT, workers=workers), make(method, scenario=SHORT)
    assert isinstance(ours.simulation.engine, Pool)
    published, jobs = overheard(ours.simulation.engine)
    (state, records), (expected, plain_records) = ours.run(), plain.run()
    assert snapshot(ours, state) == snapshot(plain, expected)
    assert [replace(record, seconds=0) for record in records] == [
        replace(record, seconds=0) for record in plain_records
    ]
    # Models are published once per round, and those who only look on never leave the process.
    assert [entry.broadcast.context.round for entry in published] == [record.round - 1 for record in records]
    asked = [(record.round, client) for record in records for client in record.participants]
    assert sorted((number, job.order.client) for number, job in jobs) == asked
    assert len(asked) < sum(record.clients for record in records)


def test_answers_may_come_in_any_order() -> None:
    """Add reports whose sum in double precision depends on the order: a large value, a small one, the large one off."""
    server = trial("finetune", federation={"max_update": 1e30}).simulation.server
    opened = server.open(server.grow(server.start(), ["0"]), None)
    replies = []
    for client, value in enumerate((2.0**60, 1.0, -(2.0**60))):
        weights = {**opened.state.model, "head.weight": torch.full_like(opened.state.model["head.weight"], value)}
        replies.append(Reply(client, Report(weights, 1)))
    orders = server.orders(range(3), range(3))
    closed = [aggregated(server, opened, orders, answers) for answers in permutations(replies)]
    assert not any(entry.failures for entry in closed)
    assert {model_digest(entry.state.model) for entry in closed} == {model_digest(closed[0].state.model)}


@pytest.mark.parametrize("engine", CHOICES)
def test_a_round_without_orders_has_no_answers_and_closing_twice_is_harmless(
    engine: str, make: Callable[..., Trial]
) -> None:
    made = make("finetune", engine=engine)
    traffic, _ = first_round(made)
    assert list(made.simulation.engine.run(traffic, [])) == []
    assert made.clients.kept == {}
    made.simulation.engine.close()
