"""Reading and showing runs: `fcil.load_run`, `fcil.report` and `fcil.figures`."""

from __future__ import annotations

import os
from pathlib import Path

from fcil.core.errors import ConfigError, system_words
from fcil.core.files import exists, write_atomically
from fcil.reporting.load_runs import load_runs, runs_in
from fcil.reporting.page import FILE, page, plotly_code, title_of
from fcil.reporting.page.shell import BEGINNING
from fcil.reporting.run_facts import RunFacts


def load_run(place: str | Path) -> RunFacts:
    """Return all facts of one run, finished or not, from its directory or from a kept result.

    Its figures are `summary`, its rounds `records`, its settings `config`; `confusions` has a confusion matrix for the
    last round of each task, and `timings` the seconds of each round.
    """
    found = load_runs(_paths((place,)))
    if len(found) > 1:
        raise ConfigError(f"{place} holds {len(found)} runs, {', '.join(run.name for run in found)}; name one of them")
    return found[0]


def report(*places: str | Path, out: str | Path | None = None, title: str | None = None) -> Path:
    """Write one HTML page on a run, or on several side by side, and return where it is.

    A place is a run's directory, a directory of runs, or a kept result. `out` is the page's file, by default
    report.html in the first place; it must be given if that place holds kept results. The page needs plotly, which the
    extra `report` installs.
    """
    code = plotly_code()
    paths = _paths(places)
    runs = load_runs(paths)
    path = _beside(paths[0], f"FILE, for instance {FILE}") / FILE if out is None else Path(out)
    if path.is_dir():
        raise ConfigError(f"out: {path}: it is a directory; name a file, for instance {path / FILE}")
    if not exists(path.parent):
        raise ConfigError(f"out: {path}: the directory {path.parent} does not exist; make it, or name another file")
    if path.is_file() and path.stat().st_size and not path.read_bytes().startswith(BEGINNING.encode()):
        raise ConfigError(f"out: {path}: it is there and is no report; name another file")
    write_atomically(path, page(runs, title or title_of(runs), code).encode(errors="replace"))
    return path


def figures(*places: str | Path, out: str | Path | None = None) -> list[Path]:
    """Draw the paper's figures from runs, as PNG and SVG for a page of two columns, and return where they are.

    Figure 2 shows prototypes; figures 3 and 4 show accuracy over classes, a panel for each number of tasks. `out` is
    their directory, by default `figures` in the first place; it must be given if that place holds kept results.
    """
    from fcil.reporting.paper_figures import paper_figures  # noqa: PLC0415 (matplotlib takes a second to import)

    paths = _paths(places)
    drawn = paper_figures(load_runs(paths))
    folder = _beside(paths[0], "DIR, for instance figures") / "figures" if out is None else Path(out)
    if exists(folder) and not folder.is_dir():
        raise ConfigError(f"out: {folder}: it is a file; name a directory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: {folder}: it cannot be made a directory ({system_words(error)})") from error
    for name, content in drawn.items():
        write_atomically(folder / name, content)
    return [folder / name for name in drawn]


def _beside(place: Path, example: str) -> Path:
    """Return the directory to write into; kept results are read only, so theirs is refused."""
    if any(path.is_file() for path in runs_in(place)):
        raise ConfigError(f"out: {place} holds kept results, and nothing is written beside them; name --out {example}")
    return place


def _paths(places: tuple[str | Path, ...]) -> list[Path]:
    if not places:
        raise ConfigError("no place is named; name the directory of a run, or several")
    for place in places:
        if not isinstance(place, (str, os.PathLike)):
            raise ConfigError(
                f"places: found {place!r}, should be paths, one by one: for a list of them, report(*paths)"
            )
    return [Path(place) for place in places]
