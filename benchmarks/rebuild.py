"""How well the proxy rebuilds images from their gradients, by budget.

    python benchmarks/rebuild.py [--source digits] [--image-size 8] [--images 20] [--evaluations 300] [--start layers]

Prints one JSON line per budget: {source, image_size, classes, images, evaluations, start, restarts, median_psnr_db,
share_above_25_db, cpu_seconds_per_image}. The images are unperturbed test images; the encoder is the one GLFC uses.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from fcil.core.messages import derive_seed, generator
from fcil.data.augment import as_floats
from fcil.data.datasets import DataConfig, load_source
from fcil.maths.inversion import invert
from fcil.maths.prototypes import encoder_gradients
from fcil.models import build_encoder


def measure(arguments: argparse.Namespace, evaluations: int) -> dict[str, object]:
    """Return the quality that a budget reaches."""
    source = load_source(DataConfig(source=arguments.source, image_size=arguments.image_size))
    test = source.test.select((source.test.labels < arguments.classes).nonzero().squeeze(1)[: arguments.images])
    images, labels = as_floats(test.images), test.labels
    channels, height, width = source.image_shape
    encoder = build_encoder(channels, (height, width), arguments.classes, derive_seed(arguments.seed, "encoder"))
    began = time.process_time()
    found = invert(
        encoder,
        encoder_gradients(encoder, images, labels),
        labels,
        source.image_shape,
        generator=generator(derive_seed(arguments.seed, "starts")),
        evaluations=evaluations,
        restarts=arguments.restarts,
        start=arguments.start,
    )
    seconds = time.process_time() - began
    psnr = -10 * torch.log10((found.images - images).square().flatten(1).mean(1))
    return {
        "source": arguments.source,
        "image_size": height,
        "classes": arguments.classes,
        "images": len(images),
        "evaluations": evaluations,
        "start": arguments.start,
        "restarts": arguments.restarts,
        "median_psnr_db": round(float(psnr.median()), 1),
        "share_above_25_db": round(float((psnr > 25).float().mean()), 3),
        "cpu_seconds_per_image": round(seconds / len(images), 3),
    }


def main() -> None:
    """Measure every budget and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=["cifar100", "digits"], default="digits")
    parser.add_argument("--image-size", type=int, default=8)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--evaluations", type=int, nargs="+", default=[100, 300, 4000])
    parser.add_argument("--start", choices=["noise", "layers"], default="noise")
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2021)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for evaluations in arguments.evaluations:
        print(json.dumps(measure(arguments, evaluations)), flush=True)


if __name__ == "__main__":
    main()
