"""Re-Fed's importance of a sample: its gradient norm under a model that is trained on a client's past, near the global.

The model v takes s passes over the past, w is the global model: v <- v - eta (grad l(v) + q (v - w)). A sample counts
I(x) = sum_p (1 / p) ||grad l(v_p; x)||, with v_p the model after p passes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcil.maths.losses import one_hot
from fcil.maths.penalties import sample_gradients


def pull_strength(share: float) -> float:
    """Return q = (1 - lambda) / (2 lambda): no pull where lambda is one, any amount of it as lambda goes to zero.

    >>> pull_strength(0.5), pull_strength(1.0)
    (0.5, 0.0)
    """
    return (1 - share) / (2 * share)


def pulled(value: Tensor, gradient: Tensor, anchor: Tensor, rate: float, pull: float, explicit: bool = False) -> Tensor:
    """Return v after one step; unless `explicit`, the pull is that of the place where the step ends.

    This is (v - eta g + eta q w) / (1 + eta q), which is w for a strong pull, where the explicit step diverges.
    """
    if explicit:
        return value - rate * (gradient + pull * (value - anchor))
    return anchor + (value - rate * gradient - anchor) / (1 + rate * pull)


def head_gradient_norms(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return per example the norm of the cross-entropy's gradient by weight and bias of a linear head.

    The gradient is (p - onehot) times (f, 1), so its norm is ||p - onehot|| sqrt(||f||^2 + 1).
    """
    error = F.softmax(logits, 1) - one_hot(labels, logits.shape[1], logits)
    norms: Tensor = error.norm(dim=1) * (features.square().sum(1) + 1).sqrt()
    return norms


def network_gradient_norms(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return per example the norm of the cross-entropy's gradient by all trained parameters, in evaluation mode."""
    trained = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    squares = [
        torch.stack([value.flatten(1).square().sum(1) for value in part.values()]).sum(0)
        for part in sample_gradients(net, images, labels, names=trained)
    ]
    return torch.cat([images.new_zeros(0), *squares]).sqrt()


def accumulated(norms: Iterable[Tensor]) -> Tensor:
    """Return sum_p norms_p / p, p from one on.

    >>> accumulated([torch.tensor([3.0]), torch.tensor([4.0])]).item()
    5.0
    """
    return torch.stack([norm / number for number, norm in enumerate(norms, 1)]).sum(0)
