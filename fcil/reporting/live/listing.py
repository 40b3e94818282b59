"""The list of runs on the first page of `fcil watch`: method, progress, time left and last accuracy of each."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from fcil.core.errors import FcilError, one_line
from fcil.experiment.run import read_records
from fcil.experiment.summary import summarise
from fcil.reporting.live.discovery import progress_of
from fcil.reporting.page.html import Html, tag
from fcil.reporting.run_facts import RunFacts

COLUMNS = ("run", "method", "rounds", "time left", "last accuracy", "state")


def counted(number: int, what: str) -> str:
    """Return a number of things.

    >>> counted(1, "run"), counted(3, "run")
    ('1 run', '3 runs')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(42), duration(150), duration(8000)
    ('42 s', '2 min', '2 h 13 min')
    """
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min" if minutes else f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min"


def bare_facts(folder: Path) -> RunFacts | str:
    """Return the facts of a run without its side files, or why it cannot be read."""
    try:
        records, config = read_records(folder)
    except (FcilError, OSError) as error:
        return one_line(str(error))
    summary = summarise(records, config["method"]["name"], config["method"]["edition"], config["seed"])
    kind = "server" if records and not any(record.groups for record in records) else "simulation"
    return RunFacts(folder.name, kind, summary, config, tuple(records))  # type: ignore[arg-type]


def list_row(name: str, folder: Path, status: str) -> Html:
    """Return a run's row in the list."""
    link = tag("td", tag("a", name, href=f"/run/{quoted(name)}"))
    facts = bare_facts(folder)
    if isinstance(facts, str):
        return tag("tr", link, tag("td", tag("div", facts, class_="note"), colspan=str(len(COLUMNS) - 1)))
    planned, done, last = facts.planned_rounds, len(facts.records), facts.summary["last"]
    bar = [tag("progress", value=str(done), max=str(planned)), " "] if planned else []
    accuracy = ("-" if last is None else f"{last:.1f} %") if done else "no round has finished yet"
    cells = [
        tag("td", facts.label),
        tag("td", *bar, f"{done} of {planned}" if planned else str(done)),
        tag("td", _time_left(facts, progress_of(folder).finished)),
        tag("td", accuracy),
        tag("td", status.partition(", ")[2]),
    ]
    return tag("tr", link, *cells)


def _time_left(facts: RunFacts, finished: bool) -> str:
    """Return how long the rest of a run takes if its rounds take as long as those so far."""
    planned, done = facts.planned_rounds, len(facts.records)
    if finished or not done or planned is None or done >= planned:
        return "-"
    return f"about {duration(max(1.0, facts.summary['seconds'] / done * (planned - done)))}"


def quoted(name: str) -> str:
    """Return a run's name as a part of an address."""
    return quote(name, errors="surrogateescape")
