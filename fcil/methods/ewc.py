"""EWC (PNAS 2017) in federated form: weights that mattered to finished data are held where they were, no memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Need, PartLayout, PartSum, ReportLayout
from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted
from fcil.maths.losses import cross_entropy
from fcil.maths.penalties import EWC_LAMBDA, add_fishers, ewc_penalty, fisher_diagonal
from fcil.methods.base import Extra, Method, Roles, Setting, register_method
from fcil.methods.client import RehearsalClient
from fcil.methods.detection import DetectionConfig
from fcil.methods.local_objective import Problem, UnclippedObjective
from fcil.methods.server import AveragingServer, newest_older_model, only_parts, validate_part
from fcil.models.classifier import HEAD_ROWS
from fcil.models.client_context import ClientContext

Fisher = dict[str, Tensor]
FISHER = "fisher."  # of the data that a client has just finished with; before the name of a tensor
LARGEST = 1e12  # entry of a Fisher diagonal that is believed
USUAL = 2.0**12  # entry that a masked sum has room for; a larger one is clipped
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # what a model has in addition to its parameters


class EWCConfig(DetectionConfig):
    """The strength of the penalty."""

    strength: float = Field(EWC_LAMBDA, ge=0, description="lambda, weight of the penalty")

    def sends(self) -> dict[str, str]:
        return {FISHER: "how much each weight mattered, as large as the model", **super().sends()}


@dataclass(frozen=True)
class Importance:
    """The Fisher diagonal of the data that a client has just finished with, and the number of its samples."""

    fisher: dict[str, Tensor]
    samples: int


@dataclass(frozen=True)
class TotalImportance(Message):
    """The importance of each weight of the model before the last growth for all finished data."""

    fisher: dict[str, Tensor]


@dataclass(frozen=True)
class ImportanceState(Message):
    """The Fisher diagonal of all blocks but the last finished one, and the parts of that one as they come in."""

    former: dict[str, Tensor] | None = None
    fisher: dict[str, Tensor] | None = None
    samples: int = 0

    @property
    def total(self) -> Fisher | None:
        """Return the sum over all blocks."""
        if self.former is None or self.fisher is None:
            return self.former or self.fisher
        return add_fishers(self.former, self.fisher)


class EWC(UnclippedObjective[EWCConfig]):
    """Softmax cross-entropy + lambda / 2 sum F (w - w_old)^2."""

    def __init__(self, config: EWCConfig, problem: Problem, local: ClientContext) -> None:
        super().__init__(config, problem, local)
        self.own = self._importance()
        self.anchor = dict(problem.teacher.named_parameters()) if problem.teacher is not None else {}
        sent = problem.sent(TotalImportance) if problem.teacher is not None else None
        known = [{name: value.to(local.machine.device) for name, value in sent.fisher.items()}] if sent else []
        known += [self.own.fisher] if self.own else []  # the server hears of it only after this round
        total = known[0] if len(known) == 1 else add_fishers(*known) if known else {}
        # Where lambda F times the step size exceeds one, a step would overshoot the old weight, and diverge above two.
        most = 1 / (config.strength * problem.optimiser.learning_rate) if config.strength else 0.0
        self.fisher = {name: value.clamp(max=most) for name, value in total.items() if name in self._trained}

    @property
    def _trained(self) -> set[str]:
        return {name for name, value in self.problem.net.named_parameters() if value.requires_grad}

    def _importance(self) -> Importance | None:
        """Return the Fisher diagonal of the teacher at the samples finished in this round, if there are any."""
        teacher, finished = self.problem.teacher, self.problem.news.finished
        if teacher is None or len(finished) == 0:
            return None
        targets = self.local.samples.outputs(finished, self.problem.context)
        known = targets < len(teacher.head.weight)
        if not bool(known.any()):
            return None
        images = self.local.inputs(self.problem.net, finished[known])
        targets = targets[known].to(self.local.machine.device)
        teacher.layout = torch.contiguous_format  # vmap knows no other
        fisher, model = fisher_diagonal(teacher, images, targets, names=self._trained), self.local.machine.model
        for name, value in teacher.state_dict().items():
            if name not in fisher and model.trains(name) and not name.endswith(STATISTICS):
                # The server, which cannot tell a parameter from a buffer, is sent a part for either.
                fisher[name] = torch.zeros_like(value, dtype=torch.float32)
        return Importance(fisher, len(targets))

    def loss(self, images: Tensor, rows: Tensor) -> Tensor:
        classified = cross_entropy(self.problem.net(images), self.problem.targets[rows]).mean()
        if not self.fisher:
            return classified
        weights = dict(self.problem.net.named_parameters())
        return classified + ewc_penalty(weights, self.anchor, self.fisher, self.config.strength)

    def parts(self) -> dict[str, Weighted]:
        """Return the Fisher diagonal, a part for each tensor, weighted by its samples."""
        if self.own is None:
            return {}
        weight = torch.tensor(float(self.own.samples), dtype=torch.float64)
        return {f"{FISHER}{name}": Weighted(value.cpu(), weight) for name, value in self.own.fisher.items()}


class ImportanceServer(AveragingServer[ImportanceState]):
    """Averages the Fisher diagonals of a block by samples and adds them up over the blocks."""

    needs: frozenset[Need] = frozenset({"parts"})

    def grow(
        self, state: ImportanceState, model: ModelState, classes: int, new_block: bool, seed: int
    ) -> tuple[ImportanceState, ModelState]:
        if new_block:
            state = replace(state, former=state.total, fisher=None, samples=0)
        return super().grow(state, model, classes, new_block, seed)

    def extra(self, state: ImportanceState, context: RoundContext) -> Extra:
        return Extra(TotalImportance(state.total)) if state.total is not None else Extra()

    def _shapes(self, sent: ModelState, context: RoundContext) -> dict[str, tuple[int, ...]]:
        return {
            f"{FISHER}{name}": (context.old_classes, *tensor.shape[1:]) if name in HEAD_ROWS else tuple(tensor.shape)
            for name, tensor in sent.items()
            if not name.endswith(STATISTICS)
        }

    def layout(self, sent: ModelState, context: RoundContext) -> ReportLayout:
        shapes = self._shapes(sent, context) if context.old_classes else {}
        return ReportLayout(sent, self.counted_rows, {key: PartLayout(shape, USUAL) for key, shape in shapes.items()})

    def objection(self, report: Report, sent: ModelState, context: RoundContext) -> str | None:
        if not report.parts or not context.old_classes:  # in the first block there is no teacher to take a Fisher of
            return only_parts(report, set())
        shapes = self._shapes(sent, context)
        if report.parts.keys() != shapes.keys() or report.rows:
            return f"it sends other parts: {', '.join(sorted(report.parts.keys() ^ shapes.keys())) or 'rows'}"
        problem = next(
            filter(None, (validate_part(key, report.parts[key], shapes[key], (), LARGEST) for key in shapes)), None
        )
        if problem is None and any(bool((part.value < 0).any()) for part in report.parts.values()):
            return "its Fisher diagonal is negative somewhere"
        return problem

    def round(
        self, state: ImportanceState, model: ModelState, aggregate: Aggregate, context: RoundContext
    ) -> tuple[ImportanceState, ModelState]:
        found = {key.removeprefix(FISHER): part for key, part in aggregate.parts.items() if key.startswith(FISHER)}
        if found:
            fisher = {name: self._joined(state, name, part) for name, part in found.items()}
            samples = state.samples + int(next(iter(found.values())).weight)
            state = replace(state, fisher=fisher, samples=samples)
        return super().round(state, model, aggregate, context)

    def _joined(self, state: ImportanceState, name: str, part: PartSum) -> Tensor:
        """Return the mean over the block's samples, up to this round."""
        if state.fisher is None:
            return part.mean().float()
        return ((state.fisher[name].double() * state.samples + part.total) / (state.samples + part.weight)).float()


def build(config: EWCConfig, setting: Setting) -> Roles:
    """Return the roles of EWC."""
    client = RehearsalClient(config, setting, EWC, teacher=newest_older_model)
    return Roles(client, ImportanceServer(ImportanceState()))


register_method(Method("ewc", "a penalty on weights that mattered, without any memory (PNAS 2017)", EWCConfig, build))
