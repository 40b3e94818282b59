"""Consortiums for attacks between real sites."""

from deployment.conftest import build, keyring

__all__ = ["build", "keyring"]
