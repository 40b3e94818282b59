"""Federated evaluation: accuracy per block, from counts of hold-out images summed over the sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from fcil.core.errors import FederationError
from fcil.core.messages import model_digest
from fcil.deployment.retired_classes import present
from fcil.deployment.server.live_settings import Schedule
from fcil.deployment.server.membership import Membership
from fcil.deployment.server.state import ServedState
from fcil.deployment.transport.messages import EvaluateRequest, EvaluationResult, Retired, Terms
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import DeploymentConfig
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import Server

UNTOLD = "no accuracy is recorded: no site that answers has enough hold-out images of a class (see hold_out_images)"
SHOWN = 5  # class ids in a warning


class Evaluator:
    """Measures the accuracy of the model on the hold-out images of the sites."""

    def __init__(
        self,
        server: Server,
        terms: Terms,
        exchange: ModelExchange,
        membership: Membership,
        config: DeploymentConfig,
        warn: Callable[[str], None],
        schedule: Schedule,
    ) -> None:
        self.server = server
        self.terms = terms
        self.exchange = exchange
        self.membership = membership
        self.config = config
        self.warn = warn
        self.schedule = schedule
        self.uncovered: tuple[list[str], bool] = [], False  # classes without an accuracy, and if these are all
        self.retired: Retired = {}
        self.kept: dict[int, EvaluationResult] = {}  # the newest counts of a model that stayed

    def due(self, state: ServedState, releasing: bool = False) -> bool:
        """Return True if the model is due: every so many rounds, before a release or a new block, and at the end."""
        every = self.config.evaluate_every
        due = releasing or self.ends_block(state) or (every > 0 and state.round % every == 0)
        return due and bool(state.server.catalogue.classes)

    def ends_block(self, state: ServedState) -> bool:
        """Return True if the next round begins a new block or is not planned."""
        catalogue, waiting = state.server.catalogue, state.server.waiting
        coming = catalogue.with_classes(waiting, state.round, self.server.config.window)
        return len(coming.blocks) > len(catalogue.blocks) > 0 or self.schedule.pauses(state.round, self.config)

    def evaluate(
        self, state: ServedState, record: RoundRecord, measured: set[int], retired: Retired
    ) -> tuple[ServedState, RoundRecord]:
        """Return the state to go on with, and the record with the accuracy per block and class of its model.

        Where accuracy has dropped too far, the rounds since the last good model are not applied. `measured` names the
        blocks that have an accuracy.
        """
        self.retired = retired
        found = self._ask(state)
        server, reason = self.server.review(state.server, _accuracy(found))
        if reason:
            state, record = replace(state, server=server), replace(record, not_applied=record.not_applied or reason)
            if state.round == self.config.rounds:
                self._ask(state)  # sites keep the final model, and tell nothing of a second one
            found = self.kept
        elif found:
            state, self.kept = replace(state, server=server), found
        away = len(state.server.catalogue.classes) - len(present(state.server.catalogue.classes, retired))
        return state, self._measured(state, replace(record, retired=away), measured, found)

    def _measured(
        self, state: ServedState, record: RoundRecord, measured: set[int], found: Mapping[int, EvaluationResult]
    ) -> RoundRecord:
        """Return the record with these counts: per class, and per block if they cover every block."""
        catalogue = state.server.catalogue
        none = torch.zeros(len(catalogue.classes), dtype=torch.int64)
        right = torch.stack([none, *(answer.right for answer in found.values())]).sum(0)
        total = torch.stack([none, *(answer.total for answer in found.values())]).sum(0)
        bounds = list(zip((0, *catalogue.blocks[:-1]), catalogue.blocks, strict=True))
        correct, images = ([int(counts[low:high].sum()) for low, high in bounds] for counts in (right, total))
        counts = zip(catalogue.classes, right.tolist(), total.tolist(), strict=True)
        per_class = {name: (found, known) for name, found, known in counts if known}
        there = [catalogue.classes[output] for output in present(catalogue.classes, self.retired)]
        self._tell_coverage(state.round, there, per_class, sum(images))
        if not all(images) or not set(range(record.task)) <= measured:
            return replace(record, per_class=per_class)
        measured.add(record.task)
        ends = self.ends_block(state)
        return replace(record, correct=correct, total=images, ends_task=ends, per_class=per_class)

    def _tell_coverage(
        self, number: int, classes: Sequence[str], per_class: Mapping[str, tuple[int, int]], images: int
    ) -> None:
        """Say what an accuracy covers, where that is not every class and has changed."""
        lacking = [name for name in classes if name not in per_class]
        if (lacking, not per_class) != self.uncovered:
            self.uncovered = lacking, not per_class
            if not per_class:
                self.warn(UNTOLD)
            elif lacking:
                names = ", ".join(lacking[:SHOWN]) + (" ..." if len(lacking) > SHOWN else "")
                self.warn(
                    f"the accuracy after round {number} covers {len(per_class)} of {len(classes)} classes, {images} "
                    f"hold-out images; no site that answers tells of enough images of: {names}"
                )

    def _ask(self, state: ServedState) -> dict[int, EvaluationResult]:
        """Return the counts of correctly classified and all hold-out images of each site that answers as it should."""
        server, last = state.server, state.round == self.config.rounds
        model = self.server.predictor(server)
        digest, context = model_digest(model), server.catalogue.context(server.round)
        requests = {
            site: EvaluateRequest(self.terms, context, digest, last, self.retired)
            for site in self.membership.present("site")
        }
        group = f"{server.round} evaluation"
        answers = self.exchange.ask(
            requests, lambda _: (digest,), {digest: model}, EvaluationResult, group, self.config.deadline
        )
        found: dict[int, EvaluationResult] = {}
        for site, answer in answers:
            problem = self._problem(answer, context.classes)
            if problem is not None:
                self.warn(f"site {self.membership.names[site]} does not take part in the evaluation: {problem}")
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
            elif problem is None:
                found[site] = answer
        return found

    def _problem(self, answer: EvaluationResult | FederationError, outputs: int) -> str | None:
        """Return the reason why an answer is not counted, or None."""
        if isinstance(answer, FederationError):
            return str(answer)
        fits = len(answer.total) == outputs and not bool((answer.total > self.server.config.max_samples).any())
        return None if fits else "its counts do not fit the model"


def _accuracy(found: Mapping[int, EvaluationResult]) -> dict[str, float]:
    """Return the accuracy in percent at each site that has hold-out images."""
    images = {site: int(answer.total.sum()) for site, answer in found.items()}
    return {str(site): 100 * int(found[site].right.sum()) / known for site, known in images.items() if known}
