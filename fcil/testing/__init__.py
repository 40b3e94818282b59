"""The contract suite: what every method must do, for the methods of this package and for those of others.

A test file of another package holds its method to all of it with three lines:

    from fcil.testing import MethodContract

    class TestMine(MethodContract):
        method = "mine"
"""

try:
    import pytest
except ImportError as error:
    raise ImportError("fcil.testing needs pytest; install fcil with its extra `testing`, or pytest itself") from error

pytest.register_assert_rewrite("fcil.testing.contract", "fcil.testing.robustness")  # for whoever runs them, a diff

from fcil.testing.contract import MethodContract  # noqa: E402
from fcil.testing.trial import CLASSES, Trial, blobs, trial  # noqa: E402

__all__ = ["CLASSES", "MethodContract", "Trial", "blobs", "trial"]
