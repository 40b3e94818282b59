"""The contract suite: what every method and every network must do, those of this package and those of others.

A test file of another package holds its method, or its network, to all of it with three lines:

    from fcil.testing import MethodContract, NetworkContract

    class TestMine(MethodContract):
        method = "mine"

    class TestMyNetwork(NetworkContract):
        network = "my-network"
"""

try:
    import pytest
except ImportError as error:
    raise ImportError("fcil.testing needs pytest; install fcil with its extra `testing`, or pytest itself") from error

CONTRACTS = ("fcil.testing.contract", "fcil.testing.networks", "fcil.testing.robustness")
pytest.register_assert_rewrite(*CONTRACTS)  # for whoever runs them, a diff

from fcil.testing.contract import MethodContract  # noqa: E402
from fcil.testing.networks import NetworkContract  # noqa: E402
from fcil.testing.trial import CLASSES, Trial, blobs, trial  # noqa: E402

__all__ = ["CLASSES", "MethodContract", "NetworkContract", "Trial", "blobs", "trial"]
