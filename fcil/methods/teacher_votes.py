"""Votes in the place of GLFC's proxy: participants count how often a model is right on their newest data.

The counts, summed over the participants, choose the models that teach. No prototype leaves a client. The models of a
block are the averages of its rounds. From the block's second round on, participants vote on two of them before they
train: the one just sent, and the best so far. Both are judged by the same participants on the same samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, ReportLayout
from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted
from fcil.methods.base import Choice, Extra
from fcil.methods.local_objective import Problem
from fcil.methods.server import AveragingServer, only_parts, validate_part
from fcil.methods.teachers import KeptModel, offered
from fcil.models.classifier import Classifier
from fcil.models.client_context import ClientContext
from fcil.models.folding import folded

VOTE = "vote"  # the share of a participant's newest data that the model sent gets right, and that of the best so far


@dataclass(frozen=True)
class Ballot(Message):
    """Asks participants for their votes on the model sent and on the best so far, which travels by this digest."""

    best: str


@dataclass(frozen=True)
class VotesState(Message):
    """The best model of the current block and of the one before."""

    current: KeptModel | None = None
    last: KeptModel | None = None
    voted: bool = False  # whether anybody voted in the current block


# --- the client ---------------------------------------------------------------------------------------------------


def cast_vote(problem: Problem, local: ClientContext) -> Weighted | None:
    """Return a participant's vote, to be called before its fit; None if it was not asked or has no newest data.

    The weight is the number of its samples, so the sum over participants is that of right answers and of all.
    """
    ballot = problem.sent(Ballot)
    if ballot is None:
        return None
    samples, outputs = newest_data(problem, local)
    if len(samples) == 0:
        return None
    candidates = (folded(problem.net), local.machine.fixed_net(problem.pools[ballot.best]))
    right = torch.tensor([count_right(net, samples, outputs, local) for net in candidates], dtype=torch.float64)
    return Weighted(right / len(samples), torch.tensor(float(len(samples)), dtype=torch.float64))


def newest_data(problem: Problem, local: ClientContext) -> tuple[Tensor, Tensor]:
    """Return the samples of the newest arrival whose classes belong to the newest block, and their outputs."""
    samples = problem.news.latest
    outputs = local.samples.outputs(samples, problem.context)
    newest = outputs >= problem.context.old_classes
    return samples[newest], outputs[newest]


def count_right(net: Classifier, samples: Tensor, outputs: Tensor, local: ClientContext) -> int:
    """Return how many samples, without augmentation, a network in evaluation mode gets right."""
    with torch.no_grad():
        logits: Tensor = net.head(local.features(net, samples))
    return int((logits.argmax(1).cpu() == outputs).sum())


# --- the server ---------------------------------------------------------------------------------------------------


class VotingServer(AveragingServer[VotesState]):
    """Averages the models, and keeps the one of the block that most votes are for; ties go to the later one."""

    needs: frozenset[Need] = frozenset({"parts"})
    chooses: bool = True

    def __init__(self) -> None:
        super().__init__(VotesState())

    def grow(
        self, state: VotesState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[VotesState, ModelState]:
        if new_block:
            state = VotesState(last=state.current or state.last)
        return super().grow(state, model, classes, new_block, seed)

    def extra(self, state: VotesState, context: RoundContext) -> Extra:
        if state.current is None:
            return Extra()
        return Extra(Ballot(state.current.digest), {state.current.digest: state.current.model})

    def choice(self, state: VotesState, context: RoundContext) -> Choice:
        return offered(state.current, state.last, context)

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        return ReportLayout(sent, self.counted_rows, {VOTE: PartLayout((2,), 1.0)})

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if VOTE not in report.parts or context.rounds_since_growth == 0:  # nothing is kept yet, so nobody was asked
            return only_parts(report, set())
        vote = report.parts[VOTE]
        problem = only_parts(report, {VOTE}) or validate_part(VOTE, vote, (2,), (), 1.0, heaviest=report.samples)
        if problem is None and bool((vote.value < 0).any()):
            return f"its {VOTE} has shares below zero"
        return problem

    def round(
        self, state: VotesState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[VotesState, ModelState]:
        if context.blocks:  # before that no class has an output, so there is nothing to keep
            state = self._count(state, model, aggregate)
        return super().round(state, model, aggregate, context)

    def _count(self, state: VotesState, sent: ModelState, aggregate: Aggregate) -> VotesState:
        """Keep the better one of the model sent and the best so far; until the first vote, the latest is kept."""
        if VOTE in aggregate.parts and state.current is not None:
            # Shares times weights are whole numbers but for their last bits, which must not decide a tie.
            of_sent, of_best = aggregate.parts[VOTE].total.round().tolist()
            best = KeptModel.of(sent) if of_sent >= of_best else state.current
            return replace(state, current=best, voted=True)
        return state if state.voted else replace(state, current=KeptModel.of(aggregate.model))
