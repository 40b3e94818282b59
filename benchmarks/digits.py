"""The digits table: mean over seeds for each method, from runs that are made, continued or read.

    python benchmarks/digits.py [--out runs/digits] [--seeds 2021 2022 2023] [--set KEY.PATH=VALUE]...

Every run stands in its own directory OUT/NAME-SEED; finished ones are read, the others run. Prints a Markdown table:
accuracy after each task, average with the standard deviation over seeds, forgetting, and alarms summed over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from fcil.checkpoint import has_checkpoint
from fcil.config import load_config
from fcil.experiment import SUMMARY_FILE, Run
from fcil.results.tables import headings, markdown

ROWS = {
    "glfc": ["method.name=glfc"],
    "glfc w/o CGC": ["method.name=glfc", "method.compensation=false"],
    "icarl": ["method.name=icarl"],
    "finetune": ["method.name=finetune"],
}


def result(name: str, seed: int, settings: list[str], out: Path) -> dict[str, Any]:
    """Return the summary of one run, which is played first if it is not finished."""
    folder = out / f"{name.replace(' ', '-').replace('/', '')}-{seed}"
    if not (folder / SUMMARY_FILE).is_file():
        config = load_config("digits", [*settings, *ROWS[name], f"seed={seed}"])
        with Run.resume(folder) if has_checkpoint(folder) else Run.start(config, folder) as run:
            for _ in run.rounds():
                pass
            run.finish()
    summary: dict[str, Any] = json.loads((folder / SUMMARY_FILE).read_text("utf-8"))
    return summary


def table_row(name: str, summaries: list[dict[str, Any]]) -> list[str]:
    """Return the mean over seeds as cells of the table."""
    tasks = [statistics.mean(values) for values in zip(*(summary["accuracy"] for summary in summaries), strict=True)]
    averages = [summary["average"] for summary in summaries]
    spread = statistics.stdev(averages) if len(averages) > 1 else 0.0
    alarms = [sum(summary["detection"][key] for summary in summaries) for key in ("hits", "misses", "false_alarms")]
    return [
        name,
        *(f"{value:.1f}" for value in tasks),
        f"{statistics.mean(averages):.1f} ± {spread:.1f}",
        f"{statistics.mean(summary['forgetting'] for summary in summaries):.1f}",
        " / ".join(map(str, alarms)),
    ]


def main() -> None:
    """Make or read all runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[2021, 2022, 2023])
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY.PATH=VALUE")
    arguments = parser.parse_args()
    found = {name: [result(name, seed, arguments.settings, arguments.out) for seed in arguments.seeds] for name in ROWS}
    tasks = len(found["glfc"][0]["accuracy"])
    print(markdown(headings(tasks), [table_row(name, summaries) for name, summaries in found.items()]))


if __name__ == "__main__":
    main()
