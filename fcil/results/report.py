"""report.md and curves.png: several runs of one scenario side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from fcil.results.summary import Summary
from fcil.results.tables import headings, markdown, row

REPORT_FILE, CURVES_FILE = "report.md", "curves.png"


def report_text(title: str, summaries: Sequence[Summary], folders: Sequence[Path]) -> str:
    """Return the comparison as a Markdown page that shows the curves stored next to it."""
    table = markdown(headings(len(summaries[0]["accuracy"])), [row(summary) for summary in summaries])
    details = [
        f"- `{summary['method']}`, preset `{summary['preset']}`, seed {summary['seed']}: {summary['seconds']:.0f} s, "
        f"{summary['bytes_up'] / 1e6:.1f} MB up, {summary['bytes_down'] / 1e6:.1f} MB down, "
        f"{len(summary['failures'])} failures; all files in `{folder.name}/`"
        for summary, folder in zip(summaries, folders, strict=True)
    ]
    parts = [
        f"# {title}",
        "Accuracy in percent over all classes seen so far, after each task.",
        table,
        f"![accuracy after each task]({CURVES_FILE})",
        *["\n".join(details)],
    ]
    return "\n\n".join(parts) + "\n"


def curves_png(summaries: Sequence[Summary]) -> bytes:
    """Return a picture of the accuracy after each task, one curve per run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (takes a second to import, so only when a picture is drawn)
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    figure = Figure(figsize=(6.4, 4.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for summary, marker in zip(summaries, "osD^v*Px" * len(summaries), strict=False):
        tasks = range(1, len(summary["accuracy"]) + 1)
        label = f"{summary['method']} (average {summary['average']:.1f})"
        axes.plot(tasks, summary["accuracy"], marker=marker, label=label)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all classes seen (%)", ylim=(0, 103))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
