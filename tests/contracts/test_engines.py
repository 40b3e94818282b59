"""What every engine must do: the same bits as the plain one, errors as messages."""

from __future__ import annotations

import pytest
from support.blobs import trial

from fcil.engines import ENGINES
from fcil.federation.client import run_client
from fcil.wire import Broadcast, Failure, Order, Reply, encode, model_digest


def first_broadcast(made) -> tuple[Broadcast, list[Order]]:  # type: ignore[no-untyped-def]
    captured: list[tuple[Broadcast, list[Order]]] = []

    class Recorder:
        def run(self, broadcast, orders):  # type: ignore[no-untyped-def]
            captured.append((broadcast, orders))
            return iter([Reply(order.client) for order in orders])

    from dataclasses import replace

    next(replace(made.federation, engine=Recorder()).rounds(made.federation.start()))
    return captured[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_answers_equal_those_of_clients_run_one_by_one(engine: str) -> None:
    made, plain = trial("glfc", engine=engine), trial("glfc")
    broadcast, orders = first_broadcast(made)
    answers = {answer.client: answer for answer in made.federation.engine.run(broadcast, orders)}
    assert sorted(answers) == [order.client for order in orders]
    for order in orders:
        arrival = plain.federation.scenario.holding(0, order.client)
        _, expected = run_client(
            plain.roles.client, plain.roles.client.init(), broadcast, order, arrival, plain.federation.local
        )
        assert encode(answers[order.client]) == encode(expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_error_is_a_message_and_leaves_its_state_alone(engine: str) -> None:
    made = trial("glfc", engine=engine)
    broadcast, orders = first_broadcast(made)
    broken = Broadcast(broadcast.moment, "no such digest", {})
    answers = list(made.federation.engine.run(broken, orders))
    assert [type(answer) for answer in answers] == [Failure] * len(orders)
    assert made.store.load(0) == made.roles.client.init()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_whole_run_gives_the_bits_of_the_serial_engine(engine: str) -> None:
    ours, _ = trial("icarl", engine=engine).play()
    plain, _ = trial("icarl").play()
    assert model_digest(ours.model) == model_digest(plain.model)
