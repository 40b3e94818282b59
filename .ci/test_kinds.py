"""The contract suites that ship with fcil, each on one member of its kind; `.ci/dist` runs them on the wheel."""

from fcil.testing import (
    AggregatorContract,
    DatasetContract,
    EngineContract,
    LoggerContract,
    MethodContract,
    NetworkContract,
)


class TestMethod(MethodContract):
    """One that keeps exemplars."""

    method = "icarl"


class TestNetwork(NetworkContract):
    """The smallest."""

    network = "cnn"


class TestAggregator(AggregatorContract):
    """The default."""

    aggregator = "mean"


class TestDataset(DatasetContract):
    """The one that ships with fcil."""

    dataset = "digits"


class TestLogger(LoggerContract):
    """The one that needs no other package."""

    logger = "csv"


class TestEngine(EngineContract):
    """The default on several cores."""

    engine = "processes"
