"""L-BFGS on many small problems at once, each with its own curvature and its own end, in the steps of torch's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CURVATURE_FLOOR = 1e-10  # a pair (s, y) with y.s below it would spoil the inverse Hessian
STEP = 20  # evaluations of one step of torch's L-BFGS
STEP_FLOOR = 1e-9  # a direction that descends less than this has nothing left to give
CACHE = 64 << 20  # bytes of curvature pairs worked on together: about what the last cache of a processor holds

Objective = Callable[[Tensor, Tensor], Tensor]  # (points, their numbers) -> one loss each
Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]  # points -> one loss and one gradient each
Problem = Callable[[Tensor], Evaluation]  # numbers -> the evaluation of their points


@dataclass(frozen=True)
class Minimum:
    """The best point of each row with its loss, and where the last optimiser steps ended."""

    point: Tensor
    loss: Tensor
    trail: Tensor  # (kept, rows, size)


@dataclass(frozen=True)
class Rules:
    """The rules of a descent: `history` is the number of curvature pairs, `keep` the length of the trail."""

    evaluations: int
    learning_rate: float = 1.0
    history: int = 100
    keep: int = 1


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    evaluations: int,
    learning_rate: float = 1.0,
    history: int = 100,
    goal: Tensor | None = None,
    keep: int = 1,
) -> Minimum:
    """Return the best point and loss of each row after L-BFGS with fixed steps, every row on its own.

    The iteration is that of `torch.optim.LBFGS` without a line search. A row that is finished (goal met, no descent
    left, or no longer finite) leaves the batch.
    """
    rules = Rules(evaluations, learning_rate, history, keep)
    return descend(by_autograd(objective), start, torch.zeros_like(start[:, 0]) if goal is None else goal, rules)


def by_autograd(objective: Objective) -> Problem:
    """Return the problem of an objective whose gradient is left to autograd."""

    def problem(rows: Tensor) -> Evaluation:
        def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
            points = points.detach().requires_grad_(True)
            with torch.enable_grad():
                loss = objective(points, rows)
                (gradient,) = torch.autograd.grad(loss.sum(), points)
            return loss.detach(), gradient

        return evaluate

    return problem


@torch.no_grad()
def descend(problem: Problem, start: Tensor, goal: Tensor, rules: Rules) -> Minimum:
    """Do the same as `minimise` for a problem that brings its gradients, in parts that fit into the cache."""
    rules = replace(rules, history=max(1, min(rules.history, rules.evaluations - 1)))  # more would not be filled
    whole = start.numel() * start.element_size() * 2 * rules.history if start.device.type == "cpu" else 0
    parts = max(1, min(len(start), -(-whole // CACHE)))
    found = [
        _descend(lambda part, rows=rows: problem(rows[part]), start[rows], goal[rows], rules)  # type: ignore[misc]
        for rows in torch.arange(len(start), device=start.device).tensor_split(parts)
    ]
    return Minimum(
        torch.cat([part.point for part in found]),
        torch.cat([part.loss for part in found]),
        torch.cat([part.trail for part in found], 1),
    )


def _descend(problem: Problem, start: Tensor, goal: Tensor, rules: Rules) -> Minimum:
    rows = torch.arange(len(start), device=start.device)
    evaluate = problem(rows)
    point, (loss, gradient) = start, evaluate(start)
    best = _Best(start, torch.full_like(loss, float("inf")))
    record = _Record(start, rules.keep)
    pairs = _Pairs.empty(rules.history, start)
    step = rules.learning_rate * torch.clamp(1 / gradient.abs().sum(1), max=1.0)
    for iteration in range(rules.evaluations):
        best = best.or_better(point, loss)
        if (iteration + 1) % STEP == 0:
            record.step(rows, point)
        if iteration == rules.evaluations - 1:
            break
        direction = pairs.apply(gradient).neg_()
        slope = (gradient * direction).sum(1)
        descends = torch.isfinite(slope) & (slope <= -STEP_FLOOR * loss.clamp(max=1))
        alive = torch.isfinite(loss) & (loss > goal) & descends
        if not bool(alive.any()):
            break
        if not bool(alive.all()):
            record.leave(rows, point, best)
            state = (rows, point, gradient, direction, step, goal)
            rows, point, gradient, direction, step, goal = (part[alive] for part in state)
            best, pairs, evaluate = best.of(alive), pairs.of(alive), problem(rows)
        move = direction.mul_(step[:, None])
        point = point + move
        loss, fresh = evaluate(point)
        pairs.push(move, gradient, fresh)
        gradient = fresh
        step = torch.full_like(step, rules.learning_rate)
    record.leave(rows, point, best)
    return record.minimum((iteration + 1) // STEP, rules.evaluations // STEP)


@dataclass(frozen=True)
class _Best:
    """The best point so far of each row that is still in the batch."""

    point: Tensor
    loss: Tensor

    def or_better(self, point: Tensor, loss: Tensor) -> _Best:
        better = loss < self.loss
        return _Best(torch.where(better[:, None], point, self.point), torch.where(better, loss, self.loss))

    def of(self, rows: Tensor) -> _Best:
        return _Best(self.point[rows], self.loss[rows])


class _Record:
    """The positions of all rows, also of those that left the batch."""

    def __init__(self, start: Tensor, keep: int) -> None:
        self.point, self.loss = start.clone(), torch.full_like(start[:, 0], float("inf"))
        self.last = start.clone()
        self.trail: deque[Tensor] = deque([start] * keep, maxlen=keep)

    def step(self, rows: Tensor, point: Tensor) -> None:
        self.last[rows] = point
        self.trail.append(self.last.clone())

    def leave(self, rows: Tensor, point: Tensor, best: _Best) -> None:
        self.last[rows], self.point[rows], self.loss[rows] = point, best.point, best.loss

    def minimum(self, steps: int, of: int) -> Minimum:
        """Return the minimum; the steps that no row lived to see end where the last one did."""
        for _ in range(steps, of):
            self.trail.append(self.last)
        return Minimum(self.point, self.loss, torch.stack(tuple(self.trail)))


@dataclass
class _Pairs:
    """The last curvature pairs (s, y) of every row, oldest overwritten first, and their inner products.

    The two-loop recursion reads every pair four times, one after the other. Its shares are those of two triangular
    systems in the inner products, R a = S g and R' b = D a - h (Y g - Y Y' a) with R_ij = s_i.y_j for i <= j and D its
    diagonal, and the inverse Hessian's estimate times g is h (g - Y' a) + S' b. So the pairs are read twice: for their
    products with the new gradient, which the former ones turn into those with its change, and for the sum.

    All rows share the places of their pairs: a row whose pair is refused stores zeros there, which change nothing but
    that its oldest pair is forgotten one step sooner.
    """

    stored: Tensor  # (rows, history, 2, size): a ring of s and y
    products: Tensor  # (rows, history, 2): of the ring with the newest gradient
    triangle: Tensor  # (rows, 2 history, 2 history): R in order of time, of which a window slides down the diagonal
    changes: Tensor  # likewise y_i.y_j
    scale: Tensor  # h: the initial inverse Hessian's diagonal, one per row
    pushed: int = 0
    end: int = 0  # of the window

    @classmethod
    def empty(cls, history: int, like: Tensor) -> _Pairs:
        rows, size = like.shape
        return cls(
            like.new_zeros(rows, history, 2, size),
            like.new_zeros(rows, history, 2),
            like.new_zeros(rows, 2 * history, 2 * history),
            like.new_zeros(rows, 2 * history, 2 * history),
            torch.ones_like(like[:, 0]),
        )

    def of(self, rows: Tensor) -> _Pairs:
        return replace(
            self,
            stored=self.stored[rows],
            products=self.products[rows],
            triangle=self.triangle[rows],
            changes=self.changes[rows],
            scale=self.scale[rows],
        )

    @property
    def history(self) -> int:
        return self.stored.shape[1]

    @property
    def window(self) -> slice:
        return slice(max(self.end - self.history, 0), self.end)

    def push(self, move: Tensor, before: Tensor, after: Tensor) -> None:
        """Add the pair of a move and of the gradient's change, where it is curved upwards."""
        change = after - before
        curvature, square = (move * change).sum(1), change.square().sum(1)
        good = curvature > CURVATURE_FLOOR
        pair = torch.where(good[:, None, None], torch.stack([move, change], 1), torch.zeros_like(move[:, None]))
        slot = self.pushed % self.history
        self.stored[:, slot] = pair
        self.products[:, slot] = (pair * before[:, None]).sum(2)
        self.pushed += 1
        fresh = torch.zeros_like(self.products)
        filled = self.stored[:, : self.pushed].flatten(1, 2)
        fresh[:, : self.pushed] = torch.bmm(after[:, None], filled.mT).view(len(after), -1, 2)
        column = torch.where(good[:, None, None], fresh - self.products, torch.zeros_like(fresh))
        self.products = fresh
        self._slide()
        newest, past = self.end - 1, self.window
        crossed, squares = self._in_order(column).unbind(2)
        self.triangle[:, past, newest] = crossed
        self.triangle[:, newest, newest] = torch.where(good, curvature, torch.ones_like(curvature))
        self.changes[:, past, newest] = squares
        self.changes[:, newest, past] = squares
        self.changes[:, newest, newest] = torch.where(good, square, torch.zeros_like(square))
        self.scale = torch.where(good, curvature / square, self.scale)

    def apply(self, gradient: Tensor) -> Tensor:
        """Return the inverse Hessian's estimate times the newest gradient."""
        if self.pushed == 0:
            return gradient.clone()
        window, scale = self.window, self.scale[:, None]
        triangle, changes = self.triangle[:, window, window], self.changes[:, window, window]
        moved, changed = self._in_order(self.products).unbind(2)
        first = torch.linalg.solve_triangular(triangle, moved[:, :, None], upper=True)
        right = triangle.diagonal(dim1=1, dim2=2) * first[:, :, 0] - scale * (changed - (changes @ first)[:, :, 0])
        second = torch.linalg.solve_triangular(triangle.mT, right[:, :, None], upper=False)[:, :, 0]
        shares = self._in_ring(torch.stack([second, -scale * first[:, :, 0]], 2))
        filled = self.stored[:, : self.pushed].flatten(1, 2)
        return torch.baddbmm((scale * gradient)[:, None], shares.flatten(1)[:, None], filled)[:, 0]

    def _slide(self) -> None:
        """Move the window on by one, back to the start of the matrices where it met their end."""
        if self.end == self.triangle.shape[1]:
            kept, target = slice(self.end - self.history + 1, self.end), slice(0, self.history - 1)
            for matrix in (self.triangle, self.changes):
                matrix[:, target, target] = matrix[:, kept, kept].clone()
            self.end = self.history - 1
        self.end += 1

    def _in_order(self, ring: Tensor) -> Tensor:
        """Return values of the filled places of the ring, oldest first."""
        return ring.roll(-self.pushed, 1) if self.pushed > self.history else ring[:, : self.pushed]

    def _in_ring(self, ordered: Tensor) -> Tensor:
        return ordered.roll(self.pushed, 1) if self.pushed > self.history else ordered
