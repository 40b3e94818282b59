"""The leaderboard for readers: small tables in Markdown or for a terminal, and a document for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fcil.reporting.compare.tables import INSTRUCTION_SETS, Spread
from fcil.reporting.leaderboard.rank import LEVEL, Cell, Leaderboard, MethodRow
from fcil.reporting.tables import markdown

ORIGINS = {"kept": "", "added": " (added)", "published": ", as published"}
NOTHING = "nothing"


@dataclass(frozen=True)
class Marks:
    """The form of an average in a table, and the word for the mark of leading methods."""

    average: Callable[[Cell], str]
    leads: str


@dataclass(frozen=True)
class BoardTable:
    """One of the leaderboard's tables, with the sentences that explain it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def name_of(row: MethodRow) -> str:
    """Return the name of a row, with its origin if it is not one of the kept."""
    return f"{row.label}{ORIGINS[row.origin]}"


def megabytes(count: float | None) -> str:
    """Return bytes as megabytes.

    >>> megabytes(1_234_567), megabytes(45_678_901)
    ('1.2', '46')
    """
    amount = (count or 0) / 1e6
    return f"{amount:.0f}" if amount >= 10 else f"{amount:.1f}"


def _in_markdown(cell: Cell) -> str:
    mean, _, deviation = str(cell.average).partition(" ")
    return " ".join(filter(None, [f"**{mean}**" if cell.leads else mean, deviation]))


def _in_terminal(cell: Cell) -> str:
    number = f" ({len(cell.seeds)})" if cell.seeds else ""
    return f"{cell.average}{number}{' *' if cell.leads else ''}"


MARKDOWN = Marks(_in_markdown, "Bold")
TERMINAL = Marks(_in_terminal, "A star")


# --- the tables ---------------------------------------------------------------------------------------------------


def tables_of(board: Leaderboard, marks: Marks) -> Iterator[BoardTable]:
    """Yield the tables of a leaderboard: averages and mean rank, minutes, megabytes, uploads."""
    columns = ("method", *board.experiments)
    ranks = {id(row): "" if row.mean_rank is None else f"{row.mean_rank:.1f}" for row in board.rows}
    averages = _grid(board, marks.average, lambda row: (ranks[id(row)],))
    yield BoardTable("Average accuracy", (*columns, "mean rank"), averages, tuple(_on_averages(board, marks)))
    if not any(row.origin != "published" for row in board.rows):
        return
    yield BoardTable("Minutes per run", columns, _grid(board, _minutes), tuple(_on_minutes(board)))
    note = "Sent by all clients together to the server and back (up+down), mean over the runs."
    yield BoardTable("Megabytes per run", columns, _grid(board, _traffic), (note,))
    yield BoardTable("Uploads", ("method", "uploaded besides the model"), _uploads(board), tuple(_on_uploads(board)))


def board_markdown(board: Leaderboard, level: int = 2) -> str:
    """Return the tables in Markdown; the first has no heading, the others have headings of the given level."""
    parts = []
    for place, table in enumerate(tables_of(board, MARKDOWN)):
        parts += [f"{'#' * level} {table.title}"] if place else []
        parts.append(markdown(table.columns, table.rows))
        parts.append("\n".join(f"- {sentence}" for sentence in table.notes))
    return "\n\n".join(parts)


def _grid(
    board: Leaderboard, shown: Callable[[Cell], str], more: Callable[[MethodRow], tuple[str, ...]] = lambda row: ()
) -> tuple[tuple[str, ...], ...]:
    """Return a line per row: its name, a cell per experiment (empty without a run), and further cells."""
    lines = []
    for row in board.rows:
        cells = tuple(shown(row.cells[name]) if name in row.cells else "" for name in board.experiments)
        if any(cells):
            reference = " (reference)" if board.passed(row) else ""
            lines.append((f"{name_of(row)}{reference}", *cells, *more(row)))
    return tuple(lines)


def _minutes(cell: Cell) -> str:
    return "" if cell.minutes is None else f"{cell.minutes:.1f}"


def _traffic(cell: Cell) -> str:
    return "" if cell.minutes is None else f"{megabytes(cell.bytes_up)}+{megabytes(cell.bytes_down)}"


def _uploads(board: Leaderboard) -> tuple[tuple[str, ...], ...]:
    """Return a line per upload, with the methods that have it; those without any come last."""
    by_upload: dict[str, list[str]] = {}
    for row in board.rows:
        if row.origin != "published":
            by_upload.setdefault("; ".join(row.sends) or NOTHING, []).append(name_of(row))
    ordered = sorted(by_upload.items(), key=lambda each: each[0] == NOTHING)
    return tuple((", ".join(names), upload) for upload, names in ordered)


# --- the sentences below them -------------------------------------------------------------------------------------


def _on_averages(board: Leaderboard, marks: Marks) -> Iterator[str]:
    number = "; the number of seeds in parentheses" if marks is TERMINAL else ""
    yield f"Average accuracy over the tasks (%), mean and standard deviation over the seeds{number}."
    yield (
        f"{marks.leads} marks the best method and those shown to be level with it: the 95 % interval of the "
        f"difference, paired by ranked seeds, contains zero and ends within {LEVEL:g} points."
    )
    yield from _on_splits(board)
    ranked = {name: ", ".join(map(str, seeds)) for name, seeds in board.seeds.items() if seeds}
    alike = set(ranked.values())
    which = alike.pop() if len(alike) == 1 else "; ".join(f"{name}: {seeds}" for name, seeds in ranked.items())
    yield (
        f"Ranks use the seeds shared by most methods ({which or 'none'}). A method that lacks one of them has no rank "
        "there. Bounds (`joint`, which keeps all data) and variants of a method (ablations) are not ranked."
    )
    yield "Mean rank: over the experiments on which most methods have a rank."
    if any(row.origin == "added" for row in board.rows):
        yield "An added row has the rank that it would have among the kept ones, which keep theirs."
    yield from _on_machines(board)
    yield from _on_rows(board)


def _on_splits(board: Leaderboard) -> Iterator[str]:
    """Yield who holds the samples of a class, with the experiments of each kind."""
    found: dict[str, list[str]] = {}
    for name, split in board.splits.items():
        found.setdefault(split, []).append(name)
    kinds = "; ".join(f"{', '.join(names)}: {split}" for split, names in found.items())
    if kinds:
        yield f"Split. {kinds}."


def _on_machines(board: Leaderboard) -> Iterator[str]:
    """Yield the processors of the kept runs, and the cells whose runs mix them."""
    if board.machines:
        yield f"Kept runs: {'; '.join(board.machines)}."
    mixed = [
        f"{name_of(row)} on {name}" for row in board.rows for name, cell in row.cells.items() if len(cell.machines) > 1
    ]
    if mixed:
        yield f"Cells that mix them: {', '.join(mixed)}. {INSTRUCTION_SETS}"


def _on_rows(board: Leaderboard) -> Iterator[str]:
    for row in board.rows:
        if passed := board.passed(row):
            yield f"{name_of(row)} is a reference and no bound where a method passes it: {', '.join(passed)}."
    for name, seeds in board.seeds.items():
        missing = [
            name_of(row)
            for row in board.rows
            if row.contends and name in row.cells and not set(seeds) <= set(row.cells[name].seeds)
        ]
        if missing:
            yield f"Not ranked on {name}, for lack of a seed: {', '.join(missing)}."
    for row in board.rows:
        for name, cell in row.cells.items():
            if cell.failures:
                yield f"{name_of(row)} on {name}: failures of clients in its runs: {cell.failures}."


def _on_minutes(board: Leaderboard) -> Iterator[str]:
    yield ("Of the quickest run. They depend on the machine and its load: less than a factor of two means little.")


def _on_uploads(board: Leaderboard) -> Iterator[str]:
    yield (
        "With every method, participants send their model, the number of samples it was trained on and the ids of new "
        "classes."
    )


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
                "mean_rank": row.mean_rank,
                "sends": list(row.sends),
                "passed_on": board.passed(row),
                "results": {name: _document(cell) for name, cell in row.cells.items()},
            }
            for row in board.rows
        ],
        "machines": list(board.machines),
        "splits": dict(board.splits),
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
        "machines": list(cell.machines),
    }
