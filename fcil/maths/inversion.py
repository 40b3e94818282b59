"""What a gradient reveals: the label at once, the image by L-BFGS on all gradients together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fcil.maths.prototypes import encoder_gradients

CURVATURE_FLOOR = 1e-10  # a pair (s, y) with y.s below it would spoil the inverse Hessian
STEP = 20  # evaluations of one step of torch's L-BFGS
STEP_FLOOR = 1e-9  # a direction that descends less than this has nothing left to give

Objective = Callable[[Tensor, Tensor], Tensor]  # (points, their numbers) -> one loss each


def labels_from_gradients(last_layer: Tensor) -> Tensor:
    """Return the label behind each gradient of the last layer's weight, given as (gradients, classes, inputs).

    The row of the true class is the only one with a negative sum, because the layer's inputs are positive.
    """
    return last_layer.sum(2).argmin(1)


@dataclass(frozen=True)
class Inversion:
    """Rebuilt images, one an example, with the gradient-matching loss each one reached, and the last iterates."""

    images: Tensor
    loss: Tensor
    trail: Tensor  # (kept, examples, channels, height, width), in the order they were visited


def invert(
    encoder: nn.Module,
    gradients: dict[str, Tensor],
    labels: Tensor,
    image_shape: tuple[int, int, int],
    *,
    generator: torch.Generator,
    evaluations: int,
    learning_rate: float = 1.0,
    restarts: int = 0,
    keep: int = 1,
    target: float = 1e-8,
) -> Inversion:
    """Rebuild one image a gradient by minimising L_RT from standard normal noise.

    An image that has not come below `target` times its gradient's squared norm is started again from new noise, up to
    `restarts` times with `evaluations` each; the best attempt is kept. The trail holds the image after each of the last
    `keep` optimiser steps of `STEP` evaluations.
    """
    reference = {name: gradients[name].detach() for name, _ in encoder.named_parameters()}
    scale = sum(
        (value.flatten(1).square().sum(1) for value in reference.values()), torch.zeros(len(labels)).to(labels.device)
    )

    def matching_loss(points: Tensor, rows: Tensor) -> Tensor:
        found = encoder_gradients(encoder, points.view(-1, *image_shape), labels[rows])
        parts = [(found[name] - reference[name][rows]).flatten(1).square().sum(1) for name in reference]
        return torch.stack(parts).sum(0)

    size = image_shape[0] * image_shape[1] * image_shape[2]
    images = torch.zeros(len(labels), size, dtype=scale.dtype, device=labels.device)
    trail = torch.zeros(keep, *images.shape, dtype=scale.dtype, device=labels.device)
    best = torch.full_like(scale, float("inf"))
    goal = target * scale
    for _ in range(restarts + 1):
        open_rows = (best > goal).nonzero().squeeze(1)
        if len(open_rows) == 0:
            break
        start = torch.randn(len(open_rows), size, generator=generator).to(images)
        found = minimise(
            lambda at, rows, among=open_rows: matching_loss(at, among[rows]),  # type: ignore[misc]
            start,
            evaluations=evaluations,
            learning_rate=learning_rate,
            goal=goal[open_rows],
            keep=keep,
        )
        better = found.loss < best[open_rows]
        images[open_rows[better]] = found.point[better]
        trail[:, open_rows[better]] = found.trail[:, better]
        best[open_rows[better]] = found.loss[better]
    return Inversion(images.view(-1, *image_shape), best, trail.view(keep, -1, *image_shape))


def wrap_to_pixels(images: Tensor) -> Tensor:
    """Return images as the released code keeps them: through uint8, where values outside [0, 1] wrap around."""
    return torch.remainder(torch.trunc(images * 255), 256).div(255)


@dataclass(frozen=True)
class Minimum:
    """The best point of each row with its loss, and where the last optimiser steps ended."""

    point: Tensor
    loss: Tensor
    trail: Tensor  # (kept, rows, size)


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

    The iteration is that of `torch.optim.LBFGS` without a line search. All rows share one ring of curvature pairs: a
    row whose pair is refused stores zeros there, which leave the two-loop recursion unchanged. A row that is finished
    (goal met, no descent left, or no longer finite) leaves the batch.
    """
    floor = goal if goal is not None else torch.zeros(len(start)).to(start)
    best_point, best_loss = start.clone(), torch.full_like(start[:, 0], float("inf"))
    rows = torch.arange(len(start), device=start.device)
    point, loss, gradient = start, *_evaluate(objective, start, rows)
    pairs = _Pairs.empty(history, start)
    visited = start.clone()
    trail: deque[Tensor] = deque([visited.clone()] * keep, maxlen=keep)
    step = learning_rate * torch.clamp(1 / gradient.abs().sum(1), max=1.0)
    for iteration in range(evaluations):
        better = loss < best_loss[rows]
        best_point[rows[better]], best_loss[rows[better]] = point[better], loss[better]
        visited[rows] = point
        if (iteration + 1) % STEP == 0:
            trail.append(visited.clone())
        direction = -pairs.apply(gradient)
        slope = (gradient * direction).sum(1)
        alive = (
            torch.isfinite(loss)
            & torch.isfinite(slope)
            & (slope <= -STEP_FLOOR * loss.clamp(max=1))
            & (loss > floor[rows])
        )
        if iteration == evaluations - 1 or not bool(alive.any()):
            break
        if not bool(alive.all()):
            rows, point, gradient, direction, step = (t[alive] for t in (rows, point, gradient, direction, step))
            pairs = pairs.keep(alive)
        move = step[:, None] * direction
        point = point + move
        loss, fresh = _evaluate(objective, point, rows)
        pairs.push(move, fresh - gradient)
        gradient = fresh
        step = torch.full_like(step, learning_rate)
    for _ in range((iteration + 1) // STEP, evaluations // STEP):
        trail.append(visited.clone())
    return Minimum(best_point, best_loss, torch.stack(tuple(trail)))


def _evaluate(objective: Objective, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    points = points.detach().requires_grad_(True)
    loss = objective(points, rows)
    (gradient,) = torch.autograd.grad(loss.sum(), points)
    return loss.detach(), gradient


@dataclass
class _Pairs:
    """The last curvature pairs of every row, oldest overwritten first."""

    moves: Tensor  # (history, rows, size)
    changes: Tensor
    inverse: Tensor  # 1 / y.s, zero for a refused pair
    scale: Tensor  # the initial inverse Hessian's diagonal, one a row
    pushed: int = 0

    @classmethod
    def empty(cls, history: int, like: Tensor) -> _Pairs:
        rows, size = like.shape
        zeros = torch.zeros(history, rows, size, dtype=like.dtype, device=like.device)
        return cls(zeros, zeros.clone(), zeros[:, :, 0].clone(), torch.ones_like(like[:, 0]))

    def keep(self, alive: Tensor) -> _Pairs:
        return _Pairs(
            self.moves[:, alive], self.changes[:, alive], self.inverse[:, alive], self.scale[alive], self.pushed
        )

    def push(self, move: Tensor, change: Tensor) -> None:
        curvature = (move * change).sum(1)
        good = curvature > CURVATURE_FLOOR
        slot = self.pushed % len(self.moves)
        self.moves[slot] = torch.where(good[:, None], move, torch.zeros_like(move))
        self.changes[slot] = torch.where(good[:, None], change, torch.zeros_like(change))
        self.inverse[slot] = torch.where(good, 1 / curvature, torch.zeros_like(curvature))
        self.scale = torch.where(good, curvature / change.square().sum(1), self.scale)
        self.pushed += 1

    def apply(self, gradient: Tensor) -> Tensor:
        """Return the inverse Hessian's estimate times the gradient, by the two-loop recursion."""
        history = len(self.moves)
        newest_first = [slot % history for slot in range(self.pushed - 1, max(self.pushed - history, 0) - 1, -1)]
        result, shares = gradient, {}
        for slot in newest_first:
            shares[slot] = self.inverse[slot] * (self.moves[slot] * result).sum(1)
            result = result - shares[slot][:, None] * self.changes[slot]
        result = result * self.scale[:, None]
        for slot in reversed(newest_first):
            back = self.inverse[slot] * (self.changes[slot] * result).sum(1)
            result = result + (shares[slot] - back)[:, None] * self.moves[slot]
        return result
