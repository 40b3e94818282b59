"""The small federation that the tests share; it ships with the contract suite."""

from fcil.testing import CLASSES, Trial, blobs, trial

__all__ = ["CLASSES", "Trial", "blobs", "trial"]
