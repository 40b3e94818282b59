"""The page on some runs that is served: the one place that knows who writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fcil.gather import gather
from fcil.results.page import page, plotly_code


class Render(Protocol):
    """Makes one HTML page of the runs in some folders, which loads nothing from anywhere."""

    def __call__(self, folders: Sequence[Path]) -> str: ...


def render(folders: Sequence[Path]) -> str:
    """Return the page of `fcil report`."""
    return page(gather(folders), ", ".join(folder.name for folder in folders), plotly_code())
