from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fcil.engines import SerialEngine
from fcil.federation.catalogue import Catalogue
from fcil.federation.client import ClientStore, run_client
from fcil.local import Local
from fcil.methods.base import ClientRole, Current
from fcil.wire import Broadcast, Diagnostics, Failure, Moment, Order, Reply

BROADCAST = Broadcast(Moment(6, (0,), (1,), 2), "model", {})
NOTHING = torch.empty(0, dtype=torch.int64)
BEFORE, AFTER = Catalogue((1,)), Catalogue((1, 2))


class FragileClient(ClientRole[Catalogue]):
    """Fails at a stage, or before any, or not at all."""

    def __init__(self, fails_at: str | None) -> None:
        self.fails_at = fails_at

    def init(self) -> Catalogue:
        return Catalogue()

    def round(
        self, state: Catalogue, broadcast: Broadcast, order: Order, current: Current, local: Local
    ) -> tuple[Catalogue, Reply]:
        if self.fails_at == "start":
            raise KeyError("nothing there")
        for name in ("arrive", "fit", "prototypes"):
            with local.stage(name):
                if name == self.fails_at:
                    raise ValueError("broken disk")
        return AFTER, Reply(order.client)


def play(fails_at: str | None, local: Local) -> tuple[object, Reply | Failure]:
    return run_client(FragileClient(fails_at), BEFORE, BROADCAST, Order(17, 0, True), Current(NOTHING), local)


def test_a_client_that_works_gives_its_new_state_and_reply(make_local: Callable[[], Local]) -> None:
    assert play(None, make_local()) == (AFTER, Reply(17))


def test_an_error_becomes_a_failure_with_client_round_and_stage(make_local: Callable[[], Local]) -> None:
    for stage in ("arrive", "fit", "prototypes"):
        state, answer = play(stage, make_local())
        assert answer == Failure(17, 6, stage, "ValueError: broken disk")
        assert str(answer) == f"client 17 failed in round 6 at stage {stage}: ValueError: broken disk"
        assert state is BEFORE


def test_the_stage_of_the_client_before_does_not_stick(make_local: Callable[[], Local]) -> None:
    local = make_local()
    play("prototypes", local)
    _, answer = play("start", local)
    assert isinstance(answer, Failure)
    assert (answer.stage, answer.reason) == ("start", "KeyError: 'nothing there'")


def test_an_unseen_client_starts_with_the_initial_state() -> None:
    store = ClientStore(FragileClient(None))
    assert store.load(4) == Catalogue()
    store.save(4, AFTER, Reply(4))
    assert store.load(4) is AFTER
    assert store.load(5) == Catalogue()


def test_the_entropy_measured_last_is_kept_by_client() -> None:
    store = ClientStore(FragileClient(None))
    for entropy in (0.5, 0.75, None):
        store.save(2, AFTER, Reply(2, diagnostics=Diagnostics(entropy=entropy)))
    assert [store.current(client, NOTHING).entropy for client in (1, 2, 3)] == [None, 0.75, None]


def test_the_serial_engine_hands_each_client_its_state_and_its_samples(make_local: Callable[[], Local]) -> None:
    asked: list[tuple[int, int]] = []

    def holding(round: int, client: int) -> Tensor:
        asked.append((round, client))
        return NOTHING

    store = ClientStore(FragileClient(None))
    engine = SerialEngine(store, holding, make_local())
    answers = list(engine.run(BROADCAST, [Order(3, 0, True), Order(1, 0, False)]))
    assert answers == [Reply(3), Reply(1)]
    assert asked == [(6, 3), (6, 1)]
    assert store.states == {3: AFTER, 1: AFTER}


def test_the_serial_engine_goes_on_after_a_failure_and_keeps_the_former_state(make_local: Callable[[], Local]) -> None:
    store = ClientStore(FragileClient("fit"), {3: BEFORE})
    engine = SerialEngine(store, lambda number, client: NOTHING, make_local())
    answers = list(engine.run(BROADCAST, [Order(3, 0, True), Order(1, 0, True)]))
    assert [type(answer) for answer in answers] == [Failure, Failure]
    assert store.states == {3: BEFORE, 1: Catalogue()}
