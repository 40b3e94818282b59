"""The gradient-matching loss L_RT of a chain of sigmoid convolutions and its slope in the image, derived by hand.

The encoder is a_l = sigmoid(W_l * a_(l-1) + b_l) for l = 1..L, and softmax(V a_L + c) on top. Its cross-entropy has the
errors e = p - y, d_L = (V' e) s_L and d_(l-1) = (W_l' d_l) s_(l-1) with s = a (1 - a), and the gradients d_l x a_(l-1)
and e x a_L, one per image. Autograd would find the slope of their distance to the wanted ones by a double backward pass
through convolutions with one weight per image, which are slow. Written out, all weights but the distance itself are
shared by the images, and all work is copies of runs of memory and small matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.chain import Chain, shared
from fcil.maths.descent import Evaluation


@dataclass(frozen=True)
class Wanted:
    """The gradients to match, one per image, arranged as the chain's matrices."""

    weights: tuple[Tensor, ...]  # of the convolutions
    biases: tuple[Tensor, ...]
    target: Tensor  # y: one-hot labels
    error: Tensor  # e*: the last bias's gradient
    features: Tensor  # a*: the gradient of the last weight is e* x a* + excess
    excess: Tensor | None

    def of(self, rows: Tensor) -> Wanted:
        """Return the gradients of some images."""
        return Wanted(
            tuple(weight[rows] for weight in self.weights),
            tuple(bias[rows] for bias in self.biases),
            self.target[rows],
            self.error[rows],
            self.features[rows],
            None if self.excess is None else self.excess[rows],
        )


def wanted_gradients(chain: Chain, gradients: dict[str, Tensor], labels: Tensor) -> Wanted:
    """Return gradients, given by parameter and images first, in the chain's arrangement.

    The last weight's gradient at one image is the product e* x a* of two vectors, the first of which is the gradient of
    the bias. So its distance to another such product needs no matrix of classes x features, but for a part in excess of
    e* x a*: nothing above rounding, unless the gradient was tampered with.
    """
    last, error = gradients[chain.weight_name], gradients[chain.bias_name]
    square = error.square().sum(1, keepdim=True)
    features = torch.bmm(error[:, None], last)[:, 0] / torch.where(square > 0, square, torch.ones_like(square))
    excess = last - error[:, :, None] * features[:, None]
    rounding = 16 * torch.finfo(last.dtype).eps
    negligible = bool((excess.flatten(1).norm(dim=1) <= rounding * last.flatten(1).norm(dim=1)).all())
    return Wanted(
        tuple(layer.arrange(gradients[layer.weight_name]) for layer in chain.convolutions),
        tuple(gradients[layer.bias_name] for layer in chain.convolutions),
        F.one_hot(labels, len(chain.bias)).to(error),
        error,
        features,
        None if negligible else excess,
    )


@dataclass
class _Pass:
    """Intermediate values of one convolution, for the passes after it."""

    columns: Tensor
    values: Tensor  # a
    slope: Tensor  # s = a (1 - a)
    arriving: Tensor = field(init=False)  # u: the error before the sigmoid's slope
    errors: Tensor = field(init=False)  # d = u s
    error_columns: Tensor = field(init=False)
    residual: Tensor = field(init=False)  # gradient of the weight minus the wanted one
    bending: Tensor = field(init=False)  # slope of half the loss in s


def matching(chain: Chain, wanted: Wanted) -> Evaluation:
    """Return the function from points to the loss |gradient - wanted|^2 and its slope, one each."""

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        passes = _forward(chain, points)
        features = passes[-1].values.flatten(1)
        chances = torch.softmax(torch.addmm(chain.bias, features, chain.weight.T), 1)
        error = chances - wanted.target
        _errors(chain, passes, error)
        loss, error_slope, feature_slope = _last_layer(wanted, error, features)
        parts, arriving = _residuals(chain, wanted, passes)
        # from here on slopes of half the loss, first of the errors in the order opposite to theirs, then of the values
        error_slope = error_slope + arriving.flatten(1) @ chain.weight.T
        logit_slope = chances * (error_slope - (chances * error_slope).sum(1, keepdim=True))
        slope = _values(chain, passes, feature_slope + logit_slope @ chain.weight)
        return loss + parts, 2 * slope.flatten(1)

    return evaluate


def _forward(chain: Chain, points: Tensor) -> list[_Pass]:
    passes: list[_Pass] = []
    values = points
    for layer in chain.convolutions:
        columns = layer.columns(values)
        values = torch.sigmoid_(torch.baddbmm(layer.bias, shared(layer.weight, columns), columns.mT))
        passes.append(_Pass(columns, values, values * (1 - values)))
    return passes


def _errors(chain: Chain, passes: list[_Pass], error: Tensor) -> None:
    """Carry the error back to every layer."""
    arriving = (error @ chain.weight).view_as(passes[-1].values)
    for layer, one in zip(reversed(chain.convolutions), reversed(passes), strict=True):
        one.arriving, one.errors = arriving, arriving * one.slope
        one.error_columns = layer.error_columns(one.errors)
        if one is not passes[0]:
            back = torch.bmm(shared(layer.backward_weight, one.error_columns), one.error_columns.mT)
            arriving = layer.unite(back)


def _last_layer(wanted: Wanted, error: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the linear layer's part of the loss, and the slopes of its half in the error and in the features.

    e x a - e* x a* is (e - e*) x a + e* x (a - a*), which loses no digits where the two are near.
    """
    off, apart = error - wanted.error, features - wanted.features
    off_square, off_wanted = off.square().sum(1), (off * wanted.error).sum(1)
    square, along = features.square().sum(1), (features * apart).sum(1)
    wanted_square = wanted.error.square().sum(1)
    loss = off_square * (square + 1) + 2 * off_wanted * along + wanted_square * apart.square().sum(1)
    error_slope = off * (square + 1)[:, None] + wanted.error * along[:, None]
    feature_slope = features * (off_square + off_wanted)[:, None] + apart * (off_wanted + wanted_square)[:, None]
    if wanted.excess is not None:
        over = torch.bmm(features[:, None], wanted.excess.mT)[:, 0]
        loss = loss - 2 * (off * over).sum(1) + wanted.excess.flatten(1).square().sum(1)
        error_slope = error_slope - over
        feature_slope = feature_slope - torch.bmm(off[:, None], wanted.excess)[:, 0]
    return loss, error_slope, feature_slope


def _residuals(chain: Chain, wanted: Wanted, passes: list[_Pass]) -> tuple[Tensor, Tensor]:
    """Return the convolutions' part of the loss, and the slope of its half in the error arriving at the last one."""
    loss = torch.zeros_like(wanted.error[:, 0])
    slope: Tensor | None = None  # in what arrives at the layer below, which has passed through this one's weights
    for number, (layer, one) in enumerate(zip(chain.convolutions, passes, strict=True)):
        one.residual = torch.baddbmm(wanted.weights[number], one.errors, one.columns, beta=-1)
        bias_residual = one.errors.sum(2) - wanted.biases[number]
        loss = loss + one.residual.flatten(1).square().sum(1) + bias_residual.square().sum(1)
        error_slope = torch.baddbmm(bias_residual[:, :, None], one.residual, one.columns.mT)
        if slope is not None:
            columns = layer.columns(slope)
            error_slope = torch.baddbmm(error_slope, shared(layer.weight, columns), columns.mT)
        one.bending = error_slope * one.arriving
        slope = error_slope * one.slope
    assert slope is not None
    return loss, slope


def _values(chain: Chain, passes: list[_Pass], slope: Tensor) -> Tensor:
    """Return the slope in the image, from that in the last layer's values."""
    slope = slope.view_as(passes[-1].values)
    for layer, one in zip(reversed(chain.convolutions), reversed(passes), strict=True):
        inner = one.slope * torch.addcmul(slope, one.bending, 1 - 2 * one.values)
        columns = layer.error_columns(inner)
        own = torch.bmm(layer.turn(one.residual), one.error_columns.mT)
        slope = layer.unite(torch.baddbmm(own, shared(layer.backward_weight, columns), columns.mT))
    return slope
