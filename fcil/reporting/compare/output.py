"""The files of a comparison: its table in three formats, and its curves in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fcil.core.files import write_atomically
from fcil.experiment.summary import Summary
from fcil.reporting.compare.tables import (
    Comparison,
    Processors,
    compare,
    curves,
    processors_sentence,
    published_markdown,
    table_csv,
    table_latex,
    table_markdown,
)
from fcil.reporting.published import PublishedRow

FILES = ("table.md", "table.tex", "table.csv", "curves.png", "curves.svg")


def write_comparison(
    runs: dict[str, dict[int, Summary]],
    title: str,
    out: Path,
    ours: str | None,
    published: tuple[Mapping[str, PublishedRow], Sequence[str]] = ({}, ()),
    processors: Processors | None = None,
) -> Comparison:
    """Write table.md, table.tex, table.csv, curves.png and curves.svg, and return the comparison.

    The rows of `published`, by our labels, stand below ours in table.md, with the differences from their experiment.
    """
    comparison = compare(runs, ours, processors)
    beside = published_markdown(comparison, *published)
    lost = "".join(
        f"{label}, seed {seed}: {len(summary['failures'])} failures of clients, the first: "
        f"{summary['failures'][0]['reason']}\n\n"
        for label, by_seed in runs.items()
        for seed, summary in by_seed.items()
        if summary["failures"]
    )
    seeds = ", ".join(map(str, comparison.seeds))
    page = (
        f"# {title}\n\nAccuracy (%) over all classes seen so far, by the number of classes; mean over the seeds "
        f"{seeds}; Avg. with its standard deviation over seeds; p of a paired t-test on the averages, corrected by "
        f"Holm's method for the number of rows. {processors_sentence(comparison)}\n\n"
        f"{table_markdown(comparison)}\n\n{lost}{beside}![accuracy by classes seen](curves.svg)\n"
    )
    contents = (  # all of them before the first is written
        page.encode(),
        table_latex(comparison).encode(),
        table_csv(comparison).encode(),
        curves(comparison, "png"),
        curves(comparison, "svg"),
    )
    for name, content in zip(FILES, contents, strict=True):
        write_atomically(out / name, content)
    return comparison
