"""Prototypes of new classes as gradients of a secret encoder: the uploads of GLFC and LGA for the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.messages import Message, Prototype, derive_seed, generator
from fcil.core.stopwatch import timed
from fcil.maths.prototypes import gradient_at, nearest_to_mean, perturb
from fcil.methods.base import Setting, by_edition
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import Problem
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.folding import folded
from fcil.models.lenet import LeNet, build_encoder
from fcil.models.optimiser import PAPER, Optimiser

GRADIENT_SENT = "to the proxy, for each new class: the gradient at a perturbed prototype"


class PrototypesConfig(RehearsalConfig):
    """Settings of prototypes: perturbing and rebuilding them, scoring models on them, and the choice of teachers."""

    # narrower: the newest model without the newest classes; alarm: the current one on an alarm, else the last
    teacher: Literal["narrower", "alarm"] = by_edition("narrower")
    perturb_steps: int = Field(100, ge=0, description="gradient steps per prototype image")
    perturb_learning_rate: float = by_edition(0.1, gt=0)  # step size of the gradient steps
    perturb_noise: float = Field(0.1, ge=0, description="gamma: scale of the noise in feature space")
    # L-BFGS starts from noise, as published, or from the solution layer by layer
    rebuild_start: Literal["noise", "layers"] = by_edition("layers")
    rebuild_evaluations: int = Field(
        4000, ge=1, le=1_000_000, description="L-BFGS evaluations per image; 4000 are 200 steps of 20"
    )
    rebuild_learning_rate: float = by_edition(1.0, gt=0)  # L-BFGS step size
    rebuild_restarts: int = Field(2, ge=0, description="fresh starts for an image that got stuck")
    # images kept per gradient; if more than one, the last iterates, as uint8
    rebuild_keep: int = by_edition(1, ge=1, le=1000)
    pool: Literal["shuffled", "by-label"] = by_edition("shuffled")  # order of a round's gradients at the proxy
    # models that the proxy scores in a round: the one sent and the averaged one, or the latter
    scored: Literal["both", "averaged"] = by_edition("both")
    scoring: Literal["plain", "augmented"] = by_edition("plain")  # whether probes are augmented when scoring
    # which blocks start without a best score: each one, the second alone, or none
    best: Literal["reset", "once", "forever"] = by_edition("reset")

    native: ClassVar[Optimiser] = PAPER
    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": RehearsalConfig.editions["fcil"],
        "paper": {
            **RehearsalConfig.editions["paper"],
            "teacher": "alarm",
            "rebuild_start": "noise",
            "rebuild_restarts": 0,
        },
        "official": {
            **RehearsalConfig.editions["official"],
            "rebuild_start": "noise",
            "teacher": "alarm",
            "perturb_steps": 50,
            "perturb_learning_rate": 0.2,
            "perturb_noise": 0.0,
            "rebuild_evaluations": 5000,
            "rebuild_learning_rate": 0.1,
            "rebuild_restarts": 0,
            "rebuild_keep": 20,
            "pool": "by-label",
            "scored": "averaged",
            "scoring": "augmented",
            "best": "forever",
        },
    }


@dataclass(frozen=True)
class PrototypeGradient(Message):
    """The gradient of the encoder at one perturbed prototype, by parameter; it travels without a sender."""

    gradient: dict[str, Tensor]


@dataclass(frozen=True)
class Prototypes:
    """The prototypes of a client's new classes, one entry per class."""

    gradients: tuple[dict[str, Tensor], ...]  # of the encoder, at the perturbed prototypes
    deviations: Tensor  # standard deviation of each feature over the class
    shown: tuple[Prototype, ...]  # what a simulated client shows of them


def take_prototypes(config: PrototypesConfig, setting: Setting, problem: Problem, local: ClientContext) -> Prototypes:
    """Return the prototypes of the classes that are new to a client, under the network that it has fitted."""
    net = folded(problem.net)
    prototypes, deviations = _choose(net, problem, local)
    targets = local.samples.outputs(prototypes, problem.context).to(local.machine.device)
    images = local.images(prototypes)
    with timed("perturbation"):
        perturbed = perturb(
            net.extract,
            net.head,
            images,
            targets,
            deviations,
            steps=config.perturb_steps,
            learning_rate=config.perturb_learning_rate,
            noise=config.perturb_noise,
            generator=generator(problem.seed),
        )
    triples = zip(targets.tolist(), images.cpu(), perturbed.cpu(), strict=True)
    shown = tuple(Prototype(*triple) for triple in islice(triples, setting.shown))
    encoder = shared_encoder(setting, problem.context.classes, local.machine.device)
    pairs = zip(perturbed, targets, strict=True)
    found = ({name: value.cpu() for name, value in gradient_at(encoder, *pair).items()} for pair in pairs)
    return Prototypes(tuple(found), deviations, shown)


def _choose(net: Classifier, problem: Problem, local: ClientContext) -> tuple[Tensor, Tensor]:
    """Return, for each new class, the sample nearest to the class mean and the spread of the class's features."""
    samples = problem.news.latest
    labels = local.samples.labels(samples)
    chosen, deviations = [], []
    for label in problem.news.classes:
        members = samples[labels == label]
        features = local.features(net, members)
        chosen.append(members[nearest_to_mean(features)])
        deviations.append(features.std(0, correction=0))
    return torch.stack(chosen), torch.stack(deviations)


def shared_encoder(setting: Setting, classes: int, device: torch.device) -> LeNet:
    """Return Gamma for the present head; its weights follow from the secret of clients and proxy."""
    if setting.secret is None:
        raise ValueError("the encoder is for those who know the secret: clients and proxy")
    channels, height, width = setting.image_shape
    seed = derive_seed(setting.secret, "encoder", classes)
    return build_encoder(channels, (height, width), classes, seed).to(device)
