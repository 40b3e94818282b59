"""The contract suites: contracts for the members of every registry, in this package and in others.

A test file of another package holds its method to all of it with three lines:

    from fcil.testing import MethodContract

    class TestMine(MethodContract):
        method = "mine"

`NetworkContract`, `AggregatorContract`, `DatasetContract`, `LoggerContract` and `EngineContract` do the same for the
other kinds, with `network`, `aggregator`, `dataset`, `logger` and `engine` in the place of `method`.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError("fcil.testing needs pytest; install fcil with its extra `testing`, or pytest itself") from error

KINDS = ("aggregators", "contract", "datasets", "engines", "loggers", "networks", "robustness")
pytest.register_assert_rewrite(*(f"fcil.testing.{kind}" for kind in KINDS))  # so that a failure shows its values

from fcil.testing.aggregators import AggregatorContract  # noqa: E402
from fcil.testing.contract import MethodContract  # noqa: E402
from fcil.testing.datasets import DatasetContract  # noqa: E402
from fcil.testing.engines import EngineContract  # noqa: E402
from fcil.testing.loggers import LoggerContract  # noqa: E402
from fcil.testing.networks import NetworkContract  # noqa: E402
from fcil.testing.trial import CLASSES, Trial, blobs, trial  # noqa: E402

__all__ = [
    "CLASSES",
    "AggregatorContract",
    "DatasetContract",
    "EngineContract",
    "LoggerContract",
    "MethodContract",
    "NetworkContract",
    "Trial",
    "blobs",
    "trial",
]
