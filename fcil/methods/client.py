"""The skeleton that all methods share: arrive, detect, remember, choose a teacher, fit, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fcil.core.errors import stage
from fcil.core.messages import (
    Broadcast,
    Diagnostics,
    Message,
    Order,
    Prototype,
    Reply,
    Report,
    RoundContext,
    Shape,
    derive_seed,
)
from fcil.core.stopwatch import timed
from fcil.data.exemplar_memory import Memory, exemplars_per_class
from fcil.methods.base import ClientRole, Current, Setting, TeacherRule
from fcil.methods.detection import DetectionConfig, FitConfig, mean_entropy, raises_alarm
from fcil.methods.exemplar_selection import Curator, Herding, MemoryConfig, Ranker, RehearsalConfig, keep_none
from fcil.methods.local_objective import NOTHING, KeptLogits, LocalObjective, News, Problem
from fcil.models.client_context import ClientContext


@dataclass(frozen=True)
class ClientState(Message):
    """All that a client keeps from round to round."""

    latest: Annotated[Tensor, Shape(("latest",), torch.int64)] = NOTHING  # the newest arrival
    earlier: Annotated[Tensor, Shape(("earlier",), torch.int64)] = NOTHING  # came before it, since the last alarm
    memory: Memory = field(default_factory=Memory)
    acknowledged: tuple[int, ...] = ()  # classes for which an alarm was raised
    told: bool = False  # the oracle spoke, and its samples still wait for an output

    @property
    def training(self) -> Tensor:
        """Return all that a client trains on, each sample once."""
        held: Tensor = torch.unique(torch.cat([self.earlier, self.latest, self.memory.indices]))
        return held


class RehearsalClient(ClientRole[ClientState]):
    """The client half of every method: a method gives its objective, its teacher, and a ranker or curator of memory."""

    def __init__(
        self,
        config: FitConfig,
        setting: Setting,
        objective: Callable[..., LocalObjective[Any]],  # (config, problem, local)
        teacher: TeacherRule | None = None,
        ranker: Ranker | None = None,
        curator: Curator | None = None,  # in the place of a ranker
        keeps_all: bool = False,
    ) -> None:
        self.config = config
        self.objective = objective
        self.teacher = teacher
        self.keeps_all = keeps_all
        self.memory = setting.memory if isinstance(config, MemoryConfig) else 0
        self.ranker: Ranker = ranker or (Herding(config) if isinstance(config, RehearsalConfig) else keep_none)
        self.curator = curator
        self.curates = curator is not None
        self.detection = config if isinstance(config, DetectionConfig) else DetectionConfig()
        self.wants_truth = self.detection.detector == "oracle"

    def init(self) -> ClientState:
        return ClientState()

    def round(
        self, state: ClientState, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[ClientState, Reply, Diagnostics]:
        context = broadcast.context
        with stage("arrive"):
            before = state.latest
            state, waiting = self._arrive(state, current.samples, context, local)
        with stage("detect"):
            if current.new_classes and not state.told:
                state = replace(state, told=True)
            with timed("entropies"):
                entropy = mean_entropy(self.detection, state.latest, broadcast, current, local)
            # What labels were told of once holds nothing new for them; entropies may come to it later.
            told_of = state.latest is before and self.detection.detector == "labels"
            seen = set() if told_of else local.samples.classes(state.latest)
            new = seen.difference(state.acknowledged, state.memory.classes)
            told = state.told and not waiting
            alarm = raises_alarm(self.detection, entropy, current.entropy, bool(new), told, context)
            if alarm:
                state = replace(state, acknowledged=tuple(sorted(seen.union(state.acknowledged))), told=False)
        with stage("memory"), timed("herding"):
            finished = self._finished(state, alarm)
            if len(finished):
                state = self._remember(state, finished, broadcast, current, local)
        diagnostics = Diagnostics(alarm=alarm, entropy=entropy, memory=len(state.memory))
        reply = Reply(order.client)
        if order.participate and len(state.training):
            news = News(state.latest, finished, tuple(sorted(new)) if alarm else ())
            reply, loss, shown = self._participate(reply, state, news, alarm, broadcast, current, local)
            diagnostics = replace(diagnostics, loss=loss, prototypes=shown)
        return state, reply, diagnostics

    def in_use(self, state: ClientState) -> Tensor:
        return state.training

    def without(self, state: ClientState, samples: Tensor) -> ClientState:
        latest, earlier = (held[~torch.isin(held, samples)] for held in (state.latest, state.earlier))
        return replace(state, latest=latest, earlier=earlier, memory=state.memory.without(samples))

    def _arrive(
        self, state: ClientState, samples: Tensor, context: RoundContext, local: ClientContext
    ) -> tuple[ClientState, bool]:
        """Take in the present samples whose classes have an output; return whether other samples wait."""
        if torch.equal(samples, state.latest):
            return state, False  # they were catalogued when they came
        known = samples[local.samples.outputs(samples, context) >= 0]
        waiting = len(known) < len(samples)
        return arrive(state, known, waiting), waiting

    def _finished(self, state: ClientState, alarm: bool) -> Tensor:
        """Return the finished samples: all before the newest arrival on an alarm, everything once withdrawn."""
        over = (alarm or len(state.latest) == 0) and not self.keeps_all
        return state.earlier if over else NOTHING

    def _remember(
        self, state: ClientState, finished: Tensor, broadcast: Broadcast, current: Current, local: ClientContext
    ) -> ClientState:
        """Put the best samples of finished data into memory."""
        if self.curator is not None and self.memory:
            memory = self.curator(state.memory, finished, self.memory, broadcast, current, local)
            return replace(state, earlier=NOTHING, memory=memory)
        finished = with_exemplars(finished, state.memory, local)
        labels, outputs = local.samples.labels(finished), local.samples.outputs(finished, broadcast.context)
        classes = torch.unique(labels).tolist()
        share = exemplars_per_class(self.memory, len({*state.memory.classes, *classes}))
        rank = self.ranker if share else keep_none
        rankings = {}
        for label in classes:
            members = labels == label
            output = int(outputs[members][0])
            rankings[label] = rank(finished[members], output, share, broadcast, current, local)
        return replace(state, earlier=NOTHING, memory=state.memory.with_classes(rankings, self.memory))

    def _participate(
        self,
        reply: Reply,
        state: ClientState,
        news: News,
        alarm: bool,
        broadcast: Broadcast,
        current: Current,
        local: ClientContext,
    ) -> tuple[Reply, float, tuple[Prototype, ...]]:
        context, machine, training = broadcast.context, local.machine, state.training
        optimiser, epochs = self.config.chosen_optimiser(local), machine.train.epochs
        with stage("fit"):
            chosen = self.teacher(broadcast.teachers, context, alarm) if self.teacher else None
            net = machine.net(current.models[broadcast.model])
            labels = local.samples.labels(training)
            problem = Problem(
                net=net,
                teacher=machine.net(current.models[chosen.digest]).requires_grad_(False) if chosen else None,
                targets=local.samples.outputs(training, context).to(machine.device),
                old=torch.isin(labels, torch.tensor(state.memory.classes, dtype=torch.int64)).to(machine.device),
                has_history=bool(state.memory.classes),
                context=context,
                samples=training,
                news=news,
                extra=broadcast.extra,
                pools={digest: current.models[digest] for digest in broadcast.pools},
                optimiser=optimiser,
                seed=derive_seed(current.seed, "prototypes"),
                kept=KeptLogits(training, local) if machine.repeats else None,
            )
            objective = self.objective(self.config, problem, local)
            clock, blocks = self.config.learning_rate_clock, len(context.blocks)
            rates = optimiser.rates(epochs, context.rounds_since_growth, blocks, clock)
            seed = derive_seed(current.seed, "fit")
            steps = replace(optimiser, limit=objective.gradient_limit)
            loss = machine.fit(net, local.samples, training, objective.loss, rates, seed, steps, objective.epoch)
            objective.finish()
        with stage("uploads"):
            parts, rows, uploads = objective.parts(), objective.row_weights(), objective.uploads()
        trained = machine.model.trained(net.state_dict())
        model = {name: tensor.detach().cpu() for name, tensor in trained.items()}
        answer = replace(reply, report=Report(model, len(training), rows, parts), uploads=uploads)
        return answer, loss, objective.shown()


def with_exemplars(finished: Tensor, memory: Memory, local: ClientContext) -> Tensor:
    """Return the samples that go out of use, and the exemplars of the same classes.

    A real site may get more samples of a class that it has exemplars of already; all of them are then ranked anew. In a
    simulation such a class brings all its samples again, and nothing is added.
    """
    coming = local.samples.classes(finished)
    kept = [ranked for label, ranked in zip(memory.classes, memory.ranked, strict=True) if label in coming]
    more = torch.unique(torch.cat([NOTHING, *kept]))
    return torch.cat([finished, more[~torch.isin(more, finished)]])


def arrive(state: ClientState, arrival: Tensor, waiting: bool = False) -> ClientState:
    """Return the state once the samples a client holds now are taken in; none means its arrival was withdrawn.

    While samples wait for an output (`waiting`), earlier samples stay in use.
    """
    if torch.equal(arrival, state.latest) or (waiting and len(arrival) == 0):
        return state
    before = torch.cat([state.earlier, state.latest])
    return replace(state, latest=arrival, earlier=before[~torch.isin(before, arrival)])
