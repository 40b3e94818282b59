"""Gradient inversion: the label at once, the image by L-BFGS on all gradients together or layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fcil.maths.chain import chain_of
from fcil.maths.descent import Evaluation, Problem, Rules, by_autograd, descend, minimise
from fcil.maths.layerwise import solve_by_layers
from fcil.maths.matching import matching, wanted_gradients
from fcil.maths.prototypes import encoder_gradients

__all__ = ["Inversion", "invert", "labels_from_gradients", "minimise", "wrap_to_pixels"]

Start = Literal["noise", "layers"]
# L_RT, relative to the gradient's squared norm, at which an image is found. What was solved layer by layer to 1e-7 is
# within about a grey level of the truth (45 dB): more descent moves it so little that no score could tell.
TARGETS: dict[Start, float] = {"noise": 1e-8, "layers": 1e-7}


def labels_from_gradients(last_layer: Tensor) -> Tensor:
    """Return the label behind each gradient of the last layer's weight, given as (gradients, classes, inputs).

    The row of the true class is the only one with a negative sum, because the layer's inputs are positive.
    """
    return last_layer.sum(2).argmin(1)


@dataclass(frozen=True)
class Inversion:
    """Rebuilt images, one per example, with the gradient-matching loss each one reached, and the last iterates."""

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
    target: float | None = None,
    start: Start = "noise",
    tick: Callable[[], object] = lambda: None,
) -> Inversion:
    """Rebuild one image per gradient by minimising L_RT from standard normal noise.

    An image that has not come below `target` times its gradient's squared norm (by default of `TARGETS`) is started
    again from new noise, up to `restarts` times with `evaluations` each; the best attempt is kept. The trail holds the
    image after each of the last `keep` optimiser steps of `STEP` evaluations. With `start="layers"` the first attempt
    begins at the solution layer by layer where that matches better than noise, which leaves little or nothing to do.
    `tick` is called before each evaluation.
    """
    reference = {name: gradients[name].detach() for name, _ in encoder.named_parameters()}
    matched = _matching(encoder, reference, labels, image_shape)
    goal = (TARGETS[start] if target is None else target) * torch.stack(
        [value.flatten(1).square().sum(1) for value in reference.values()]
    ).sum(0)
    size = image_shape[0] * image_shape[1] * image_shape[2]
    images = torch.zeros(len(labels), size, dtype=goal.dtype, device=labels.device)
    trail = torch.zeros(keep, *images.shape, dtype=goal.dtype, device=labels.device)
    best = torch.full_like(goal, float("inf"))
    for attempt in range(restarts + 1):
        rows = (best > goal).nonzero().squeeze(1)
        if len(rows) == 0:
            break
        begin = torch.randn(len(rows), size, generator=generator).to(images)
        if attempt == 0 and start == "layers":
            begin = matched.better_start(rows, begin)
        found = descend(
            lambda part, among=rows: _ticking(matched.problem(among[part]), tick),  # type: ignore[misc]
            begin,
            goal[rows],
            Rules(evaluations, learning_rate, keep=keep),
        )
        better = found.loss < best[rows]
        images[rows[better]] = found.point[better]
        trail[:, rows[better]] = found.trail[:, better]
        best[rows[better]] = found.loss[better]
    return Inversion(images.view(-1, *image_shape), best, trail.view(keep, -1, *image_shape))


def _ticking(evaluate: Evaluation, tick: Callable[[], object]) -> Evaluation:
    def evaluated(points: Tensor) -> tuple[Tensor, Tensor]:
        tick()
        return evaluate(points)

    return evaluated


@dataclass(frozen=True)
class _Matching:
    """L_RT as a problem, and its solution layer by layer where the encoder allows for one."""

    problem: Problem
    solve: Callable[[Tensor], Tensor] | None

    def better_start(self, rows: Tensor, noise: Tensor) -> Tensor:
        """Return the solution layer by layer, but noise for the images that noise matches better."""
        if self.solve is None:
            return noise
        evaluate, solution = self.problem(rows), self.solve(rows)
        nearer = evaluate(solution)[0] < evaluate(noise)[0]  # false where the solution is not finite
        return torch.where(nearer[:, None], solution, noise)


def _matching(
    encoder: nn.Module, gradients: dict[str, Tensor], labels: Tensor, image_shape: tuple[int, int, int]
) -> _Matching:
    """Return L_RT, derived by hand where the encoder is a chain of sigmoid convolutions, else left to autograd."""
    chain = chain_of(encoder, image_shape)
    if chain is None:

        def objective(points: Tensor, rows: Tensor) -> Tensor:
            found = encoder_gradients(encoder, points.view(-1, *image_shape), labels[rows])
            parts = [(found[name] - gradients[name][rows]).flatten(1).square().sum(1) for name in gradients]
            return torch.stack(parts).sum(0)

        return _Matching(by_autograd(objective), None)
    wanted = wanted_gradients(chain, gradients, labels)
    return _Matching(
        lambda rows: matching(chain, wanted.of(rows)), lambda rows: solve_by_layers(chain, wanted.of(rows))
    )


def wrap_to_pixels(images: Tensor) -> Tensor:
    """Return images as the released code keeps them: through uint8, where values outside [0, 1] wrap around."""
    return torch.remainder(torch.trunc(images * 255), 256).div(255)
