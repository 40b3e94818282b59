"""Classification losses, one value per example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def at_least_single(values: Tensor) -> Tensor:
    """Return the values in single precision if they came in half: `train.mixed_precision` gives logits so.

    >>> [at_least_single(torch.ones(1, dtype=kind)).dtype for kind in (torch.bfloat16, torch.float64)]
    [torch.float32, torch.float64]
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def in_double(values: Tensor) -> Tensor:
    """Return the values in double precision and without gradients: on their device, or on the processor for `mps`.

    Apple's devices have no double precision.
    """
    return values.detach().to(device_of_doubles(values.device), torch.float64)


def device_of_doubles(device: torch.device) -> torch.device:
    """Return where numbers of a device can be had in double precision.

    >>> [str(device_of_doubles(torch.device(name))) for name in ("cpu", "cuda:1", "mps")]
    ['cpu', 'cuda:1', 'cpu']
    """
    return torch.device("cpu") if device.type == "mps" else device


def one_hot(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """Return the labels as rows with a single one, in the type and on the device of `like`."""
    return (labels[..., None] == torch.arange(classes, device=labels.device)).to(like)  # vmap knows no F.one_hot


def binary_cross_entropy(logits: Tensor, targets: Tensor, outputs: Tensor | None = None) -> Tensor:
    """Return D_CE per example: binary cross-entropy of the sigmoids, averaged over the classes, or over these outputs.

    >>> binary_cross_entropy(torch.zeros(1, 4), torch.eye(4)[:1]).item()  # ln 2
    0.6931471824645996
    """
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (each if outputs is None else each[:, outputs]).mean(1)


def labelled_bce(logits: Tensor, labels: Tensor, outputs: Tensor | None = None) -> Tensor:
    """Return L_CE per example: the binary cross-entropy with the labels, over all outputs or over these."""
    return binary_cross_entropy(logits, one_hot(labels, logits.shape[1], logits), outputs)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax cross-entropy per example."""
    return F.cross_entropy(logits, labels, reduction="none")
