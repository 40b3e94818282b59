"""Local training: images per second, compared with a bare PyTorch loop with the same augmentation, loss and teacher.

Both are measured in turn, several times, on one thread and in processor time. Other work on the machine therefore
affects both equally. The ratio is the median over the pairs. ResNet-18 of width 16, 32 x 32 pixels, batches of 128.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.common import bare_loop, cpu_seconds, median, objective, our_loop
from benchmarks.measure import Measurement

PAIRS = 7


def measure() -> Iterator[Measurement]:
    """Yield the throughput of one client's training."""
    torch.set_num_threads(1)
    given = objective(per_class=64)
    images = len(given.samples) * given.train.epochs
    our_loop(given), bare_loop(given)  # the first pass warms caches and kernels
    pairs = [(cpu_seconds(lambda: our_loop(given)), cpu_seconds(lambda: bare_loop(given))) for _ in range(PAIRS)]
    ours, reference = (images / median([pair[side] for pair in pairs]) for side in (0, 1))
    ratio = median([bare / own for own, bare in pairs])
    yield Measurement(
        "train", ours, reference, ratio, 0.95, unit="images/s", details={"pairs": PAIRS, "images": images}
    )
