"""Federated evaluation: accuracy per block, from counts of hold-out images summed over the sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import model_digest
from fcil.deployment.server.membership import Membership
from fcil.deployment.server.state import ServedState
from fcil.deployment.transport.messages import EvaluateRequest, EvaluationResult, Terms
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import DeploymentConfig
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import Server

MOST_IMAGES = 1 << 32  # of a class at a site; sums over classes and sites stay far from an overflow


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
    ) -> None:
        self.server = server
        self.terms = terms
        self.exchange = exchange
        self.membership = membership
        self.config = config
        self.warn = warn

    def due(self, state: ServedState) -> bool:
        """Return True if the model is due: every so many rounds, before a new block, and at the end."""
        every = self.config.evaluate_every
        due = self._ends_block(state) or (every > 0 and state.round % every == 0)
        return due and bool(state.server.catalogue.classes)

    def _ends_block(self, state: ServedState) -> bool:
        """Return True if the next round begins a new block or does not exist."""
        catalogue, waiting = state.server.catalogue, state.server.waiting
        coming = catalogue.with_classes(waiting, state.round, self.server.config.window)
        return len(coming.blocks) > len(catalogue.blocks) > 0 or state.round == self.config.rounds

    def evaluate(self, state: ServedState, record: RoundRecord, measured: set[int]) -> RoundRecord:
        """Return the record with the accuracy per block and class; `measured` names the blocks that have one."""
        catalogue = state.server.catalogue
        right, total = self._counts(state)
        bounds = list(zip((0, *catalogue.blocks[:-1]), catalogue.blocks, strict=True))
        correct, images = ([int(counts[low:high].sum()) for low, high in bounds] for counts in (right, total))
        if not all(images) or not set(range(record.task)) <= measured:
            self.warn("no accuracy is recorded: a block of classes has no hold-out image at any site")
            return record
        measured.add(record.task)
        counts = zip(catalogue.classes, right.tolist(), total.tolist(), strict=True)
        per_class = {name: (found, known) for name, found, known in counts if known}
        ends = self._ends_block(state)
        return replace(record, correct=correct, total=images, ends_task=ends, per_class=per_class)

    def _counts(self, state: ServedState) -> tuple[Tensor, Tensor]:
        """Return correctly classified and all hold-out images per output, over the sites that answer."""
        server, last = state.server, state.round == self.config.rounds
        model = self.server.predictor(server)
        digest, context = model_digest(model), server.catalogue.context(server.round)
        requests = {
            site: EvaluateRequest(self.terms, context, digest, last) for site in self.membership.present("site")
        }
        right = torch.zeros(context.classes, dtype=torch.int64)
        total = torch.zeros_like(right)
        group = f"{server.round} evaluation"
        found = self.exchange.ask(
            requests, lambda _: (digest,), {digest: model}, EvaluationResult, group, self.config.deadline
        )
        for site, answer in found:
            problem = self._problem(answer, context.classes)
            if problem is not None:
                self.warn(f"site {self.membership.names[site]} does not take part in the evaluation: {problem}")
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
            elif problem is None:
                right, total = right + answer.right, total + answer.total
        return right, total

    def _problem(self, answer: EvaluationResult | FederationError, outputs: int) -> str | None:
        """Return the reason why an answer is not counted, or None."""
        if isinstance(answer, FederationError):
            return str(answer)
        fits = len(answer.total) == outputs and not bool((answer.total > MOST_IMAGES).any())
        return None if fits else "its counts do not fit the model"
