"""What every engine must do: the same bits as the plain one, errors as messages, no trace once it is closed.

`MethodContract` plays every method in a worker process; here each engine plays GLFC, and Ray what has its own messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.cluster import start_cluster, without_ray

from fcil.engines import ENGINES
from fcil.federation.client import run_client
from fcil.methods import methods
from fcil.methods.base import Current
from fcil.testing import Trial, trial
from fcil.testing.played import SHORT, snapshot
from fcil.wire import Broadcast, Failure, Message, Order, Reply, encode

CHOICES = [pytest.param(name, marks=without_ray) if name == "ray" else name for name in ENGINES]


def has_messages(method: str) -> bool:
    """Say whether the method's file defines what is sent or kept, and is not a variant of another one."""
    module = sys.modules[methods()[method].build.__module__]
    own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    return any(issubclass(kind, Message) for kind in own) and methods()[method].variant_of is None


PLAYED = [("processes", "glfc")]
PLAYED_ON_RAY = [pytest.param("ray", method, marks=without_ray) for method in methods() if has_messages(method)]


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
        entry.federation.engine.close()


def first_broadcast(made: Trial) -> tuple[Broadcast, list[Order]]:
    captured: list[tuple[Broadcast, list[Order]]] = []

    class Recorder:
        def run(self, broadcast, orders):  # type: ignore[no-untyped-def]
            captured.append((broadcast, orders))
            return iter([Reply(order.client) for order in orders])

        def close(self) -> None:
            pass

    next(replace(made.federation, engine=Recorder()).rounds(made.federation.start()))
    return captured[0]


@pytest.mark.parametrize("engine", CHOICES)
def test_answers_equal_those_of_clients_run_one_by_one(engine: str, make: Callable[..., Trial]) -> None:
    made, plain = make("glfc", engine=engine), make("glfc")
    broadcast, orders = first_broadcast(made)
    answers = {answer.client: answer for answer in made.federation.engine.run(broadcast, orders)}
    assert sorted(answers) == [order.client for order in orders]
    for order in orders:
        current = Current(plain.federation.scenario.holding(0, order.client))
        state, expected = run_client(
            plain.roles.client, plain.roles.client.init(), broadcast, order, current, plain.federation.local
        )
        assert encode(answers[order.client]) == encode(expected)
        assert encode(made.store.load(order.client)) == encode(state)
    # a client's error is a message, in the same engine and after a good round, and leaves its state alone
    broken = Broadcast(broadcast.moment, "no such digest", {})
    before = {order.client: encode(made.store.load(order.client)) for order in orders}
    failed = list(made.federation.engine.run(broken, orders))
    assert [type(answer) for answer in failed] == [Failure] * len(orders)
    assert {order.client: encode(made.store.load(order.client)) for order in orders} == before


@pytest.mark.parametrize(("engine", "method"), [*PLAYED, *PLAYED_ON_RAY])
def test_a_whole_run_gives_the_bits_of_the_serial_engine(engine: str, method: str, make: Callable[..., Trial]) -> None:
    workers = 2 if method == "glfc" else 1
    ours, plain = make(method, engine=engine, scenario=SHORT, workers=workers), make(method, scenario=SHORT)
    (state, records), (expected, plain_records) = ours.play(), plain.play()
    assert snapshot(ours, state) == snapshot(plain, expected)
    assert [replace(record, seconds=0) for record in records] == [
        replace(record, seconds=0) for record in plain_records
    ]


@pytest.mark.parametrize("engine", CHOICES)
def test_a_round_without_orders_has_no_answers_and_closing_twice_is_harmless(
    engine: str, make: Callable[..., Trial]
) -> None:
    made = make("finetune", engine=engine)
    broadcast, _ = first_broadcast(made)
    assert list(made.federation.engine.run(broadcast, [])) == []
    made.federation.engine.close()
