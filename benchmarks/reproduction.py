"""REPRODUCTION.md, results/PRESET/README.md, tables of README and docs/, and the results that ship with fcil.

All of them are written from the runs in results/:

    python -m benchmarks.reproduction [--check]

REPRODUCTION.md has the leaderboard, results/opening.md, a section per experiment, one on pre-training
(benchmarks/pretrained.py) and results/elsewhere.md (figures that others measured). Each folder results/PRESET holds:
- one file per run, as written by `fcil compare PRESET --results results/PRESET`;
- optionally, one folder per sweep, as written by `fcil compare PRESET --sweep KEY=... --results results/PRESET/KEY`;
- optionally, a folder `with` of runs with other settings (benchmarks/ingredients.py);
- optionally, `optimisers.json`: how the optimiser of each method was chosen;
- optionally, `verdict.md`: the findings, which REPRODUCTION.md shows. results/NOTES.md discusses them at length.

With --check nothing is written, and the exit code is 1 if a page does not match the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks import ingredients, pretrained, versus
from fcil.experiment.config import load_config
from fcil.experiment.presets import read_document
from fcil.experiment.result_file import KeptResult, read_kept
from fcil.experiment.summary import Summary, average_of
from fcil.methods import methods
from fcil.reporting.compare.tables import Comparison, Row, Runs, compare, curves, processors_sentence, table_markdown
from fcil.reporting.leaderboard import shipped
from fcil.reporting.leaderboard.format import board_markdown
from fcil.reporting.leaderboard.load import experiments_in, folder_runs, load_leaderboard, split_of
from fcil.reporting.leaderboard.rank import Leaderboard
from fcil.reporting.published import published_row
from fcil.reporting.tables import markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, README = ROOT / "results", ROOT / "REPRODUCTION.md", ROOT / "README.md"
SHIPPED = ROOT / "fcil" / "reporting" / "leaderboard" / shipped.FILE
OWN = ROOT / "docs" / "mosaic.md"
ROWS = (
    *("finetune", "lwf", "ewc", "fedprox", "icarl", "bic", "podnet", "dde", "geodl", "ssil"),
    *("glfc-wo-cgc", "glfc-wo-crd", "glfc-wo-prs", "glfc", "joint"),
)
README_METHODS = ("finetune", "glfc", "dde", "mosaic", "joint")  # bounds, the paper, best other, ours
LEAD = (
    "All methods on all reduced experiments; an empty cell means no run. `fcil leaderboard` prints these tables, and "
    "adds runs of your own method: [docs/compare.md](docs/compare.md#the-leaderboard)."
)
PAPER = {  # the published experiment with all these methods that is closest to a reduced one
    "cifar100-lite": ("cifar100", 10),
    "cifar100-lite-t10": ("cifar100", 10),
    "cifar100-mid": ("cifar100", 10),
    "tiny-lite": ("tinyimagenet", 5),
}
ORDER_ALONE = (
    "Only the order can be compared: images, networks, numbers of tasks and rounds differ. The paper's averages are in "
    "[results/published](../published/README.md)."
)
TITLES = {"cifar100": "CIFAR-100", "tinyimagenet": "TinyImageNet"}

BOUNDS = ("finetune", "joint")
INGREDIENTS = "cifar100-lite"  # the experiment on which others are offered what Mosaic is made of
INGREDIENTS_TEXT = (
    "Gains of other methods from [Mosaic's ingredients](../../docs/mosaic.md#its-ingredients-for-other-methods), in "
    "points of the average, over the seeds that were run with and without."
)
DUEL, DUEL_PICTURE = ("glfc", "icarl"), "glfc-icarl.svg"  # when does GLFC pay?

Files = dict[Path, bytes]


def load(preset: str) -> tuple[Comparison, list[KeptResult]]:
    """Return the comparison of a preset's runs, from the lower bound to the upper one, and the runs."""
    runs, found = load_runs(preset)
    processors: dict[str, dict[int, str]] = {}
    for run in found:
        summary, processor = run.summary, run.machine.get("processor", "an unknown processor")
        processors.setdefault(summary["method"], {})[summary["seed"]] = processor
    return compare(runs, "glfc", processors), found


def load_runs(preset: str) -> tuple[dict[str, dict[int, Summary]], list[KeptResult]]:
    """Return a preset's runs by label and seed, from the lower bound to the upper one, and what is kept of them."""
    found = [read_kept(path) for path in sorted((RESULTS / preset).glob("*-*.json"))]
    labels = dict.fromkeys([*ROWS[:-1], *sorted(methods().keys() - set(ROWS)), ROWS[-1]])
    runs: dict[str, dict[int, Summary]] = {label: {} for label in labels}
    for run in found:
        runs[run.summary["method"]][run.summary["seed"]] = run.summary
    return runs, found


def sweeps(preset: str) -> list[str]:
    """Return the settings that a preset was swept over."""
    return sorted({path.parent.name for path in (RESULTS / preset).glob("*/*-*.json")})


def load_sweep(preset: str, key: str) -> dict[str, dict[int, Summary]]:
    """Return a sweep's runs by label and seed, its values in ascending order.

    Its files are called NAME=VALUE-SEED.json, and METHOD-NAME=VALUE-SEED.json where it has several methods.
    """
    runs: dict[str, dict[int, Summary]] = {}
    for path in (RESULTS / preset / key).glob("*-*.json"):
        summary = read_kept(path).summary
        runs.setdefault(path.stem.rpartition("-")[0], {})[summary["seed"]] = summary
    return {label: runs[label] for label in sorted(runs, key=value_of)}


def load_duels(preset: str, key: str) -> list[versus.Duel]:
    """Return GLFC against iCaRL at each value of a sweep over both; of any other sweep, nothing."""
    runs = load_sweep(preset, key)
    name = key.rpartition(".")[2]
    values = dict.fromkeys(label.partition("=")[2] for label in runs)
    found = []
    for value in values:
        first, second = (runs.get(f"{method}-{name}={value}", {}) for method in DUEL)
        seen = next((summary["classes_seen"] for summary in first.values()), [])
        found.append(versus.duel(shown(preset, key, value, seen), first, second) if seen else None)
    return [one for one in found if one is not None]


def shown(preset: str, key: str, value: str, seen: list[int]) -> str:
    """Return a value of a sweep as a reader wants it: a memory with its exemplars per class in the last task.

    `seen` are the classes after each task; those of the last one have no exemplars yet.
    """
    if key != "scenario.memory":
        return value
    fraction = load_config(preset).scenario.class_fraction
    held = sum(math.ceil(fraction * (after - before)) for before, after in pairwise([0, *seen[:-1]]))
    return f"{value} ({int(value) / held:.0f} per class)"


def value_of(label: str) -> tuple[float, str]:
    """Return the sort key of a sweep's row: numbers by value, then names."""
    value = label.partition("=")[2]
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value


def pages() -> Files:
    """Return every file that is generated from the figures."""
    files: Files = {}
    sections = []
    for preset in experiments_in(RESULTS):
        comparison, runs = load(preset)
        picture = RESULTS / preset / "curves.svg"
        files[picture] = curves(comparison, "svg")
        for key in sweeps(preset):
            if duels := load_duels(preset, key):
                files[RESULTS / preset / key / DUEL_PICTURE] = versus.picture(duels, key, DUEL)
        files[RESULTS / preset / "README.md"] = ("\n\n".join(experiment_page(preset, comparison, runs)) + "\n").encode()
        sections.append("\n\n".join(section(preset)))
    files[SHIPPED] = shipped.document(folder_runs(RESULTS))
    board = load_leaderboard(RESULTS)
    table = f"{LEAD}\n\n{board_markdown(board)}"
    opening, elsewhere = ((RESULTS / name).read_text("utf-8").strip() for name in ("opening.md", "elsewhere.md"))
    parts = [
        "# Reproduction",
        table,
        f"## About this page\n\n{opening}",
        *sections,
        *pretrained.section(RESULTS),
        elsewhere,
    ]
    files[PAGE] = ("\n\n".join(parts) + "\n").encode()
    files[README] = filled(README.read_text("utf-8"), "results", readme_markdown(board)).encode()
    files[OWN] = filled(OWN.read_text("utf-8"), "results", lead_markdown()).encode()
    return files


def filled(page: str, mark: str, table: str) -> str:
    """Return a page with a table between the two marks of that name, which it must have."""
    marks = re.compile(rf"(<!-- {mark}: begin -->\n).*?(<!-- {mark}: end -->)", re.S)
    if not marks.search(page):
        raise ValueError(f"a page that should have a table between the marks {mark}: begin and {mark}: end has none")
    return marks.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page)


def ingredients_markdown(preset: str = INGREDIENTS) -> str:
    """Return a table of the points that other methods gain from the ingredients of our own."""
    return ingredients.table(load_runs(preset)[0], ingredients.load(RESULTS / preset))


def lead_markdown(name: str = "mosaic", rival: str = "glfc") -> str:
    """Return how far our own method is above GLFC and above the best other, on every experiment that it was run on."""
    rows = []
    for preset in experiments_in(RESULTS):
        runs = load_runs(preset)[0]
        comparison = compare(runs, name)
        found = {row.label: row for row in comparison.rows}
        others = [row for row in comparison.rows if row.difference is not None and row.label not in (*BOUNDS, rival)]
        if name not in found or not others:
            continue
        several = [row for row in others if row.p_value is not None]
        best = min(several or others, key=lambda row: row.difference or 0.0)  # over the seeds that both have
        leads = [_lead(found[name], found.get(rival), ""), _lead(found[name], best, f" (`{best.label}`)")]
        ours = f"{found[name].average} ({len(found[name].seeds)})"
        upper = ingredients.load(RESULTS / preset).get(ingredients.EVERYTHING, {}).get(name, {})
        share = ingredients.way(runs["finetune"], runs[name], upper)
        bounds = [str(found[label].average) if label in found else "" for label in BOUNDS]
        bounds += [ingredients.average(upper), "" if share is None else f"{share:.0f} %"]
        rows.append([f"`{preset}`", ours, *leads, *bounds])
    columns = ["experiment", f"`{name}` (seeds)", f"above `{rival}`", "above the best other", *BOUNDS]
    return markdown([*columns, f"`joint` as `{name}`", "share of the gap closed"], rows)


def _lead(ours: Row, row: Row | None, note: str) -> str:
    """Return a difference over the seeds that both have, with its p-value where there is one."""
    if row is None or row.difference is None:
        return ""
    p_value = "" if row.p_value is None else ", p < 0.001" if row.p_value < 0.001 else f", p = {row.p_value:.3f}"
    return f"{row.difference:+.1f}{note}, seeds: {len({*ours.seeds} & {*row.seeds})}{p_value}"


def readme_markdown(board: Leaderboard) -> str:
    """Return the average accuracies of five methods on all experiments."""
    kept = {row.label: row for row in board.rows if row.origin == "kept"}
    experiments = experiments_in(RESULTS)
    rows = []
    for name in README_METHODS:
        cells = [kept[name].cells.get(experiment) for experiment in experiments]
        rows.append([f"`{name}`", *("" if cell is None else str(cell.average) for cell in cells)])
    return markdown(["method", *(f"`{experiment}`" for experiment in experiments)], rows)


def section(preset: str) -> Iterator[str]:
    """Yield the parts of an experiment on REPRODUCTION.md: its description, its curves and the findings."""
    yield f"## {preset}"
    yield f"{described(preset)} [All figures and runs](results/{preset}/README.md)."
    yield f"![accuracy by classes seen](results/{preset}/curves.svg)"
    verdict = RESULTS / preset / "verdict.md"
    if verdict.is_file():
        yield verdict.read_text("utf-8").strip()


def described(preset: str) -> str:
    """Return a preset's description as a sentence."""
    description = read_document(preset)["description"]
    return f"{description[0].upper()}{description[1:]}."


def experiment_page(preset: str, comparison: Comparison, runs: list[KeptResult]) -> Iterator[str]:
    """Yield the parts of an experiment's own page: command, table, curves, runs, sweeps and optimisers."""
    names = ",".join(row.label for row in comparison.rows)
    versions = ", ".join(sorted({f"torch {run.machine['torch']}" for run in runs}))
    minutes = sorted(run.summary["seconds"] / 60 for run in runs)
    yield f"# {preset}"
    yield f"{described(preset)} The findings are in [REPRODUCTION.md](../../REPRODUCTION.md#{preset})."
    yield (
        f"```\nfcil compare {preset} --methods {names} \\\n    --seeds {','.join(map(str, comparison.seeds))} "
        f"--results results/{preset}\n```"
    )
    yield (
        "Accuracy (%) after each task, by the number of classes seen, as means over the seeds. Avg. has its standard "
        f"deviation; *{comparison.ours} minus this* is the difference of the averages in points, and p is from a "
        f"paired t-test on the averages per seed, corrected by Holm's method for the number of rows. Split: "
        f"{split_of(preset)}. {len(runs)} runs with {versions}, {minutes[0]:.1f} to {minutes[-1]:.1f} minutes each. "
        f"{processors_sentence(comparison)}"
    )
    yield table_markdown(comparison)
    yield "![accuracy by classes seen](curves.svg)"
    yield f"## Runs\n\n{runs_markdown(comparison)}"
    if preset in PAPER:
        yield "## Compared with the paper\n\n" + compared_with_paper(load_runs(preset)[0], *PAPER[preset])
    for key in sweeps(preset):
        yield from sweep_section(preset, key)
    if preset == INGREDIENTS:
        yield f"## Ingredients of Mosaic\n\n{INGREDIENTS_TEXT}\n\n{ingredients_markdown()}"
    if (RESULTS / preset / "optimisers.json").is_file():
        yield optimisers_section(preset)


def runs_markdown(comparison: Comparison) -> str:
    """Return a table of links to the kept runs, by method and seed."""
    rows = [
        [row.label, *(f"[{seed}]({row.label}-{seed}.json)" if seed in row.seeds else "" for seed in comparison.seeds)]
        for row in comparison.rows
    ]
    return markdown(["method", *(f"seed {seed}" for seed in comparison.seeds)], rows)


def sweep_section(preset: str, key: str) -> Iterator[str]:
    """Yield the parts of a sweep: its title, how to print it and its table."""
    runs, duels = load_sweep(preset, key), load_duels(preset, key)
    values = ",".join(dict.fromkeys(label.partition("=")[2] for label in runs))
    seeds = ",".join(map(str, sorted({seed for by_seed in runs.values() for seed in by_seed})))
    several = f" --methods {','.join(DUEL)}" if duels else ""
    yield f"## Sweep over `{key}`"
    yield (
        f"```\nfcil compare {preset} --sweep {key}={values}{several} \\\n    --seeds {seeds} "
        f"--results results/{preset}/{key}\n```"
    )
    if not duels:
        yield table_markdown(compare(runs))
        return
    yield versus.table(duels, key, DUEL)
    yield f"![{' minus '.join(DUEL)} over {key}]({key}/{DUEL_PICTURE})"


def optimisers_section(preset: str) -> str:
    """Return a table of the optimisers tried for each method, with their accuracies and the best."""
    document = json.loads((RESULTS / preset / "optimisers.json").read_text("utf-8"))
    candidates: dict[str, str] = document["candidates"]
    rows = []
    for method, tried in document["accuracy"].items():
        averages = {name: statistics.mean(accuracy) for name, accuracy in tried.items()}
        cells = [f"{averages[name]:.1f}" if name in averages else "" for name in candidates]
        rows.append([method, *cells, max(averages, key=averages.__getitem__)])
    columns = ["method", *(f"{name}: {what}" for name, what in candidates.items()), "chosen"]
    return f"## Optimisers\n\n{document['text']}\n\n```\n{document['command']}\n```\n\n{markdown(columns, rows)}"


def compared_with_paper(runs: Runs, data: str, tasks: int) -> str:
    """Return our averages and ranks and the paper's ranks, for the rows that the paper has at full scale.

    Ours are over the seeds that all rows with several seeds share. A row with a single seed has no rank. The paper's
    averages are of another experiment, so they do not stand beside ours.
    """
    known = {label: paper for label in runs if runs[label] and (paper := published_row(data, tasks, label)) is not None}
    several = [label for label in known if len(runs[label]) > 1]
    seeds = sorted(set[int].intersection(*(set(runs[label]) for label in several))) if several else []
    ours = {
        label: statistics.mean(average_of(runs[label][seed]) for seed in (seeds if label in several else runs[label]))
        for label in known
    }
    ranks = {label: str(place) for place, label in enumerate(sorted(several, key=lambda label: -ours[label]), 1)}
    rows = [
        [label, f"{ours[label]:.1f}", ranks.get(label, "one seed"), str(place)]
        for place, label in enumerate(sorted(known, key=lambda label: -known[label].average), 1)
    ]
    scale = f"paper's rank ({TITLES[data]}, T = {tasks}, full scale)"
    columns = ["method", f"our average, seeds {', '.join(map(str, seeds))}", "our rank", scale]
    return f"{ORDER_ALONE}\n\n{markdown(columns, rows)}"


def is_current(path: Path, content: bytes, check: bool) -> bool:
    """Say whether a file is up to date; pictures vary with fonts, so a check only asks whether they exist."""
    if not path.is_file():
        return False
    return (check and path.suffix == ".svg") or path.read_bytes() == content


def main() -> int:
    """Write the pages, or with --check say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check = parser.parse_args().check
    files = pages()
    stale = [path for path, content in files.items() if not is_current(path, content, check)]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} does not match results/; run python -m benchmarks.reproduction")
        else:
            path.write_bytes(files[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
