"""A picture of each client's classes: a row per client, a column per class, and how often each client is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil.data.scenario.holdings import ABSENT, HoldingsTable

NAMED = 40  # classes whose names fit below their columns
LONGEST = 18  # letters of a name
INK, PALE, ORANGE = "#333333", "#dddddd", "#d55e00"  # the last of Okabe and Ito's, which everybody can tell apart


def holdings_picture(ledger: HoldingsTable, names: Sequence[str], title: str) -> bytes:
    """Return the picture as PNG: bright to dark for few to many samples, white for none, grey for absent clients."""
    import matplotlib as mpl  # noqa: PLC0415 (takes a second to import, so only when a picture is drawn)
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    columns, rows = ledger.columns, len(ledger.clients)
    cells, absent = _cells(ledger)
    row_height = float(np.clip(9 / rows, 0.012, 0.3))
    column_width = 0.32 if len(columns) <= NAMED else max(0.07, 9 / len(columns))
    width, height = min(20.0, 3.6 + column_width * len(columns)), 2.4 + row_height * rows
    figure = Figure(figsize=(max(width, 7.0), max(height, 3.4)), dpi=110, layout="constrained")
    axes, side = figure.subplots(1, 2, sharey=True, width_ratios=(max(width - 2.0, 4.0), 1.0))
    colours = mpl.colormaps["cividis_r"].with_extremes(bad="white")
    shown = axes.imshow(
        np.ma.masked_equal(cells, 0),
        cmap=colours,
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        vmax=cells.max() or 1,
    )
    axes.imshow(
        np.ma.masked_equal(absent.astype(float), 0), cmap=mpl.colors.ListedColormap([PALE]), aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    _mark_tasks(axes, ledger)
    _name_columns(axes, columns, names)
    if rows <= 60:
        axes.hlines(np.arange(rows - 1) + 0.5, -0.5, len(columns) - 0.5, color="white", linewidth=0.8)
    numbers = [row.client for row in ledger.clients]
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**6) if rows / step <= 40)
    axes.set_yticks(range(0, rows, step), numbers[::step], fontsize=8)
    axes.set(ylabel="client")
    bar = figure.colorbar(shown, ax=[axes, side], location="bottom", shrink=0.4, aspect=30)
    bar.locator = MaxNLocator(integer=True)  # samples are counted
    bar.set_label("samples of the class", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    _show_drawn(side, ledger)
    if absent.any():
        grey = Patch(facecolor=PALE, edgecolor="none", label="not there")
        figure.legend(handles=[grey], loc="lower left", frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _cells(ledger: HoldingsTable) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the samples per client and class, and a mask of cells in whose task the client is absent."""
    cells = np.zeros((len(ledger.clients), len(ledger.columns)), dtype=np.int64)
    absent = np.zeros(cells.shape, dtype=bool)
    for row, client in enumerate(ledger.clients):
        for column, (task, label) in enumerate(ledger.columns):
            holding = client.holdings[task]
            cells[row, column] = holding.samples.get(label, 0)
            absent[row, column] = holding.group == ABSENT
    return cells, absent


def _mark_tasks(axes: Any, ledger: HoldingsTable) -> None:
    """Draw a line between tasks and, above them, their numbers and rounds; late classes get their round."""
    edge, centres, heads = 0, [], []
    for place, task in enumerate(ledger.tasks):
        size = len(task.classes) + len(task.late)
        centres.append(edge + size / 2 - 0.5)
        single = len(ledger.tasks) == 1 and task.first == task.last
        many = len(ledger.tasks) > 6
        rounds = f"rounds {task.first}-{task.last}" if task.last > task.first else f"round {task.first}"
        heads.append(rounds if single else (str(place + 1) if many else f"task {place + 1}\n{rounds}"))
        for offset, label in enumerate(task.late):
            column = edge + len(task.classes) + offset
            axes.axvspan(column - 0.5, column + 0.5, facecolor="none", edgecolor=ORANGE, linewidth=1.6, zorder=4)
            axes.annotate(
                f"late: round {task.late[label]}", (column, 0), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", va="bottom", rotation=90, fontsize=7, color=ORANGE, zorder=5,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            )  # fmt: skip
        edge += size
        if place + 1 < len(ledger.tasks):
            axes.axvline(edge - 0.5, color=INK, linewidth=1.0)
    top = axes.secondary_xaxis("top")
    top.set_xticks(centres, heads, fontsize=8)
    top.tick_params(length=0)
    if len(ledger.tasks) > 6:
        top.set_xlabel("task", fontsize=8)


def _name_columns(axes: Any, columns: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
    if len(columns) > NAMED:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(columns)} classes, in the order of their coming")
        return
    texts = [names[label] for _, label in columns]
    cut = [text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in texts]
    plain = [text.replace("$", r"\$") for text in cut]  # which would begin a formula
    axes.set_xticks(range(len(columns)), plain, rotation=90, fontsize=8)


def _show_drawn(side: Any, ledger: HoldingsTable) -> None:
    """Draw how often each client trains; in a single round, a dot for each participant."""
    drawn = [client.drawn for client in ledger.clients]
    if len(ledger.tasks) == 1 and ledger.tasks[0].first == ledger.tasks[0].last:
        training = [row for row, count in enumerate(drawn) if count]
        side.scatter([0] * len(training), training, s=min(30, 1500 / len(drawn)), color=INK)
        side.set_xticks([])
        side.set_title("trains", fontsize=8)
    else:
        side.barh(range(len(drawn)), drawn, color=INK, height=0.8)
        side.set_title("rounds drawn\nto train", fontsize=8)
        side.tick_params(axis="x", labelsize=8)
        side.xaxis.get_major_locator().set_params(integer=True)
    side.tick_params(axis="y", left=False, labelleft=False)
    for edge in ("top", "right", "bottom"):
        side.spines[edge].set_visible(False)
