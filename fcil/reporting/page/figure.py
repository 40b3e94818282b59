"""Figures as plain dictionaries for plotly; the page's script adds the colours of its theme."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fcil.federation.round_record import RoundRecord
from fcil.reporting.page.html import Html, joined, tag

RIGHT, WRONG, TRUTH = "#009e73", "#d55e00", "#0b7bc1"
INK = "$ink"  # replaced by the theme's colour of text
SCALE = "Cividis"
MOST_WRITTEN = 12  # rows up to which the cells of a heat map have room for their figures
Trace = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """Traces and layout of a plot, and its height in pixels."""

    traces: Sequence[Trace]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 340
    frames: Sequence[Mapping[str, Any]] = ()  # other values of the first trace, for a choice above the plot


def plot(key: str, said: str, figure: Figure) -> Html:
    """Return the place of a figure and its data; `said` describes it to screen readers."""
    content = {"data": list(figure.traces), "layout": dict(figure.layout), "frames": list(figure.frames)}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    place = tag("div", class_="plot", id=key, role="img", aria_label=said, style=f"height:{figure.height}px")
    data = Html(f'<script type="application/json" data-for="{key}">{text}</script>')
    return joined([place, data])


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return the layout of a plot with two named axes."""
    further = {key: value for key, value in more.items() if key not in ("xaxis", "yaxis")}
    return {
        "xaxis": {"title": {"text": x}, **more.get("xaxis", {})},
        "yaxis": {"title": {"text": y}, **more.get("yaxis", {})},
        **further,
    }


def cells(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return the layout of a heat map, which needs no grid: its cells are one."""
    sides = {side: {"showgrid": False, **more.get(side, {})} for side in ("xaxis", "yaxis")}
    return axes(x, y, **{**more, **sides})


def task_lines(records: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """Return a thin line before the first round of each task but the first, over rounds that count from 1."""
    starts = [record.round - 0.5 for before, record in pairwise(records) if record.task != before.task]
    line = {"color": INK, "width": 1, "dash": "dot"}
    return [
        {"type": "line", "x0": start, "x1": start, "y0": 0, "y1": 1, "yref": "paper", "line": line} for start in starts
    ]


def over_rounds(records: Sequence[RoundRecord], y: str, **more: Any) -> dict[str, Any]:
    """Return the layout of a plot over all rounds, with a line where each task begins."""
    span = [0.5, len(records) + 0.5]
    ticks: dict[str, Any] = {"dtick": 1} if len(records) <= 12 else {"tickformat": "d"}
    return axes("round", y, shapes=task_lines(records), xaxis={"range": span, **ticks}, **more)


def rounds_of(records: Sequence[RoundRecord]) -> list[int]:
    """Return the numbers of rounds as people count them."""
    return [record.round for record in records]


def row_height(rows: int, most: int = 900) -> int:
    """Return the height of a plot with so many rows."""
    return min(most, 140 + max(rows, 4) * 20)
