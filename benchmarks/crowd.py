"""A server of a deployment with 200 and with 1,000 sites and an 11 M parameter model: CPU per site, and memory.

The sites are stand-ins in the server's process that answer at once with one report of 45 MB. The rest is the server of
`fcil federation serve`: requests, checks of answers, aggregation, evaluation, releases and checkpoints, without Flower,
which carries the bytes. Each number of sites runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import median, resident
from benchmarks.measure import Measurement
from benchmarks.scale import measured
from fcil.core.messages import Message, ModelState, Reply, Report
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.server.run import ServedRun
from fcil.deployment.transport.base import ConnectedParty, Envelope
from fcil.deployment.transport.messages import (
    Answer,
    EvaluateRequest,
    EvaluationResult,
    IdentifyRequest,
    Identity,
    ReleaseHeld,
    ReleaseRequest,
    Request,
    TrainRequest,
    TrainResult,
    decode_message,
    decode_model,
    encode_message,
)
from fcil.experiment.config import load_config

CROWDS = (200, 1000)
ROUNDS = 3  # the first has no classes yet
IDS = tuple(f"{number:032x}" for number in range(10))  # of classes
SETTINGS = (
    "method.name=finetune",
    f"deployment.rounds={ROUNDS}",
    "deployment.evaluate_every=0",
    "model.width=64",
    "run.threads=1",
)


class Crowd:
    """A transport to sites that all give the same answer, which is made once per kind of request and round."""

    def __init__(self, sites: int) -> None:
        self.sites = [ConnectedParty(number, f"site-{number}", "site") for number in range(sites)]
        self.models: dict[str, ModelState] = {}
        self.made: dict[tuple[str, int], bytes] = {}
        self.seconds = 0.0  # of CPU, spent on the sites' side
        self.down = self.up = 0

    def members(self) -> list[ConnectedParty]:
        return self.sites

    def exchange(self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int) -> Iterator[Any]:
        for one in envelopes:
            began = time.process_time()
            answer = self._answer(one)
            self.seconds += time.process_time() - began
            self.down += len(one.content) + sum(map(len, one.parcels.values()))
            self.up += len(answer)
            yield one.to, answer

    def _answer(self, one: Envelope) -> bytes:
        request = decode_message(one.content, Request, DEFAULT_LIMIT)
        for digest, parcel in one.parcels.items():
            if digest not in self.models:
                self.models = {digest: decode_model(digest, parcel, DEFAULT_LIMIT).model}
        key = type(request).__name__, _round(request)
        if key not in self.made:
            self.made = {key: encode_message(Answer(tuple(self.models), self._content(request)))}
        return self.made[key]

    def _content(self, request: Request) -> Message:
        if isinstance(request, TrainRequest):
            return TrainResult(self._reply(request))
        if isinstance(request, EvaluateRequest):
            images = torch.full((request.context.classes,), 10)
            return EvaluationResult(images, images)
        return ReleaseHeld(request.since) if isinstance(request, ReleaseRequest) else Identity()

    def _reply(self, request: TrainRequest) -> Reply:
        if request.broadcast.context.classes == 0:
            return Reply(0, announced=IDS)
        sent = self.models[request.broadcast.model]
        changed = {name: tensor * 1.001 if tensor.is_floating_point() else tensor for name, tensor in sent.items()}
        return Reply(0, Report(changed, 100))


def _round(request: Request) -> int:
    if isinstance(request, TrainRequest):
        return request.broadcast.context.round
    return 0 if isinstance(request, IdentifyRequest) else -1


def serve(sites: int) -> None:
    """Play rounds with so many sites and print what they took."""
    crowd, seconds = Crowd(sites), []
    config = load_config("digits", [*SETTINGS, f"scenario.participants={sites}", f"deployment.min_sites={sites}"])
    with tempfile.TemporaryDirectory() as folder, ServedRun.start(config, Path(folder) / "run") as run:
        opened = resident("VmHWM")
        began = time.process_time()
        for record in run.rounds(run.serve(crowd, print)):
            seconds.append((time.process_time() - began - crowd.seconds) / sites)
            assert record.reports == (sites if record.round > 1 else 0), record.failures[:1]
            began, crowd.seconds = time.process_time(), 0.0
        model = sum(tensor.nbytes for tensor in run.state.server.model.values()) / 1e6
    found = {"per_site": median(seconds[1:]), "peak_mb": resident("VmHWM"), "open_mb": opened, "model_mb": model}
    traffic = {"down_gb": crowd.down / 1e9, "up_gb": crowd.up / 1e9}
    print("FOUND", json.dumps({**found, **traffic, "sites": sites}), flush=True)


def measure() -> Iterator[Measurement]:
    """Yield CPU per site and round, and peak memory, of each crowd; the smallest is the reference for memory."""
    first: float | None = None
    for sites in CROWDS:
        found = measured(f"serve({sites})", "crowd")
        each, peak = 1000 * found["per_site"], found["peak_mb"] / 1024
        yield Measurement(f"crowd.cpu.{sites}", each, 100.0, each / 100, 1.0, "at most", "CPU ms per site and round")
        yield Measurement(f"crowd.memory.{sites}", peak, 1.5, peak / 1.5, 1.0, "at most", "GB at its peak", dict(found))
        first = first or peak
        if sites != CROWDS[0]:
            yield Measurement("crowd.growth", peak, first, peak / first, 1.1, "at most", "GB at its peak")
