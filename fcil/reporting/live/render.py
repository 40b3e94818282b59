"""The page on some runs that is served: the one place that knows who writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fcil.reporting.load_runs import gather
from fcil.reporting.page import page, plotly_code, title_of


class Render(Protocol):
    """Makes one HTML page of the runs in some folders, which loads nothing from anywhere; notes are on the others."""

    def __call__(self, folders: Sequence[Path], notes: Sequence[str]) -> str: ...


def render(folders: Sequence[Path], notes: Sequence[str]) -> str:
    """Return the page of `fcil report`."""
    runs = gather(folders)
    return page(runs, title_of(runs), plotly_code(), notes)
