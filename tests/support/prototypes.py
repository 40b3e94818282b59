"""The clients of GLFC or LGA on a few blobs, what they upload, and what the proxy makes of it."""

from __future__ import annotations

from typing import Any

import torch

from fcil.core.messages import ModelState, RoundContext
from fcil.methods import Setting, get_method
from fcil.methods.client import RehearsalClient
from fcil.methods.glfc import GLFCConfig
from fcil.methods.local_objective import News, Problem
from fcil.methods.proxy_role import Probes, PrototypeProxy, ProxyState
from fcil.models import grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.models.trainer import TrainConfig
from fcil.testing import blobs
from support.objectives import MODEL, catalogue, make_local

SOURCE = blobs(per_class=8)
SETTING = Setting(10, SOURCE.image_shape, secret=11)
CONTEXT = RoundContext(0, catalogue(4), (4,), 0)
CHEAP = {"perturb_steps": 3, "rebuild_evaluations": 300, "rebuild_restarts": 1}


def local() -> ClientContext:
    """Return a machine with the blobs."""
    return make_local(SOURCE, train=TrainConfig(epochs=1, batch_size=8, learning_rate=0.1))


def model_with(classes: int, seed: int = 0) -> ModelState:
    """Return an untrained model."""
    return grow(initial_state(MODEL, 1, seed), classes, 1)


def constant(classes: int, output: int) -> ModelState:
    """Return a model that always answers with one output."""
    model = model_with(classes)
    bias = torch.full((classes,), -50.0)
    bias[output] = 50.0
    return {**model, "head.weight": torch.zeros_like(model["head.weight"]), "head.bias": bias}


def perfect_on(labels: list[int]) -> Probes:
    """Return probes, images of the blobs, with these labels."""
    images = torch.stack([SOURCE.test.images[SOURCE.test.labels == label][0].float() / 255 for label in labels])
    return Probes(images, torch.tensor(labels), torch.zeros(len(labels)))


def uploads_of(
    classes: tuple[int, ...], alarm: bool = True, context: RoundContext = CONTEXT, method: str = "glfc", **fields: Any
) -> list[Any]:
    """Return what a client uploads to which these classes came."""
    samples = torch.isin(SOURCE.train.labels, torch.tensor(classes)).nonzero().squeeze(1)
    place = local()
    problem = Problem(
        net=place.machine.net(model_with(context.classes)),
        teacher=None,
        targets=place.samples.outputs(samples, context),
        old=torch.zeros(len(samples), dtype=torch.bool),
        has_history=False,
        context=context,
        samples=samples,
        news=News(latest=samples, classes=classes if alarm else ()),
        seed=3,
    )
    config = get_method(method).config(**{**CHEAP, **fields})
    client = get_method(method).build(config, SETTING).client
    assert isinstance(client, RehearsalClient)
    return list(client.objective(config, problem, place).uploads())


def proxy(**fields: Any) -> PrototypeProxy:
    """Return a proxy of little patience."""
    return PrototypeProxy(GLFCConfig(**{**CHEAP, **fields}), SETTING)


def advance(
    role: PrototypeProxy, state: ProxyState, context: RoundContext, uploads: list[Any], averaged: ModelState
) -> ProxyState:
    """Return the proxy's state after a round in which an untrained model was sent."""
    sent = model_with(context.classes)
    return role.round(state, uploads, sent, averaged, context, seed=5, machine=local().machine)
