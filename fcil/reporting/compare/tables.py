"""Several systems over several seeds: the paper's table in three formats, and its curves."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fcil.experiment.summary import Summary, average_of
from fcil.methods import methods
from fcil.reporting.colours import MARKERS, looks
from fcil.reporting.curves import band
from fcil.reporting.published import PublishedRow
from fcil.reporting.significance import holm, p_cell, paired_p_value
from fcil.reporting.tables import figure, markdown

LEGEND_ROWS = 24  # that fit beside the curves
INSTRUCTION_SETS = "Equal seeds give other figures on other instruction sets."
Runs = Mapping[str, Mapping[int, Summary]]  # label of a row -> seed -> the run's figures
Processors = Mapping[str, Mapping[int, str]]  # label of a row -> seed -> the processor of the run


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; of a single seed there is no deviation."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values, at least one."""
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.deviation is None else f"{self.mean:.1f} ±{self.deviation:.1f}"


@dataclass(frozen=True)
class Row:
    """One system: accuracy after each task, its average, forgetting, and how it differs from the reference method."""

    label: str
    seeds: tuple[int, ...]
    classes: tuple[int, ...]  # seen after each task
    accuracy: tuple[Spread, ...]
    average: Spread
    forgetting: Spread | None  # of one task it is not defined
    difference: float | None  # ours minus this one's, in points of the average, over the seeds that both have
    p_value: float | None  # of a paired t-test on the averages, two-sided, corrected by Holm over all rows
    is_passed: bool = False  # a bound that another row's average is above: no bound, but a reference
    processors: tuple[str, ...] = ()  # on which its runs were made; several instruction sets differ in last bits


@dataclass(frozen=True)
class Comparison:
    """All rows of one experiment; `ours` is the label of the reference method."""

    rows: tuple[Row, ...]
    ours: str

    @property
    def classes(self) -> tuple[int, ...]:
        """Return the numbers of classes seen after the tasks of any row: rows may differ in their tasks."""
        return tuple(sorted({number for row in self.rows for number in row.classes}))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of any row; one with a failed run has fewer."""
        return tuple(sorted({seed for row in self.rows for seed in row.seeds}))


def compare(runs: Runs, ours: str | None = None, processors: Processors | None = None) -> Comparison:
    """Return the comparison of finished runs; `ours` is the first row unless named.

    P-values are corrected by Holm's method for the number of rows that are compared with `ours`.
    """
    present = {label: dict(by_seed) for label, by_seed in runs.items() if by_seed}
    if not present:
        raise ValueError("there is no finished run to compare")
    chosen = ours if ours in present else next(iter(present))
    rows = [_row(label, by_seed, present[chosen], label == chosen) for label, by_seed in present.items()]
    corrected = holm([row.p_value for row in rows])
    return Comparison(
        tuple(
            replace(
                row,
                p_value=p_value,
                is_passed=_is_passed(present, row.label),
                processors=tuple(sorted(set((processors or {}).get(row.label, {}).values()))),
            )
            for row, p_value in zip(rows, corrected, strict=True)
        ),
        chosen,
    )


def _is_passed(runs: Runs, label: str) -> bool:
    """Say whether a row is a bound, and another row's mean is above it over the seeds that both have."""
    bound = runs[label]
    method = methods().get(next(iter(bound.values())).get("method", ""))
    if method is None or not method.is_bound:
        return False
    pairs = [[(run, bound[seed]) for seed, run in other.items() if seed in bound] for other in runs.values()]
    return any(sum(average_of(run) - average_of(upper) for run, upper in pair) > 0 for pair in pairs)


def _row(label: str, runs: Mapping[int, Summary], ours: Mapping[int, Summary], is_ours: bool) -> Row:
    tasks = zip(*(summary["accuracy"] for summary in runs.values()), strict=True)
    common = sorted(runs.keys() & ours.keys())
    differences = [average_of(ours[seed]) - average_of(runs[seed]) for seed in common]
    held = bool(differences) and not is_ours
    forgotten = [value for run in runs.values() if (value := run["forgetting"]) is not None]
    return Row(
        label,
        tuple(sorted(runs)),
        tuple(next(iter(runs.values()))["classes_seen"]),
        tuple(Spread.of(values) for values in tasks),
        Spread.of([average_of(summary) for summary in runs.values()]),
        Spread.of(forgotten) if forgotten else None,
        statistics.mean(differences) if held else None,
        paired_p_value(differences) if held else None,
    )


def processors_sentence(comparison: Comparison) -> str:
    """Return on which processors the rows were run, and which rows mix them; empty where it is not known.

    For instance: Runs on x: a; on x and y, mixed within the row: b. Equal seeds give ...
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for row in comparison.rows:
        if row.processors:
            found.setdefault(row.processors, []).append(row.label)
    if len(found) == 1 and len(processors := next(iter(found))) == 1:
        return f"All runs on {processors[0]}."
    parts = [
        f"on {' and '.join(names)}{', mixed within the row' * (len(names) > 1)}: {', '.join(labels)}"
        for names, labels in sorted(found.items(), key=lambda each: len(each[0]))
    ]
    return f"Runs {'; '.join(parts)}. {INSTRUCTION_SETS}" if parts else ""


# --- tables -------------------------------------------------------------------------------------------------------


def _cells(row: Row, comparison: Comparison) -> list[str]:
    difference = "" if row.difference is None else f"{row.difference:+.1f}"
    p_value = p_cell(row.p_value)
    fewer = len(row.seeds) < len(comparison.seeds)
    label = f"{row.label} (reference)" if row.is_passed else row.label
    label += f" ({len(row.seeds)} of {len(comparison.seeds)} seeds)" if fewer else ""
    found = dict(zip(row.classes, row.accuracy, strict=True))
    accuracy = (f"{found[number].mean:.1f}" if number in found else "" for number in comparison.classes)
    forgotten = figure(row.forgetting.mean if row.forgetting else None)
    return [label, *accuracy, str(row.average), difference, p_value, forgotten]


def _columns(comparison: Comparison) -> list[str]:
    classes = (str(number) for number in comparison.classes)
    return ["method", *classes, "Avg.", f"{comparison.ours} minus this", "p (Holm)", "forgetting"]


def table_markdown(comparison: Comparison, only: Sequence[str] | None = None) -> str:
    """Return the table in Markdown: a column for each number of classes seen, the average and the difference.

    `only` names the columns of a shorter table, in its order.
    """
    columns = _columns(comparison)
    chosen = [columns.index(name) for name in only or columns]
    rows = [_cells(row, comparison) for row in comparison.rows]
    return markdown([columns[place] for place in chosen], [[cells[place] for place in chosen] for cells in rows])


def published_markdown(
    comparison: Comparison, published: Mapping[str, PublishedRow], differing: Sequence[str] = ()
) -> str:
    """Return the paper's rows for the systems of a comparison, with our average next to theirs; empty without any.

    `differing` names the differences from the published experiment.
    """
    known = [(row, published[row.label]) for row in comparison.rows if row.label in published]
    rows = [(row, paper) for row, paper in known if paper.classes == row.classes]
    if not rows:
        return ""
    classes = rows[0][0].classes
    cells = [
        [row.label, *(f"{cell:.1f}" for cell in paper.accuracy), f"{paper.average:.1f}", str(row.average)]
        for row, paper in rows
        if row.classes == classes
    ]
    columns = ["method", *map(str, classes), "mean", "our Avg."]
    parts = ["## As printed in the paper", markdown(columns, cells)]
    parts += [f"{row.label}: {paper.slip}" for row, paper in rows if paper.slip]
    parts += [f"Not as published: {'; '.join(differing)}."] if differing else []
    return "\n\n".join([*parts, ""])


def table_latex(comparison: Comparison) -> str:
    """Return the table as a LaTeX tabular; the best average is set in bold."""
    best = max(row.average.mean for row in comparison.rows)
    lines = [
        rf"\begin{{tabular}}{{l{'c' * len(comparison.classes)}|ccc}}",
        r"\hline",
        " & ".join(["Methods", *map(str, comparison.classes), "Avg.", r"$\Delta$", "$p$"]) + r" \\",
        r"\hline",
    ]
    for row in comparison.rows:
        cells = _cells(row, comparison)[:-1]
        average = len(comparison.classes) + 1
        cells[0] = _escaped(cells[0])
        cells[-1] = cells[-1].replace("<", "$<$")
        cells[average] = cells[average].replace("±", r"$\pm$ ")
        if row.average.mean == best:
            cells[average] = rf"\textbf{{{cells[average]}}}"
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, rf"\{letter}" if letter in "_%&#${}" else letter) for letter in text)


def table_csv(comparison: Comparison) -> str:
    """Return the table as CSV, every figure with its standard deviation, in full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = [*(f"classes_{number}" for number in comparison.classes), "average", "forgetting"]
    heads = [name for column in columns for name in (column, f"{column}_deviation")]
    writer.writerow(["method", "seeds", *heads, f"difference_to_{comparison.ours}", "p_value"])
    for row in comparison.rows:
        found = dict(zip(row.classes, row.accuracy, strict=True))
        spreads = [*(found.get(number) for number in comparison.classes), row.average, row.forgetting]
        pairs = [(None, None) if spread is None else (spread.mean, spread.deviation) for spread in spreads]
        figures: list[Any] = [value for pair in pairs for value in pair]
        seeds = " ".join(map(str, row.seeds))
        rounded = [None if value is None else round(value, 4) for value in (*figures, row.difference, row.p_value)]
        writer.writerow([row.label, seeds, *rounded])
    return buffer.getvalue()


def curves(comparison: Comparison, form: Literal["png", "svg"]) -> bytes:
    """Return a picture like the paper's: accuracy over the number of classes seen, a band of one deviation."""
    import matplotlib as mpl  # noqa: PLC0415 (takes a second to import, so only when a picture is drawn)
    from matplotlib.figure import Figure  # noqa: PLC0415

    worn = looks({row.label: row.label for row in comparison.rows})
    legends = {row.label: f"{row.label} ({row.average.mean:.1f})" for row in comparison.rows}
    columns = 1 + (len(legends) - 1) // LEGEND_ROWS
    width = 6.2 + columns * (0.6 + 0.065 * max(map(len, legends.values())))  # inches, with letters of 8 points
    figure = Figure(figsize=(width, 4.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for row in comparison.rows:
        means = [spread.mean for spread in row.accuracy]
        is_ours = row.label == comparison.ours
        colour = worn[row.label].colour
        style = {
            "color": colour,
            "marker": MARKERS[worn[row.label].marker],
            "linestyle": "--" if worn[row.label].dashed else "-",
            "markersize": 4,
            "zorder": 3 if is_ours else 2,
        }
        thickness = 2.2 if is_ours else 1.1
        axes.plot(row.classes, means, label=legends[row.label], linewidth=thickness, **style)  # type: ignore[arg-type]
        if row.average.deviation is not None:
            deviations = [spread.deviation or 0.0 for spread in row.accuracy]
            axes.fill_between(row.classes, *band(means, deviations), color=colour, alpha=0.08, linewidth=0)
    axes.set(xlabel="classes seen", ylabel="accuracy on all classes seen (%)", ylim=(0, None))
    axes.set_xticks(comparison.classes)
    axes.grid(alpha=0.3)
    # Beside the axes, since no corner of them is free of that many curves; the best first, as the curves lie.
    lines = sorted(zip(axes.get_lines(), comparison.rows, strict=True), key=lambda pair: -pair[1].average.mean)
    figure.legend(
        handles=[line for line, _ in lines],
        loc="outside right center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        title="method (average)",
        title_fontsize=8,
    )
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fcil"}):  # equal figures are equal files
        figure.savefig(buffer, format=form, metadata={"Software": None} if form == "png" else {"Date": None})
    return buffer.getvalue()
