"""Runs with ImageNet pre-training: tables of their own, in results/pretrained and in REPRODUCTION.md.

Each folder results/pretrained/PRESET holds the runs of `fcil compare PRESET --results results/pretrained/PRESET`, and a
folder per sweep, of `fcil compare PRESET --sweep KEY=... --results results/pretrained/PRESET/KEY`. They stand in no
table with runs from scratch, and the leaderboard does not rank them. `verdict.md` has the findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fcil.experiment.presets import preset_names, read_document
from fcil.experiment.result_file import read_kept
from fcil.experiment.summary import Summary
from fcil.reporting.compare.tables import compare, table_markdown

FOLDER, OURS = "pretrained", "analytic"
TITLE = "With ImageNet pre-training"
TEXT = (
    "All runs of this section begin with a network that was trained on ImageNet. That is another setting, not a fairer "
    "method, so they stand in no table with runs from scratch."
)
BOUNDS = ("finetune", "joint")  # the first row and the last one


def presets(results: Path) -> list[str]:
    """Return the presets with kept runs, by name."""
    return [name for name in sorted(preset_names()) if list((results / FOLDER / name).glob("*-*.json"))]


def runs_in(folder: Path) -> dict[str, dict[int, Summary]]:
    """Return the kept runs of a folder by label and seed, from the lower bound to the upper one."""
    runs: dict[str, dict[int, Summary]] = {}
    for path in folder.glob("*-*.json"):
        label, _, seed = path.stem.rpartition("-")
        runs.setdefault(label, {})[int(seed)] = read_kept(path).summary
    return {label: runs[label] for label in sorted(runs, key=_place)}


def _place(label: str) -> tuple[int, str]:
    return 2 * BOUNDS.index(label) - 1 if label in BOUNDS else 0, label


def section(results: Path) -> Iterator[str]:
    """Yield the parts of the section on REPRODUCTION.md."""
    found = presets(results)
    if not found:
        return
    yield f"## {TITLE}"
    yield TEXT
    verdict = results / FOLDER / "verdict.md"
    if verdict.is_file():
        yield verdict.read_text("utf-8").strip()
    for name in found:
        yield from tables(results, name)


def tables(results: Path, name: str) -> Iterator[str]:
    """Yield the parts on one preset: its description, its command, its table and those of its sweeps."""
    folder = results / FOLDER / name
    place = f"results/{FOLDER}/{name}"
    runs = runs_in(folder)
    yield f"### {name}"
    description = read_document(name)["description"]
    yield f"{description[0].upper()}{description[1:]}."
    yield _command(f"{name} --methods {','.join(runs)}", runs, place)
    yield table_markdown(compare(runs, OURS))
    for key in sorted({path.parent.name for path in folder.glob("*/*-*.json")}):
        swept = runs_in(folder / key)
        values = ",".join(dict.fromkeys(label.rpartition("=")[2] for label in swept))
        yield f"Values of `{key}`:"
        several = sorted({label.partition("=")[0].rpartition("-")[0] for label in swept} - {""})
        methods = f" --methods {','.join(several)}" if several else ""
        yield _command(f"{name} --sweep {key}={values}{methods}", swept, f"{place}/{key}")
        yield table_markdown(compare(swept))


def _command(words: str, runs: dict[str, dict[int, Summary]], place: str) -> str:
    seeds = ",".join(map(str, sorted({seed for by_seed in runs.values() for seed in by_seed})))
    return f"```\nfcil compare {words} \\\n    --seeds {seeds} --results {place}\n```"
