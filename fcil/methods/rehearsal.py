"""The skeleton that all methods share: arrive, detect, remember, choose a teacher, fit, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fcil.data.memory import Memory, exemplars_per_class
from fcil.data.transforms import augment
from fcil.local import Local
from fcil.maths.entropy import official_entropy, relative_threshold, rises
from fcil.maths.herding import herd
from fcil.methods.base import ClientRole, Current, MethodConfig, Setting
from fcil.methods.lesson import NOTHING, Lesson, Problem, outputs_of
from fcil.optimiser import GENTLE, PAPER, Clock, Optimiser
from fcil.wire import (
    Broadcast,
    Diagnostics,
    Message,
    ModelState,
    Moment,
    Order,
    Reply,
    Report,
    Shape,
    derive_seed,
    generator,
)


class RehearsalConfig(MethodConfig):
    """How a client notices new classes and fills its memory; shared by all methods."""

    detector: Literal["labels", "entropy", "oracle"] = Field(
        "labels",
        description="how a client notices new classes; labels: its data holds a class that it has not had before; "
        "entropy: the paper's rule; oracle: it is told",
    )
    entropy_threshold: Literal["absolute", "relative"] = Field(
        "absolute", description="unit of the rise that raises an alarm: nats, or a share of ln(outputs)"
    )
    entropy_jump: float = Field(1.2, gt=0, description="rise that raises an alarm, in nats (the paper's r_h)")
    entropy_fraction: float = Field(0.5, gt=0, lt=1, description="rise that raises an alarm, as a share of ln(outputs)")
    entropy_outputs: Literal["all", "old"] = Field("all", description="outputs the entropy is taken over")
    entropy_rule: Literal["text", "code"] = Field(
        "text", description="text: the paper's; code: augmented images, strict comparison and ln(p + 1e-5), as released"
    )
    herding: Literal["unique", "replacement", "first"] = Field(
        "unique",
        description="how exemplars are chosen; unique, replacement: by herding, each at most once or repeatedly; "
        "first: in the order of the data",
    )
    herding_statistics: Literal["evaluation", "batch"] = Field(
        "evaluation", description="batch-norm mode while herding"
    )
    optimiser: Literal["train", "paper", "gentle", "native"] = Field(
        "train",
        description="rate, momentum, decay and schedule; train: those of [train]; paper: those of GLFC's paper; "
        "gentle: the paper's at a tenth of the rate; native: those of the method's own source",
    )
    learning_rate_clock: Clock = Field(
        "growth",
        description="growth: milestones hold for the rest of the block; round: only for the rest of their round",
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fcil": {},
        "paper": {"detector": "entropy"},
        "official": {
            "detector": "entropy",
            "entropy_rule": "code",
            "herding": "replacement",
            "herding_statistics": "batch",
            "learning_rate_clock": "round",
        },
    }


@dataclass(frozen=True)
class ClientState(Message):
    """All that a client keeps from round to round."""

    latest: Annotated[Tensor, Shape(("latest",), torch.int64)] = NOTHING  # the newest arrival
    earlier: Annotated[Tensor, Shape(("earlier",), torch.int64)] = NOTHING  # came before it, since the last alarm
    memory: Memory = field(default_factory=Memory)
    acknowledged: tuple[int, ...] = ()  # classes for which an alarm was raised
    told: bool = False  # the oracle spoke, and its samples still wait for an output


TeacherRule = Callable[[Broadcast, bool], str | None]  # of the alarm; a digest, or None for no teacher


class RehearsalClient(ClientRole[ClientState]):
    """The client half of every method; a method gives its lesson, and who teaches."""

    keeps_all: ClassVar[bool] = False  # whether data stays in use for ever

    def __init__(
        self,
        config: RehearsalConfig,
        setting: Setting,
        lesson: Callable[..., Lesson[Any]],  # (config, problem, local)
        teacher: TeacherRule | None = None,
    ) -> None:
        self.config = config
        self.memory = setting.memory
        self.block_epochs = setting.block_epochs
        self.lesson = lesson
        self.teacher = teacher
        self.wants_truth = config.detector == "oracle"

    def init(self) -> ClientState:
        return ClientState()

    def round(
        self, state: ClientState, broadcast: Broadcast, order: Order, current: Current, local: Local
    ) -> tuple[ClientState, Reply]:
        moment, model = broadcast.moment, broadcast.models[broadcast.model]
        with local.stage("arrive"):
            before = state.latest
            state, announced, waiting = self._arrive(state, current.samples, moment, local)
        with local.stage("detect"):
            if order.new_classes and not state.told:
                state = replace(state, told=True)
            entropy = self._entropy(state, broadcast.model, model, moment, order.seed, local)
            # What labels were told of once holds nothing new for them; entropies may come to it later.
            told_of = state.latest is before and self.config.detector == "labels"
            seen = set() if told_of else local.classes(state.latest)
            new = seen.difference(state.acknowledged, state.memory.classes)
            alarm = self._alarm(state, entropy, current.entropy, bool(new), waiting, moment)
            if alarm:
                state = replace(state, acknowledged=tuple(sorted(seen.union(state.acknowledged))), told=False)
        with local.stage("memory"):
            finished = self._finished(state, alarm)
            if len(finished):
                state = self._remember(state, finished, broadcast.model, model, local)
        diagnostics = Diagnostics(alarm=alarm, entropy=entropy, memory=len(state.memory))
        reply = Reply(order.client, announced=announced, diagnostics=diagnostics)
        if order.participate:
            training = torch.unique(torch.cat([state.earlier, state.latest, state.memory.indices]))
            if len(training):
                new_classes = tuple(sorted(new)) if alarm else ()
                reply = self._participate(reply, state, training, finished, new_classes, broadcast, order, local)
        return state, reply

    def _arrive(
        self, state: ClientState, samples: Tensor, moment: Moment, local: Local
    ) -> tuple[ClientState, tuple[int, ...], bool]:
        """Take in the samples held now; return the ids of classes without an output yet, and whether samples wait."""
        if torch.equal(samples, state.latest):
            return state, (), False  # they were catalogued when they came
        known, announced = self._catalogued(samples, moment, local)
        waiting = len(known) < len(samples)
        return arrive(state, known, waiting), announced, waiting

    def _catalogued(self, arrival: Tensor, moment: Moment, local: Local) -> tuple[Tensor, tuple[int, ...]]:
        """Return the samples whose classes have an output, and the ids of the classes that do not have one yet."""
        labels = local.labels(arrival)
        known = torch.isin(labels, torch.tensor(moment.catalogue, dtype=torch.int64))
        return arrival[known], tuple(torch.unique(labels[~known]).tolist())

    def _entropy(
        self, state: ClientState, digest: str, model: ModelState, moment: Moment, seed: int, local: Local
    ) -> float | None:
        """Return the mean entropy of the received model over the newest arrival, if there is one."""
        if len(state.latest) == 0:
            return None
        outputs = self._entropy_outputs(moment)
        if self.config.entropy_rule == "text":
            return float(local.entropies(digest, model, state.latest, outputs).mean())
        draw, net = generator(derive_seed(seed, "entropy")), local.net(model)
        with torch.inference_mode():
            parts = torch.split(state.latest, local.train.batch_size)
            logits = torch.cat([net(augment(local.images(part), local.train.augment, draw)) for part in parts])
        return float(official_entropy(logits[:, :outputs]).mean())

    def _entropy_outputs(self, moment: Moment) -> int:
        """Return how many outputs, from the first on, the entropy is taken over."""
        return moment.old_classes if self.config.entropy_outputs == "old" and moment.old_classes > 1 else moment.classes

    def _alarm(
        self,
        state: ClientState,
        entropy: float | None,
        previous: float | None,
        new: bool,
        waiting: bool,
        moment: Moment,
    ) -> bool:
        """Decide whether new classes have arrived; without current data there is no alarm."""
        if entropy is None:
            return False
        if self.config.detector == "oracle":
            return state.told and not waiting
        if self.config.detector == "labels":
            return new
        threshold = self.config.entropy_jump
        if self.config.entropy_threshold == "relative":
            threshold = relative_threshold(self.config.entropy_fraction, self._entropy_outputs(moment))
        return rises(entropy, previous or 0.0, threshold, strict=self.config.entropy_rule == "code")

    def _finished(self, state: ClientState, alarm: bool) -> Tensor:
        """Return what goes out of use now: all before the newest arrival on an alarm, everything once withdrawn."""
        over = (alarm or len(state.latest) == 0) and not self.keeps_all
        return state.earlier if over else NOTHING

    def _remember(
        self, state: ClientState, finished: Tensor, digest: str, model: ModelState, local: Local
    ) -> ClientState:
        """Put the best of what is finished into memory."""
        labels = local.labels(finished)
        classes = torch.unique(labels).tolist()
        share = exemplars_per_class(self.memory, len({*state.memory.classes, *classes}))
        rankings = {}
        for label in classes:
            rankings[label] = self._rank(finished[labels == label], share, digest, model, local)
        return replace(state, earlier=NOTHING, memory=state.memory.with_classes(rankings, self.memory))

    def _rank(self, samples: Tensor, share: int, digest: str, model: ModelState, local: Local) -> Tensor:
        """Return the best samples of a class; who holds the same samples under the same model gets the same ones."""
        if self.config.herding == "first":
            return samples[:share]

        def ranking() -> Tensor:
            features = self._features(samples, digest, model, local)
            return samples[herd(features, share, replacement=self.config.herding == "replacement")]

        key = (digest, share, self.config.herding, self.config.herding_statistics, samples.numpy().tobytes())
        return local.once(key, ranking)

    def _features(self, samples: Tensor, digest: str, model: ModelState, local: Local) -> Tensor:
        if self.config.herding_statistics == "batch" and len(samples) > 1:
            with torch.inference_mode():
                return local.net(model).train().extract(local.images(samples))
        return local.infer(digest, model, samples).features

    def _participate(
        self,
        reply: Reply,
        state: ClientState,
        training: Tensor,
        finished: Tensor,
        new_classes: tuple[int, ...],
        broadcast: Broadcast,
        order: Order,
        local: Local,
    ) -> Reply:
        moment = broadcast.moment
        optimiser = self._optimiser(local)
        with local.stage("fit"):
            chosen = self.teacher(broadcast, reply.diagnostics.alarm) if self.teacher else None
            net = local.net(broadcast.models[broadcast.model])
            labels = local.labels(training)
            problem = Problem(
                net=net,
                teacher=local.net(broadcast.models[chosen]).requires_grad_(False) if chosen else None,
                targets=outputs_of(labels, moment).to(local.device),
                old=torch.isin(labels, torch.tensor(state.memory.classes, dtype=torch.int64)).to(local.device),
                has_history=bool(state.memory.classes),
                moment=moment,
                samples=training,
                latest=state.latest,
                finished=finished,
                new_classes=new_classes,
                server=broadcast.server,
                optimiser=optimiser,
                epochs=local.train.epochs,
                seed=derive_seed(order.seed, "prototypes"),
            )
            lesson = self.lesson(self.config, problem, local)
            clock, blocks = self.config.learning_rate_clock, len(moment.blocks)
            rates = optimiser.rates(local.train.epochs, moment.rounds_since_growth, blocks, clock)
            seed = derive_seed(order.seed, "fit")
            loss = local.fit(net, training, lesson.loss, rates, seed, optimiser, lesson.epoch)
            lesson.finish()
        with local.stage("uploads"):
            extra, uploads = lesson.extra(), lesson.uploads()
        model = {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}
        return replace(
            reply,
            report=Report(model, len(training), extra),
            uploads=uploads,
            diagnostics=replace(reply.diagnostics, loss=loss),
        )

    def _optimiser(self, local: Local) -> Optimiser:
        """Return what the network is trained with, its schedule scaled to the planned length of a block."""
        published = {"paper": PAPER, "gentle": GENTLE, "native": self.config.native}
        if self.config.optimiser == "train":
            return local.train.optimiser()
        return published[self.config.optimiser].over(self.block_epochs)


def arrive(state: ClientState, arrival: Tensor, waiting: bool = False) -> ClientState:
    """Return the state once the samples a client holds now are taken in; none means its arrival was withdrawn.

    While samples wait for an output (`waiting`), what came before them stays in use.
    """
    if torch.equal(arrival, state.latest) or (waiting and len(arrival) == 0):
        return state
    before = torch.cat([state.earlier, state.latest])
    return replace(state, latest=arrival, earlier=before[~torch.isin(before, arrival)])
