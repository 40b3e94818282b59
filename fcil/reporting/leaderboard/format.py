"""The leaderboard for readers: Markdown with links to the runs, rows for a terminal, a document for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fcil.reporting.compare.tables import Spread
from fcil.reporting.leaderboard.rank import CLEAR, Cell, Leaderboard, Standing
from fcil.reporting.tables import markdown


@dataclass(frozen=True)
class Marks:
    """How a form of the table shows the seeds of a cell, and that a method leads."""

    seeds: str
    leads: str


MARKDOWN = Marks("each of which links to its run", "Bold")
TERMINAL = Marks("their number in parentheses", "With a star")
ORIGINS = {"kept": "", "added": " (added)", "published": ", as published"}
NOTHING = "nothing"


def headings(board: Leaderboard) -> list[str]:
    """Return the columns of the table."""
    return ["method", *board.experiments, "ahead of", "uploaded besides the model"]


def name_of(row: Standing) -> str:
    """Return what a row is called: whose it is, if it is not one of the kept."""
    return f"{row.label}{ORIGINS[row.origin]}"


def lines_of(cell: Cell) -> list[str]:
    """Return what stands below an average: the rank, if there is one, and the cost of a run, unless it is published."""
    if cell.minutes is None:
        return []
    rank = [] if cell.rank is None else [f"rank {cell.rank} of {cell.others + 1}"]
    return [*rank, f"{cell.minutes:.1f} min", f"{megabytes(cell.bytes_up)} + {megabytes(cell.bytes_down)} MB"]


def average_of(cell: Cell) -> str:
    """Return the average with its spread, a star if it leads, and the number of seeds it is taken over."""
    star = " *" if cell.leads else ""
    return f"{cell.average} ({len(cell.seeds)}){star}" if cell.seeds else str(cell.average)


def ahead_of(row: Standing) -> str:
    """Return the share of comparisons in which a method is above the other, in percent."""
    return "" if row.ahead is None else f"{100 * row.ahead:.0f} %"


def sends_of(row: Standing) -> str:
    """Return what a row's participants upload besides the model."""
    return "" if row.origin == "published" else "; ".join(row.sends) or NOTHING


def megabytes(count: float | None) -> str:
    """Return bytes as megabytes.

    >>> megabytes(1_234_567), megabytes(45_678_901)
    ('1.2', '46')
    """
    amount = (count or 0) / 1e6
    return f"{amount:.0f}" if amount >= 10 else f"{amount:.1f}"


# --- Markdown -----------------------------------------------------------------------------------------------------


def board_markdown(board: Leaderboard) -> str:
    """Return the table and what it says, in Markdown; every cell links to its runs, by their seeds."""
    rows = [
        [
            name_of(row),
            *(_linked(row.cells[name]) if name in row.cells else "" for name in board.experiments),
            ahead_of(row),
            sends_of(row),
        ]
        for row in board.rows
    ]
    notes = "\n".join(f"- {sentence}" for sentence in notes_on(board, MARKDOWN))
    return f"{markdown(headings(board), rows)}\n\n{notes}"


def _linked(cell: Cell) -> str:
    average = f"**{cell.average}**" if cell.leads else str(cell.average)
    links = " ".join(f"[{seed}]({quote(place)})" for seed, place in sorted(cell.places.items()))
    return "<br>".join(filter(None, [average, *lines_of(cell), links]))


# --- what has to be known to read it ------------------------------------------------------------------------------


def notes_on(board: Leaderboard, marks: Marks) -> Iterator[str]:
    """Yield the sentences that belong below the table."""
    yield (
        f"Average accuracy over the tasks (%), mean ± standard deviation over the seeds, {marks.seeds}. Megabytes "
        "(up + down, of all clients together) are means per run; minutes are those of the quickest run, and depend "
        "on the machine and on what ran beside it: less than a factor of two means little."
    )
    yield from _on_ranks(board)
    yield (
        f"{marks.leads}: the first, and all that are not clearly below it (paired t-test over these seeds, "
        f"p ≥ {CLEAR}). Ahead of: of all comparisons with another ranked method on the same experiment, the share in "
        "which a method has the higher average; rows are in this order."
    )
    yield (
        "Uploaded: with every method participants send their model, the number of samples it was trained on and the "
        "ids of new classes; the last column has what they send besides."
    )
    if board.machines:
        yield f"The kept runs were played on {'; '.join(board.machines)}."
    yield from _on_rows(board)


def _on_ranks(board: Leaderboard) -> Iterator[str]:
    ranked = {name: ", ".join(map(str, seeds)) for name, seeds in board.seeds.items() if seeds}
    alike = set(ranked.values())
    which = alike.pop() if len(alike) == 1 else "; ".join(f"{name}: {seeds}" for name, seeds in ranked.items())
    yield (
        "Ranks compare the means over the seeds that more than half of the methods have, of those with several seeds "
        f"if there are any ({which or 'none'}). A method without one of them has no rank; means that print alike share "
        "one. Bounds (`joint`, which keeps all data) and variants of a method (its ablations) are not ranked."
    )
    if any(row.origin == "added" for row in board.rows):
        yield "An added row has the rank that it would have among the kept ones, which keep theirs."


def _on_rows(board: Leaderboard) -> Iterator[str]:
    lacking: dict[tuple[str, str], list[str]] = {}  # by experiment and seeds: the rows without these
    for row in board.rows:
        for name, cell in row.cells.items():
            missing = sorted(set(board.seeds[name]) - set(cell.seeds))
            if row.contends and missing:
                lacking.setdefault((name, ", ".join(map(str, missing))), []).append(name_of(row))
    for (name, seeds), rows in sorted(lacking.items(), key=lambda each: board.experiments.index(each[0][0])):
        yield f"Without a rank on {name}, for lack of seed {seeds}: {', '.join(rows)}."
    for row in board.rows:
        for name, cell in row.cells.items():
            if cell.failures:
                yield f"{name_of(row)} on {name}: failures of clients in its runs: {cell.failures}."


# --- for scripts --------------------------------------------------------------------------------------------------


def board_document(board: Leaderboard) -> dict[str, Any]:
    """Return the table as plain JSON values, in full precision."""
    return {
        "experiments": [{"name": name, "ranked_seeds": list(seeds)} for name, seeds in board.seeds.items()],
        "methods": [
            {
                "label": row.label,
                "origin": row.origin,
                "contends": row.contends,
                "variant_of": row.kin or None,
                "ahead": row.ahead,
                "sends": list(row.sends),
                "results": {name: _document(cell) for name, cell in row.cells.items()},
            }
            for row in board.rows
        ],
        "machines": list(board.machines),
    }


def _document(cell: Cell) -> dict[str, Any]:
    spread: Spread = cell.average
    return {
        "average": spread.mean,
        "deviation": spread.deviation,
        "averages": {str(seed): cell.averages[seed] for seed in cell.seeds},
        "runs": {str(seed): cell.places[seed] for seed in cell.seeds},
        "rank": cell.rank,
        "ranked_methods": cell.others + 1 if cell.rank else None,
        "leads": cell.leads,
        "minutes": cell.minutes,
        "bytes_up": cell.bytes_up,
        "bytes_down": cell.bytes_down,
        "failures": cell.failures,
    }
