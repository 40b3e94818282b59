"""The entropies of 120 clients: one shared cache, compared with each client alone.

The published schedule of CIFAR-100 with ten tasks has 120 clients in the last task (30, and 10 more at each of nine
transitions). Nine in ten of them hold 6 of the 10 new classes. Images are 16 x 16, 50 per class, width 16. A client
alone runs the network over its own samples in batches. The benchmark also checks that a client with its own cache gets
the same bits as one that shares a cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.common import MODEL, cpu_seconds, local_of, patterns
from benchmarks.measure import Measurement
from fcil.core.messages import model_digest
from fcil.data.augment import as_floats
from fcil.data.scenario.scenario import Scenario, ScenarioConfig
from fcil.maths.entropy import softmax_entropy
from fcil.models import grow, initial_state
from fcil.models.client_context import ClientContext


def measure() -> Iterator[Measurement]:
    """Yield the processor time of one pass over all clients."""
    torch.set_num_threads(1)
    source = patterns(100, 50, 16)
    scenario = Scenario(ScenarioConfig(), source.train.labels, source.classes, seed=2021)
    last = scenario.rounds - 1
    holdings = [scenario.holding(last, client) for client in scenario.clients(last)]
    model = grow(initial_state(MODEL, 3, 1), 100, 2)
    digest = model_digest(model)
    found: dict[str, list[float]] = {}

    def entropy(local: ClientContext, held: torch.Tensor) -> float:
        return float(local.inference.entropies(digest, model, held, 100).mean()) if len(held) else 0.0

    def shared() -> None:
        local = local_of(source)
        found["shared"] = [entropy(local, held) for held in holdings]

    def alone() -> None:
        found["alone"] = [plainly(held) for held in holdings]

    def plainly(held: torch.Tensor) -> float:
        net = local_of(source).machine.net(model)
        with torch.inference_mode():
            parts = [softmax_entropy(net(as_floats(source.train.images[part]))) for part in held.split(256)]
        return float(torch.cat(parts).mean()) if len(held) else 0.0

    plainly(holdings[0])  # warms the kernels
    ours, reference = cpu_seconds(shared), cpu_seconds(alone)
    with_own_cache = [entropy(local_of(source), held) for held in holdings[::10]]
    assert with_own_cache == found["shared"][::10]
    apart = max(abs(left - right) for left, right in zip(found["shared"], found["alone"], strict=True))
    details = {"clients": len(holdings), "samples": sum(map(len, holdings)), "largest_difference": apart}
    yield Measurement("infer", ours, reference, reference / ours, 10, unit="CPU s", details=details)
