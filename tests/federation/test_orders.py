"""What a round hands out: seeds of its own to everybody and every growth; and what evaluation counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from fcil.federation.catalogue import Catalogue
from fcil.federation.rounds import Engine, Federation
from fcil.methods import Setting
from fcil.methods.bic import Bias, BiasState
from fcil.methods.server import AveragingServer, ServerState
from fcil.models import grow
from fcil.wire import Broadcast, Failure, ModelState, Order, Reply

MakeFederation = Callable[..., Federation]


class NotingEngine:
    """Notes the orders of a round and carries none of them out."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        self.orders += orders
        return (Reply(order.client) for order in orders)


class NotingServer(AveragingServer[ServerState]):
    """Notes the seeds with which the head grows."""

    def __init__(self) -> None:
        super().__init__(Setting(0, (1, 8, 8), "uniform", 0), ServerState())
        self.seeds: list[int] = []

    def grow(
        self, state: ServerState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[ServerState, ModelState]:
        self.seeds.append(seed)
        return super().grow(state, model, classes, new_block, seed)


def test_every_order_and_every_growth_has_a_seed_of_its_own(make_federation: MakeFederation) -> None:
    engine, server = NotingEngine(), NotingServer()

    def noting(_: Engine) -> Engine:
        return engine  # type: ignore[return-value]

    federation = make_federation(wrap=noting)
    federation = replace(federation, roles=replace(federation.roles, server=server))
    rounds = len(list(federation.rounds(federation.start())))
    assert len({order.client for order in engine.orders}) > 1 < rounds
    assert len({order.seed for order in engine.orders}) == len(engine.orders) > rounds
    assert len(set(server.seeds)) == len(server.seeds) == 2


def always(model: ModelState, classes: int, output: int) -> ModelState:
    """Return the model with a head that always answers with one output."""
    grown = grow(model, classes, 0)
    bias = torch.where(torch.arange(classes) == output, 50.0, -50.0)
    return {**grown, "head.weight": torch.zeros_like(grown["head.weight"]), "head.bias": bias}


def test_a_class_without_output_is_never_right(make_federation: MakeFederation) -> None:
    federation = make_federation()
    start = federation.start()
    state = replace(start, round=1, model=always(start.model, 1, 0), catalogue=Catalogue((1,), (1,), 0))
    assert federation.evaluate(state) == ([5], [10])  # the images of class 1; class 0 has no output yet


def test_images_are_evaluated_as_they_are(make_federation: MakeFederation) -> None:
    federation = make_federation()
    start, test = federation.start(), federation.local.source.test
    images, net = test.images.float() / 255, federation.local.net(start.model)
    with torch.no_grad():
        means = torch.stack([net.extract(images[test.labels == label]).mean(0) for label in range(4)])
    nearest = {**start.model, "head.weight": means, "head.bias": -means.square().sum(1) / 2}
    state = replace(start, round=3, model=nearest, catalogue=Catalogue((0, 1, 2, 3), (2, 4), 2))
    assert federation.evaluate(state) == ([10, 10], [10, 10])  # mirrored, the nearest mean is always another one


def test_the_predictor_is_what_is_evaluated(make_federation: MakeFederation) -> None:
    federation = make_federation("bic")
    start = federation.start()
    grown = replace(start, round=3, model=always(start.model, 4, 1), catalogue=Catalogue((0, 1, 2, 3), (2, 4), 2))
    assert federation.evaluate(grown) == ([5, 0], [10, 10])
    corrected = replace(grown, server=BiasState(begins=2, bias=Bias(1.0, 200.0)))
    assert federation.evaluate(corrected) == ([0, 5], [10, 10])
