"""The members of this package are held to the tests that fcil's own members have to pass."""

from __future__ import annotations

from typing import ClassVar

import torch
from fcil_example.quantile import Quantile, QuantileSettings

from fcil.core.messages import Report
from fcil.federation.server import FederationConfig
from fcil.testing import (
    AggregatorContract,
    DatasetContract,
    EngineContract,
    LoggerContract,
    MethodContract,
    NetworkContract,
)


class TestSoftmaxReplay(MethodContract):
    """The method."""

    method = "softmax-replay"


class TestMlp(NetworkContract):
    """The network."""

    network = "pooled"
    settings: ClassVar = {"width": 8, "pooled": {"depth": 3}}


class TestQuantile(AggregatorContract):
    """The aggregator."""

    aggregator = "quantile"
    settings: ClassVar = {"share": 0.4}


class TestBars(DatasetContract):
    """The data set."""

    dataset = "bars"
    settings: ClassVar = {"bars": {"per_class": 8}}


class TestJsonl(LoggerContract):
    """The logger."""

    logger = "jsonl"
    settings: ClassVar = {"file": "rounds.jsonl"}


class TestReversed(EngineContract):
    """The engine."""

    engine = "reversed"


def test_one_participant_far_away_does_not_move_the_median() -> None:
    """Of 1, 2 and 1,000 the median is 2."""
    gathering = Quantile(FederationConfig(), QuantileSettings()).gather({"w": torch.zeros(1)}, 0, ())
    for client, value in enumerate((1.0, 1000.0, 2.0)):
        gathering.add(client, Report({"w": torch.tensor([value])}, 1))
    assert gathering.result().model["w"].tolist() == [2.0]
