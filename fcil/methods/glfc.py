"""GLFC: Global-Local Forgetting Compensation (Dong et al., CVPR 2022), in the order of its Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fcil.data.transforms import augment
from fcil.local import Local
from fcil.machine import Machine
from fcil.maths.compensation import compensation_weights, gradient_measure
from fcil.maths.inversion import invert, labels_from_gradients, wrap_to_pixels
from fcil.maths.losses import labelled_bce
from fcil.maths.prototypes import encoder_gradients, nearest_to_mean, perturb
from fcil.maths.relation import old_outputs_distillation, relation_bce, relation_kl, relation_target
from fcil.methods.base import Choice, Method, ProxyRole, Roles, Setting, register
from fcil.methods.best import KeptModel, offered
from fcil.methods.lesson import Lesson, Problem
from fcil.methods.ranking import RehearsalConfig
from fcil.methods.rehearsal import RehearsalClient
from fcil.methods.server import newest_older_model, plain_server
from fcil.methods.votes import VOTE, VotingServer, cast_vote
from fcil.models import Classifier, LeNet, build_encoder
from fcil.models.lenet import LAST_LAYER
from fcil.optimiser import PAPER, Optimiser
from fcil.wire import Message, ModelState, Moment, Prototype, Teacher, Teachers, Weighted, derive_seed, generator

SCORING_BATCH = 64  # of the released code, whose last incomplete batch is dropped


class GLFCConfig(RehearsalConfig):
    """The published settings unless said otherwise; the first three switches are the paper's ablations."""

    compensation: bool = Field(True, description="L_GC's weights; off: plain L_CE (w/o CGC)")
    relation: bool = Field(True, description="L_RD; off: iCaRL's distillation of the old outputs (w/o CRD)")
    proxy: bool = Field(True, description="the proxy server; off: the model before the last growth teaches (w/o PRS)")
    selection: Literal["proxy", "votes"] = Field(
        "proxy",
        description="who selects the old model that teaches: the proxy by prototypes, or the participants by votes, "
        "without proxy and prototypes",
    )
    compensation_without_history: Literal["weights", "one"] = Field(
        "weights", description="L_GC's weights at a client without old classes; in the released code they are one"
    )
    divergence: Literal["bce", "kl"] = Field("bce", description="L_RD as in the released code or as in the text")
    compensation_weight: float = Field(0.5, ge=0, description="lambda_1 once there is a teacher; 1 before")
    relation_weight: float = Field(0.5, ge=0, description="lambda_2 once there is a teacher; 0 before")
    teacher: Literal["narrower", "alarm"] = Field(
        "narrower",
        description="narrower: the newest model without the newest classes; alarm: the current one on an alarm, else "
        "the last",
    )
    perturb_steps: int = Field(100, ge=0, description="gradient steps per prototype image")
    perturb_learning_rate: float = Field(0.1, gt=0, description="step size of these gradient steps")
    perturb_noise: float = Field(0.1, ge=0, description="gamma: scale of the noise in feature space")
    rebuild_start: Literal["noise", "layers"] = Field(
        "layers", description="what L-BFGS starts from: noise as published, or the solution layer by layer"
    )
    rebuild_evaluations: int = Field(
        4000, ge=1, le=1_000_000, description="L-BFGS evaluations per image; 4000 are 200 steps of 20"
    )
    rebuild_learning_rate: float = Field(1.0, gt=0, description="L-BFGS step size")
    rebuild_restarts: int = Field(2, ge=0, description="fresh starts for an image that got stuck")
    rebuild_keep: int = Field(
        1, ge=1, le=1000, description="images kept per gradient; if more than one, the last iterates, as uint8"
    )
    pool: Literal["shuffled", "by-label"] = Field("shuffled", description="order of a round's gradients at the proxy")
    scoring: Literal["plain", "augmented"] = Field("plain", description="whether probes are augmented when scoring")
    best: Literal["reset", "forever"] = Field("reset", description="whether a new block starts with no best score")

    native: ClassVar[Optimiser] = PAPER
    editions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": RehearsalConfig.editions["fcil"],
        "paper": {
            **RehearsalConfig.editions["paper"],
            "divergence": "kl",
            "teacher": "alarm",
            "rebuild_start": "noise",
            "rebuild_restarts": 0,
        },
        "official": {
            **RehearsalConfig.editions["official"],
            "rebuild_start": "noise",
            "compensation_without_history": "one",
            "teacher": "alarm",
            "perturb_steps": 50,
            "perturb_learning_rate": 0.2,
            "perturb_noise": 0.0,
            "rebuild_evaluations": 5000,
            "rebuild_learning_rate": 0.1,
            "rebuild_restarts": 0,
            "rebuild_keep": 20,
            "pool": "by-label",
            "scoring": "augmented",
            "best": "forever",
        },
    }

    @field_validator("selection")
    @classmethod
    def _selects(cls, value: str, info: ValidationInfo) -> str:
        """Refuse votes where the selection is switched off."""
        if value == "votes" and info.data.get("proxy") is False:
            raise ValueError("'proxy' where method.proxy is false: then nothing is selected")
        return value

    @property
    def has_proxy(self) -> bool:
        """Say whether there is a proxy server, which is sent prototypes."""
        return self.proxy and self.selection == "proxy"

    def sends(self) -> dict[str, str]:
        if self.selection == "votes":
            return {VOTE: "how well two models do on its newest data"}
        gradient = "to the proxy, for each new class: the gradient at a perturbed prototype"
        return {"PrototypeGradient": gradient} if self.has_proxy else {}


@dataclass(frozen=True)
class PrototypeGradient(Message):
    """The gradient of the encoder at one perturbed prototype, by parameter; it travels without a sender."""

    gradient: dict[str, Tensor]


@dataclass(frozen=True)
class Probes(Message):
    """Rebuilt prototypes of the newest block's classes, with the gradient-matching loss of each."""

    images: Tensor
    labels: Tensor
    loss: Tensor


@dataclass(frozen=True)
class ProxyState(Message):
    """What the proxy keeps: its probes, and the best model of the current block and of the one before."""

    blocks: tuple[int, ...] = ()
    probes: Probes | None = None
    current: KeptModel | None = None
    last: KeptModel | None = None
    score: float = -1.0  # share of the probes the current model gets right; negative: not scored

    @property
    def former_width(self) -> int:
        """Return the head's width before the newest block."""
        return self.blocks[-2] if len(self.blocks) > 1 else 0


# --- the client ---------------------------------------------------------------------------------------------------


class GLFC(Lesson[GLFCConfig]):
    """L = lambda_1 L_GC + lambda_2 L_RD, and after an alarm the perturbed prototypes' gradients for the proxy."""

    def __init__(self, config: GLFCConfig, problem: Problem, local: Local, setting: Setting) -> None:
        super().__init__(config, problem, local)
        self.setting = setting
        always = config.compensation_without_history == "weights"
        self.weighs = config.compensation and (always or problem.has_history)
        self.vote = cast_vote(problem, local)  # on the network as received
        self.noted: tuple[Prototype, ...] = ()  # what a simulated client shows of its prototypes

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        problem, config = self.problem, self.config
        teacher = problem.teacher_logits(images)  # before the student, whose activations then take its memory
        logits, labels = problem.net(images), problem.targets[rows]
        each = labelled_bce(logits, labels)
        if self.weighs:
            each = each * compensation_weights(gradient_measure(logits, labels), problem.old[rows])
        if teacher is None:
            return each.mean()
        distilled = distillation(config, logits, labels, teacher)
        return config.compensation_weight * each.mean() + config.relation_weight * distilled.mean()

    def parts(self) -> dict[str, Weighted]:
        """Return the vote, where the server asked for one."""
        return {VOTE: self.vote} if self.vote is not None else {}

    def uploads(self) -> tuple[Message, ...]:
        """Return one gradient for each class that is new to the client."""
        problem, local = self.problem, self.local
        if not self.config.has_proxy or not problem.news.classes:
            return ()
        net = problem.net.requires_grad_(False)
        prototypes, deviations = self._prototypes(net)
        targets = local.samples.outputs(prototypes, problem.moment).to(local.machine.device)
        images = local.images(prototypes)
        perturbed = perturb(
            net.extract,
            net.head,
            images,
            targets,
            deviations,
            steps=self.config.perturb_steps,
            learning_rate=self.config.perturb_learning_rate,
            noise=self.config.perturb_noise,
            generator=generator(problem.seed),
        )
        triples = zip(targets.tolist(), images.cpu(), perturbed.cpu(), strict=True)
        self.noted = tuple(Prototype(*triple) for triple in islice(triples, self.setting.shown))
        encoder = shared_encoder(self.setting, problem.moment.classes, local.machine.device)
        gradients = encoder_gradients(encoder, perturbed, targets)
        return tuple(
            PrototypeGradient({name: value[row].cpu().clone() for name, value in gradients.items()})
            for row in range(len(targets))
        )

    def shown(self) -> tuple[Prototype, ...]:
        return self.noted

    def _prototypes(self, net: Classifier) -> tuple[Tensor, Tensor]:
        """Return, for each new class, the sample nearest to the class mean and the spread of the class's features."""
        samples = self.problem.news.latest
        labels = self.local.samples.labels(samples)
        chosen, deviations = [], []
        for label in self.problem.news.classes:
            members = samples[labels == label]
            features = self.local.features(net, members)
            chosen.append(members[nearest_to_mean(features)])
            deviations.append(features.std(0, correction=0))
        return torch.stack(chosen), torch.stack(deviations)


def distillation(config: GLFCConfig, logits: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
    """Return L_RD per example, or what the ablation w/o CRD puts in its place."""
    if not config.relation:
        return old_outputs_distillation(logits, teacher)
    divergence = relation_kl if config.divergence == "kl" else relation_bce
    return divergence(logits, relation_target(labels, teacher, logits.shape[1]))


def teacher_by_alarm(teachers: Teachers, moment: Moment, alarm: bool) -> Teacher | None:
    """Return the paper's choice: the best of the current task on an alarm, else the best of the last one."""
    return teachers.current if alarm and teachers.current else teachers.last


def shared_encoder(setting: Setting, classes: int, device: torch.device) -> LeNet:
    """Return Gamma for the present head; its weights follow from the secret of clients and proxy."""
    if setting.secret is None:
        raise ValueError("the encoder is for those who know the secret: clients and proxy")
    channels, height, width = setting.image_shape
    seed = derive_seed(setting.secret, "encoder", classes)
    return build_encoder(channels, (height, width), classes, seed).to(device)


# --- the proxy server ---------------------------------------------------------------------------------------------


def is_sound(gradient: dict[str, Tensor], encoder: LeNet) -> bool:
    """Say whether a gradient has the encoder's shapes and type, and only finite values."""
    wanted = {name: (parameter.shape, parameter.dtype) for name, parameter in encoder.named_parameters()}
    fits = {name: (value.shape, value.dtype) for name, value in gradient.items()} == wanted
    return fits and all(bool(torch.isfinite(value).all()) for value in gradient.values())


class Proxy(ProxyRole[ProxyState]):
    """Rebuilds prototypes from gradients and keeps the global model that does best on them."""

    def __init__(self, config: GLFCConfig, setting: Setting) -> None:
        self.config = config
        self.setting = setting

    def init(self) -> ProxyState:
        return ProxyState()

    def choice(self, state: ProxyState, moment: Moment) -> Choice:
        return offered(state.current, state.last, moment)

    def round(
        self,
        state: ProxyState,
        uploads: Sequence[Message],
        sent: ModelState,
        averaged: ModelState,
        moment: Moment,
        seed: int,
        machine: Machine,
    ) -> ProxyState:
        if not moment.blocks:  # no class has an output yet, so there is nothing to keep
            return state
        state = self._roll(state, moment)
        gradients = [upload.gradient for upload in uploads if isinstance(upload, PrototypeGradient)]
        fresh = self._rebuild(gradients, moment, state.former_width, seed, machine)
        if fresh is not None:
            state = self._join(state, fresh, seed, machine)
        for model in (sent, averaged):
            state = self._consider(state, model, seed, machine)
        return state

    def measures(self, state: ProxyState) -> dict[str, float]:
        if state.probes is None:
            return {"probes": 0}
        loss = float(state.probes.loss.median())
        return {"probes": len(state.probes.labels), "score": state.score, "matching_loss": loss}

    def rebuilt(self, state: ProxyState) -> tuple[Tensor, Tensor] | None:
        return None if state.probes is None else (state.probes.images, state.probes.labels)

    def _roll(self, state: ProxyState, moment: Moment) -> ProxyState:
        """Once the head has a new block, make the best of the current block the best of the last one."""
        if len(moment.blocks) == len(state.blocks):
            return replace(state, blocks=moment.blocks)
        rolled = replace(state, blocks=moment.blocks, probes=None, last=state.current or state.last)
        return replace(rolled, current=None, score=-1.0) if self.config.best == "reset" else rolled

    def _rebuild(
        self, gradients: list[dict[str, Tensor]], moment: Moment, former_width: int, seed: int, machine: Machine
    ) -> Probes | None:
        """Return the images behind a round's gradients, of those classes that the newest block brought."""
        if not gradients:
            return None
        encoder = shared_encoder(self.setting, moment.classes, machine.device)
        draw = generator(derive_seed(seed, "rebuild"))
        pooled = self._pool([gradient for gradient in gradients if is_sound(gradient, encoder)], draw)
        labels = labels_from_gradients(pooled[LAST_LAYER]) if pooled else torch.empty(0)
        newest = labels >= former_width
        if not bool(newest.any()):
            return None
        labels = labels[newest].to(machine.device)
        found = invert(
            encoder,
            {name: value[newest].to(machine.device) for name, value in pooled.items()},
            labels,
            self.setting.image_shape,
            generator=draw,
            evaluations=self.config.rebuild_evaluations,
            learning_rate=self.config.rebuild_learning_rate,
            restarts=self.config.rebuild_restarts,
            keep=self.config.rebuild_keep,
            start=self.config.rebuild_start,
        )
        rebuilt = torch.isfinite(found.loss)  # a gradient too large for its square cannot be matched
        if not bool(rebuilt.any()):
            return None
        labels, loss = labels[rebuilt].cpu(), found.loss[rebuilt].cpu()
        if self.config.rebuild_keep == 1:
            return Probes(found.images[rebuilt].cpu(), labels, loss)
        kept = len(found.trail)
        images = wrap_to_pixels(found.trail[:, rebuilt].flatten(0, 1))
        return Probes(images.cpu(), labels.repeat(kept), loss.repeat(kept))

    def _pool(self, gradients: list[dict[str, Tensor]], draw: torch.Generator) -> dict[str, Tensor]:
        """Return the gradients as one batch per parameter, in an order that tells nothing about their senders."""
        if not gradients:
            return {}
        order = torch.randperm(len(gradients), generator=draw).tolist()
        pooled = {name: torch.stack([gradients[row][name] for row in order]) for name in gradients[0]}
        if self.config.pool == "by-label":
            grouped = labels_from_gradients(pooled[LAST_LAYER]).argsort(stable=True)
            pooled = {name: value[grouped] for name, value in pooled.items()}
        return pooled

    def _join(self, state: ProxyState, fresh: Probes, seed: int, machine: Machine) -> ProxyState:
        """Add probes to those of the block, and score the kept model again on all of them."""
        old = state.probes
        probes = (
            fresh
            if old is None
            else Probes(
                torch.cat([old.images, fresh.images]),
                torch.cat([old.labels, fresh.labels]),
                torch.cat([old.loss, fresh.loss]),
            )
        )
        state = replace(state, probes=probes)
        if state.current is None or self.config.best == "forever":
            return state
        return replace(state, score=self._score(state.current.model, probes, seed, machine))

    def _consider(self, state: ProxyState, model: ModelState, seed: int, machine: Machine) -> ProxyState:
        """Keep the model if it does at least as well as the kept one; without probes the latest is kept."""
        score = -1.0 if state.probes is None else self._score(model, state.probes, seed, machine)
        if score < state.score:
            return state
        return replace(state, current=KeptModel.of(model), score=score)

    def _score(self, model: ModelState, probes: Probes, seed: int, machine: Machine) -> float:
        """Return the share of the probes that a model gets right."""
        images, labels = probes.images.to(machine.device), probes.labels.to(machine.device)
        if self.config.scoring == "augmented":
            images = augment(images, machine.train.augment, generator(derive_seed(seed, "scoring")))
            whole = len(images) // SCORING_BATCH * SCORING_BATCH or len(images)
            images, labels = images[:whole], labels[:whole]
        with torch.inference_mode():
            logits = machine.net(model)(images)
        return float((logits.argmax(1) == labels).float().mean())


def build(config: GLFCConfig, setting: Setting) -> Roles:
    """Return the roles of GLFC, without a proxy in the ablation w/o PRS and where participants vote."""
    rule = newest_older_model if config.teacher == "narrower" else teacher_by_alarm
    client = RehearsalClient(config, setting, partial(GLFC, setting=setting), teacher=rule)
    server = VotingServer() if config.selection == "votes" else plain_server()
    return Roles(client, server, Proxy(config, setting) if config.has_proxy else None)


# --- the method and its ablations ---------------------------------------------------------------------------------


class WithoutCompensation(GLFCConfig):
    """GLFC with plain L_CE instead of L_GC."""

    compensation: Literal[False] = Field(False, description="off: this is the ablation")


class WithoutRelation(GLFCConfig):
    """GLFC with iCaRL's distillation instead of L_RD."""

    relation: Literal[False] = Field(False, description="off: this is the ablation")


class WithoutProxy(GLFCConfig):
    """GLFC with the model before the last growth as teacher, and no proxy server."""

    proxy: Literal[False] = Field(False, description="off: this is the ablation")


register(
    Method("glfc", "gradient compensation, relation distillation and a proxy server (CVPR 2022)", GLFCConfig, build)
)
for name, what, kind in (
    ("glfc-wo-cgc", "without class-aware gradient compensation", WithoutCompensation),
    ("glfc-wo-crd", "without class-semantic relation distillation", WithoutRelation),
    ("glfc-wo-prs", "without proxy server", WithoutProxy),
):
    register(Method(name, f"GLFC {what} (ablation)", kind, build, variant_of="glfc"))
