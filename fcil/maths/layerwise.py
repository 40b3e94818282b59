"""The image behind a gradient, solved for layer by layer from the last one to the first.

In a chain of sigmoid convolutions, the gradient at one image of the last weight and bias gives away that weight's input
a_L, hence W_L * a_(L-1) = logit(a_L) - b_L and the errors d_L; and the gradient d_L x a_(L-1) is linear in a_(L-1) as
well. So the input of every layer is the solution of linear equations (R-GAP: Zhu & Blaschko, ICLR 2021), as long as
there are enough of them: for GLFC's encoder up to about 40 x 40 pixels. Conjugate gradients solve them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.maths.chain import Chain, Convolution, shared
from fcil.maths.matching import Wanted

ITERATIONS = 2000  # a layer; CIFAR-100 takes about 600
TOLERANCE = 1e-6  # of the normal equations' residual, relative to its start
TOGETHER = 16  # images at once: more would leave the processor's cache


@torch.no_grad()
def solve_by_layers(chain: Chain, wanted: Wanted) -> Tensor:
    """Return the points that have these gradients, as far as linear equations determine them."""
    rows = torch.arange(len(wanted.error), device=wanted.error.device)
    return torch.cat([_solve(chain, wanted.of(part)) for part in torch.split(rows, TOGETHER)])


def _solve(chain: Chain, wanted: Wanted) -> Tensor:
    values, arriving = wanted.features, wanted.error @ chain.weight
    margin = 8 * torch.finfo(values.dtype).eps  # a sigmoid that rounding has driven to 0 or 1 is put back inside
    for layer, gradient in zip(reversed(chain.convolutions), reversed(wanted.weights), strict=True):
        values = values.reshape(len(gradient), layer.outputs, -1).clamp(margin, 1 - margin)
        slope = values * (1 - values)
        errors = arriving.view_as(values) * slope
        values = _input_of(layer, gradient, errors, torch.logit(values), slope)
        arriving = layer.carry_back(errors)
    return values.flatten(1)


def _input_of(layer: Convolution, gradient: Tensor, errors: Tensor, outcome: Tensor, slope: Tensor) -> Tensor:
    """Return the input at which a layer has this weight gradient for these errors, and this outcome.

    The two sets of equations are scaled to rows of equal mean square, an outcome's by the slope of its sigmoid because
    that is how well it is known; the unknowns are scaled to columns of length one.
    """
    tiny = torch.finfo(errors.dtype).tiny
    square = layer.weight.square().sum() / layer.outputs
    errors_scale = (errors.square().sum((1, 2), keepdim=True) / layer.outputs).sqrt().clamp(min=tiny)
    outcome_scale = slope / (slope.square().mean((1, 2), keepdim=True) * square).sqrt().clamp(min=tiny)
    errors = errors / errors_scale
    columns = layer.error_columns(errors)
    lengths = layer.unite(
        torch.bmm(shared(layer.turn(torch.ones_like(layer.weight)[None])[0], columns), columns.square().mT)
        + layer.backward_weight.square() @ layer.error_columns(outcome_scale.square()).mT
    )
    unit = lengths.clamp(min=torch.finfo(errors.dtype).eps).rsqrt()

    def forward(values: Tensor) -> tuple[Tensor, Tensor]:
        windows = layer.columns(unit * values)
        return torch.bmm(errors, windows), outcome_scale * torch.bmm(shared(layer.weight, windows), windows.mT)

    def backward(on_gradient: Tensor, on_outcome: Tensor) -> Tensor:
        own = torch.bmm(layer.turn(on_gradient), columns.mT)
        reached = layer.error_columns(outcome_scale * on_outcome)
        return unit * layer.unite(torch.baddbmm(own, shared(layer.backward_weight, reached), reached.mT))

    first, second = gradient / errors_scale, outcome_scale * (outcome - layer.bias)
    solution = torch.zeros_like(unit)
    normal = direction = backward(first, second)
    left = _square(normal)
    enough = TOLERANCE**2 * left
    for _ in range(ITERATIONS):
        along = forward(direction)
        step = _ratio(left, _square(along[0]) + _square(along[1]), left > enough)
        solution = solution + step * direction
        first, second = first - step * along[0], second - step * along[1]
        normal = backward(first, second)
        left, before = _square(normal), left
        if not bool((left > enough).any()):
            break
        direction = normal + _ratio(left, before, before > 0) * direction
    return unit * solution


def _square(values: Tensor) -> Tensor:
    return values.square().sum((1, 2), keepdim=True)


def _ratio(above: Tensor, below: Tensor, where: Tensor) -> Tensor:
    """Return a quotient where it is asked for and defined, else zero."""
    good = where & (below > 0)
    return torch.where(good, above / torch.where(good, below, torch.ones_like(below)), torch.zeros_like(above))
