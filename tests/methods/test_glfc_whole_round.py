"""The first round of a second task, step by step in the released code's order, on a network that is one matrix.

With features that are the pixels themselves, every step can be written down in plain numpy: detect, remember, choose
the teacher, train, upload, average, rebuild, score. The pieces have golden values of their own; here it is their order,
and what each is given, that is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from support.objectives import catalogue, make_local
from support.plugins import fresh_registry
from support.rounds import aggregated
from torch import Tensor, nn

from fcil.core.messages import Diagnostics, ModelState, Order, Reply, RoundContext, model_digest
from fcil.data.augment import AugmentConfig
from fcil.federation.aggregation.mean import Mean
from fcil.federation.class_catalogue import Catalogue
from fcil.federation.server import FederationConfig, Opened, Server, ServerSeeds, ServerState
from fcil.methods import Setting, get_method
from fcil.methods.base import Current
from fcil.methods.client import ClientState
from fcil.methods.glfc import GLFCConfig
from fcil.methods.prototypes import PrototypeGradient, shared_encoder
from fcil.methods.proxy_role import ProxyState
from fcil.methods.teachers import KeptModel
from fcil.models import Blueprint, ModelConfig, Network, register_network
from fcil.models.client_context import ClientContext
from fcil.models.trainer import TrainConfig
from fcil.testing import blobs

pytestmark = pytest.mark.numeric
Array = NDArray[np.float64]
SOURCE = blobs(per_class=6)
IMAGES = SOURCE.train.images.double().numpy().reshape(-1, 64) / 255
LABELS = SOURCE.train.labels.numpy()
RATE, DECAY, EPOCHS, MEMORY = 0.8, 1e-5, 3, 5
CONTEXT = RoundContext(7, catalogue(4), (2, 4), 0)  # classes 2 and 3 have just got their outputs
SETTING = Setting(MEMORY, SOURCE.image_shape, secret=11)
# What would hide the order: drawn augmentation, repeated exemplars, and a start from noise, which takes minutes.
FIELDS = {**GLFCConfig.editions["official"], "herding": "unique", "scoring": "plain", "rebuild_keep": 1}
CONFIG = GLFCConfig(**{**FIELDS, "rebuild_start": "layers"})
TRAIN = TrainConfig(
    epochs=EPOCHS,
    batch_size=1000,
    learning_rate=RATE,
    weight_decay=DECAY,
    augment=AugmentConfig(crop_padding=0, flip=False, brightness=0.0),
)


class Pixels(nn.Module):
    """The pixels are the features."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        self.features = 64

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@pytest.fixture(autouse=True)
def pixels() -> Iterator[None]:
    with fresh_registry():
        register_network(Network("pixels", "no layer", Pixels, reads=frozenset()))
        yield


def model(classes: int, seed: int) -> ModelState:
    draw = torch.Generator().manual_seed(seed)
    weight, bias = (0.02 * torch.randn(shape, generator=draw) for shape in ((classes, 64), (classes,)))
    return {"head.weight": weight, "head.bias": bias}


SENT, BEST, LAST = model(4, 1), model(2, 2), model(2, 3)
BEFORE = ProxyState(blocks=(2,), current=KeptModel.of(BEST), last=KeptModel.of(LAST), score=0.5)
TRAINS = Order(0, participate=True)


@dataclass(frozen=True)
class Played:
    state: ClientState
    reply: Reply
    measured: Diagnostics


def place() -> ClientContext:
    return make_local(SOURCE, ModelConfig(name="pixels", mean=(0.0,), deviation=(1.0,)), TRAIN)


def opened_round() -> tuple[Server, Opened]:
    """Return the server and its round, with the teachers that the proxy offers after the round before."""
    config, roles = FederationConfig(), get_method("glfc").build(CONFIG, SETTING)
    assert roles.proxy is not None
    machine = place().machine
    server = Server(roles.server, Mean(config), config, machine, 2, roles.teaches, ServerSeeds.of(1))
    state = ServerState(7, SENT, Catalogue(catalogue(4), (2, 4), began=7), roles.server.init())
    return server, server.open(state, roles.proxy.choice(BEFORE, CONTEXT))


def play(state: ClientState, samples: Tensor, entropy: float, order: Order = TRAINS) -> Played:
    role, (_, opened) = get_method("glfc").build(CONFIG, SETTING).client, opened_round()
    current = Current(samples, dict(opened.models), 1, entropy)
    return Played(*role.round(state, opened.broadcast, order, current, place()))


def rows_of(*classes: int) -> Tensor:
    return torch.isin(SOURCE.train.labels, torch.tensor(classes)).nonzero().squeeze(1)


def client_with_a_past() -> Played:
    """It learned classes 0 and 1, and now holds 2 and 3 (S_b)."""
    return play(ClientState(latest=rows_of(0, 1), acknowledged=(0, 1)), rows_of(2, 3), entropy=0.05)


def newcomer() -> Played:
    """It joined now, with class 3 (S_n)."""
    return play(ClientState(), rows_of(3), entropy=0.05, order=Order(1, participate=True))


def bystander() -> Played:
    """It has the past and the present of the first one, and was not drawn."""
    past = ClientState(latest=rows_of(0, 1), acknowledged=(0, 1))
    return play(past, rows_of(2, 3), entropy=0.05, order=Order(2, participate=False))


# --- the released code's order, in plain numpy --------------------------------------------------------------------


def sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def scores(state: ModelState, images: Array) -> Array:
    return np.asarray(images @ state["head.weight"].double().numpy().T + state["head.bias"].double().numpy())


def entropy_of(state: ModelState, images: Array) -> float:
    logits = np.exp(scores(state, images))
    p = logits / logits.sum(1, keepdims=True)
    return float(-(p * np.log(p + 1e-5)).sum(1).mean())


def herded(label: int, count: int) -> list[int]:
    rows = np.flatnonzero(label == LABELS)
    unit = IMAGES[rows] / np.linalg.norm(IMAGES[rows], axis=1, keepdims=True)
    chosen: list[int] = []
    for step in range(1, count + 1):
        gap = np.linalg.norm(unit.mean(0) - (unit + unit[chosen].sum(0)) / step, axis=1)
        gap[chosen] = np.inf
        chosen.append(int(gap.argmin()))
    return rows[chosen].tolist()  # type: ignore[no-any-return]


def trained(rows: list[int], learned: set[int]) -> tuple[Array, Array]:
    """Return the matrix after the local epochs: 0.5 L_GC + 0.5 L_RD with the best model of the task as teacher."""
    images, labels = IMAGES[rows], LABELS[rows]
    weight, bias = SENT["head.weight"].double().numpy(), SENT["head.bias"].double().numpy()
    hot = np.eye(4)[labels]
    soft = np.concatenate([sigmoid(scores(BEST, images)), hot[:, 2:]], 1)
    for _ in range(EPOCHS):
        p = sigmoid(images @ weight.T + bias)
        share = np.ones(len(rows))
        if learned:
            g = np.abs(p[np.arange(len(rows)), labels] - 1)
            old = np.isin(labels, list(learned))
            share = g / np.where(old, g[old].mean(), g[~old].mean())
        slope = (0.5 * share[:, None] * (p - hot) + 0.5 * (p - soft)) / p.size
        weight, bias = (
            weight - RATE * (slope.T @ images + DECAY * weight),
            bias - RATE * (slope.sum(0) + DECAY * bias),
        )
    return weight, bias


def prototype(weight: Array, bias: Array, label: int) -> Array:
    """Return the image nearest to its class's mean, perturbed with the client's own trained model."""
    members = IMAGES[label == LABELS]
    image = members[np.linalg.norm(members - members.mean(0), axis=1).argmin()].copy()
    for _ in range(50):
        image -= 0.2 * (sigmoid(weight @ image + bias) - np.eye(4)[label]) @ weight / 4
    return image


# --- the steps ----------------------------------------------------------------------------------------------------


def test_1_both_clients_notice_by_the_rise_of_the_entropy() -> None:
    for played, classes in ((client_with_a_past(), (2, 3)), (newcomer(), (3,))):
        expected = entropy_of(SENT, IMAGES[np.isin(LABELS, classes)])
        assert played.measured.entropy == pytest.approx(expected, rel=1e-5)
        assert expected - 0.05 > 1.2
        assert played.measured.alarm


def test_2_what_is_finished_is_herded_into_memory_before_training() -> None:
    for played in (client_with_a_past(), bystander()):  # who is not drawn stores its exemplars all the same
        assert played.state.memory.classes == (0, 1)
        assert played.state.memory.indices.tolist() == herded(0, MEMORY // 2) + herded(1, MEMORY // 2)
    assert newcomer().state.memory.classes == ()
    assert bystander().reply == Reply(2)


def test_3_and_4_the_best_model_of_the_task_teaches_and_memory_and_new_data_are_fitted() -> None:
    exemplars = herded(0, MEMORY // 2) + herded(1, MEMORY // 2)
    cases = (
        (client_with_a_past(), [*exemplars, *rows_of(2, 3).tolist()], {0, 1}),
        (newcomer(), rows_of(3).tolist(), set()),
    )
    for played, rows, learned in cases:
        assert played.reply.report is not None
        assert played.reply.report.samples == len(rows)
        found, (weight, bias) = played.reply.report.model, trained(rows, learned)
        torch.testing.assert_close(found["head.weight"].double(), torch.tensor(weight), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found["head.bias"].double(), torch.tensor(bias), rtol=1e-5, atol=1e-6)
        assert not torch.equal(found["head.weight"], SENT["head.weight"])


def test_5_after_training_the_gradients_of_perturbed_prototypes_are_uploaded() -> None:
    exemplars = herded(0, MEMORY // 2) + herded(1, MEMORY // 2)
    weight, bias = trained([*exemplars, *rows_of(2, 3).tolist()], {0, 1})
    encoder = shared_encoder(SETTING, 4, torch.device("cpu")).requires_grad_(True)
    uploads = client_with_a_past().reply.uploads
    assert len(uploads) == 2
    for upload, label in zip(uploads, (2, 3), strict=True):
        assert isinstance(upload, PrototypeGradient)
        image = torch.tensor(prototype(weight, bias, label), dtype=torch.float32).view(1, 1, 8, 8)
        encoder.zero_grad()
        F.cross_entropy(encoder(image), torch.tensor([label])).backward()
        for name, parameter in encoder.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(upload.gradient[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_6_to_8_models_are_averaged_and_the_proxy_rolls_rebuilds_scores_and_keeps() -> None:
    server, opened = opened_round()
    answers = [client_with_a_past().reply, newcomer().reply, bystander().reply]
    closed = aggregated(server, opened, server.orders(range(3), (0, 1)), answers)
    assert not closed.failures
    averaged = closed.state.model
    exemplars = herded(0, MEMORY // 2) + herded(1, MEMORY // 2)
    first, _ = trained([*exemplars, *rows_of(2, 3).tolist()], {0, 1})
    second, _ = trained(rows_of(3).tolist(), set())
    mean = torch.tensor((first + second) / 2)
    torch.testing.assert_close(averaged["head.weight"].double(), mean, rtol=1e-5, atol=1e-6)

    role = get_method("glfc").build(CONFIG, SETTING).proxy
    assert role is not None
    state, stubborn = (
        role.round(replace(BEFORE, score=score), closed.uploads, SENT, averaged, CONTEXT, 5, place().machine)
        for score in (0.5, 0.9)
    )
    assert state.last == BEFORE.current  # best-of-last is what was best-of-current
    assert state.probes is not None
    assert sorted(state.probes.labels.tolist()) == [2, 3, 3]
    images, labels = state.probes.images.double().numpy().reshape(-1, 64), state.probes.labels.numpy()
    of_sent, of_averaged = (float((scores(one, images).argmax(1) == labels).mean()) for one in (SENT, averaged))
    assert of_sent > of_averaged > 0.5  # so that it shows which one was scored: the averaged one alone
    assert state.current is not None
    assert state.current.digest == model_digest(averaged)
    assert state.score == pytest.approx(of_averaged)
    # the released code never forgets the best score: a model of the former task stays where it was better
    assert (stubborn.current, stubborn.score) == (BEFORE.current, 0.9)
