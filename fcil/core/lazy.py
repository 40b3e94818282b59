"""Modules that are imported on first use, for optional and slow dependencies."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """A module that is imported when the first of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
