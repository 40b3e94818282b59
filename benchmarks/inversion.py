"""Images from gradients: one batch with hand-derived derivatives, compared with `torch.optim.LBFGS` one by one.

Rebuilding images is what the proxy of GLFC spends its time on. The gradients are those of 60 CIFAR-100 images if the
data set is found (`FCIL_DATA`), otherwise of smooth random images, in the encoder of 100 classes. The reference is the
obvious implementation: an autograd double backward pass and torch's optimiser, for one image after another, from the
same noise, with the same number of evaluations. For both sides the best image visited counts.

The reference takes minutes, so it rebuilds only part of the images, and losses are compared on that part. Cost and loss
are measured with a small budget, after which most losses are similar but few images are recognisable. The share above
25 dB is therefore measured with a larger budget. Rounding decides which images L-BFGS with fixed steps loses and how
far the others get, so the bound on the loss has a tolerance. `inversion.layers` starts at the layer-by-layer solution
instead of noise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Measurement
from fcil.core.messages import generator
from fcil.data.augment import as_floats
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.cifar100 import is_there
from fcil.maths.inversion import Inversion, invert
from fcil.maths.prototypes import encoder_gradients
from fcil.models import LeNet, build_encoder

IMAGES, SHAPE, CLASSES = 60, (3, 32, 32), 100
SHORT, LONG, PUBLISHED = 400, 2000, 4000  # evaluations
EVERY_SHORT, EVERY_LONG, EVERY_PUBLISHED = 3, 6, 15  # of which images
GOOD = 25  # dB
ROUNDING = 1.15  # what the median loss may owe to rounding
STARTS = 1  # seed of the noise


@dataclass(frozen=True)
class Gradients:
    """Images, their labels and the encoder's gradients at them."""

    images: Tensor
    labels: Tensor
    values: dict[str, Tensor]

    def every(self, step: int) -> Gradients:
        """Return one of so many."""
        return Gradients(
            self.images[::step], self.labels[::step], {name: value[::step] for name, value in self.values.items()}
        )


@dataclass(frozen=True)
class Rebuilt:
    """Results of inverting gradients."""

    loss: Tensor
    decibels: Tensor
    seconds: float  # CPU, an image

    @property
    def good(self) -> float:
        """Return the share of images that can be recognised."""
        return float((self.decibels > GOOD).double().mean())


def measure() -> Iterator[Measurement]:
    """Yield cost, loss and quality of rebuilt images, compared with those of torch's optimiser."""
    torch.set_num_threads(1)
    name, images, labels = pictures()
    encoder = build_encoder(*(SHAPE[0], SHAPE[1:], CLASSES), seed=5)
    everything = Gradients(images, labels, encoder_gradients(encoder, images, labels))
    rebuild(encoder, everything.every(EVERY_LONG), evaluations=3)  # warms the kernels

    some = everything.every(EVERY_SHORT)
    reference = one_by_one(encoder, some, SHORT)
    ours, whole = rebuild(encoder, some, evaluations=SHORT), rebuild(encoder, everything, evaluations=SHORT)
    details = {"images": name, "evaluations": SHORT, "gradients": len(everything.labels), "compared": len(some.labels)}
    cost = reference.seconds / whole.seconds
    yield Measurement("inversion.cpu", whole.seconds, reference.seconds, cost, 4, unit="CPU s / image", details=details)
    yield loss_ratio("inversion.loss", ours, reference, details)

    some, few = everything.every(EVERY_LONG), everything.every(EVERY_PUBLISHED)
    details = {**details, "evaluations": LONG, "gradients": len(some.labels), "compared": len(some.labels)}
    reference, ours = one_by_one(encoder, some, LONG), rebuild(encoder, some, evaluations=LONG)
    published = rebuild(encoder, few, evaluations=PUBLISHED)
    costs = {"cpu": ours.seconds, "reference_cpu": reference.seconds, f"cpu_{PUBLISHED}": published.seconds}
    yield quality("inversion.psnr", ours, reference, {**details, **costs, f"good_{PUBLISHED}": published.good})

    solved, whole = (rebuild(encoder, part, evaluations=LONG, start="layers") for part in (some, everything))
    cost = reference.seconds / whole.seconds
    yield Measurement(
        "inversion.layers.cpu", whole.seconds, reference.seconds, cost, 4, unit="CPU s / image", details=details
    )
    yield loss_ratio("inversion.layers.loss", solved, reference, details)
    yield quality("inversion.layers.psnr", solved, reference, {**details, "good_all": whole.good})


def loss_ratio(name: str, ours: Rebuilt, reference: Rebuilt, details: dict[str, object]) -> Measurement:
    """Return the median losses on the same gradients."""
    found, wanted = (float(torch.quantile(rebuilt.loss, 0.5)) for rebuilt in (ours, reference))
    return Measurement(name, found, wanted, found / wanted, ROUNDING, "at most", "median loss", details)


def quality(name: str, ours: Rebuilt, reference: Rebuilt, details: dict[str, object]) -> Measurement:
    """Return the shares of recognisable images; the bound is on their difference."""
    decibels = {"median_db": float(ours.decibels.median()), "reference_median_db": float(reference.decibels.median())}
    return Measurement(
        name,
        ours.good,
        reference.good,
        ours.good - reference.good,
        0,
        unit=f"share above {GOOD} dB; ratio: the difference",
        details={**details, **decibels},
    )


def pictures() -> tuple[str, Tensor, Tensor]:
    """Return the first test images of CIFAR-100 where it is found, else smooth random ones."""
    if is_there():
        test = load_source(DataConfig(source="cifar100")).test
        return "cifar100", as_floats(test.images[:IMAGES]), test.labels[:IMAGES]
    coarse = torch.rand(IMAGES, SHAPE[0], 8, 8, generator=generator(8))
    smooth = F.interpolate(coarse, size=SHAPE[1:], mode="bicubic", align_corners=False).clamp(0, 1)
    return "smooth", smooth, torch.randint(0, CLASSES, (IMAGES,), generator=generator(9))


def rebuild(encoder: LeNet, gradients: Gradients, **options: object) -> Rebuilt:
    """Return what the library makes of gradients."""
    settings = {"generator": generator(STARTS), **options}
    began = time.process_time()
    found: Inversion = invert(encoder, gradients.values, gradients.labels, SHAPE, **settings)
    seconds = time.process_time() - began
    return Rebuilt(found.loss, decibels(found.images, gradients.images), seconds / len(gradients.labels))


def one_by_one(encoder: LeNet, gradients: Gradients, evaluations: int) -> Rebuilt:
    """Return what torch's optimiser makes of gradients, one at a time, from the noise that the library starts at."""
    count = len(gradients.labels)
    starts = torch.randn(count, SHAPE[0] * SHAPE[1] * SHAPE[2], generator=generator(STARTS)).view(count, 1, *SHAPE)
    encoder.requires_grad_(True)
    began = time.process_time()
    found = [
        plainly(
            encoder,
            [gradients.values[name][row] for name, _ in encoder.named_parameters()],
            gradients.labels[row : row + 1],
            starts[row],
            evaluations,
        )
        for row in range(count)
    ]
    seconds = time.process_time() - began
    encoder.requires_grad_(False)
    images = torch.cat([image for image, _ in found])
    losses = torch.tensor([loss for _, loss in found])
    return Rebuilt(losses, decibels(images, gradients.images), seconds / count)


def plainly(
    encoder: LeNet, gradient: list[Tensor], label: Tensor, start: Tensor, evaluations: int
) -> tuple[Tensor, float]:
    """Return the best image that torch's optimiser visits, and its loss."""
    image = start.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([image], lr=1)
    parameters = list(encoder.parameters())
    best, best_loss, spent = start, float("inf"), 0

    def closure() -> Tensor:
        nonlocal best, best_loss, spent
        optimiser.zero_grad()
        found = torch.autograd.grad(F.cross_entropy(encoder(image), label), parameters, create_graph=True)
        loss = torch.stack([(one - other).square().sum() for one, other in zip(found, gradient, strict=True)]).sum()
        loss.backward()
        spent += 1
        if loss.item() < best_loss:
            best, best_loss = image.detach().clone(), loss.item()
        return loss

    while spent < evaluations:
        before = spent
        optimiser.step(closure)
        if spent - before < 2:  # the optimiser has nothing left to do
            break
    return best, best_loss


def decibels(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image."""
    return -10 * torch.log10((found - wanted).square().flatten(1).mean(1))


if __name__ == "__main__":
    for measurement in measure():
        print(measurement.line(), flush=True)
