"""The page around its sections: head, tiles, navigation, style, script, and plotly inside it."""

from __future__ import annotations

import base64
import gzip
import importlib.resources
from collections.abc import Callable, Sequence

from fcil.core.errors import ConfigError
from fcil.experiment.summary import Summary, privacy_in_words
from fcil.reporting.page.accuracy import accuracy_section
from fcil.reporting.page.classes import classes_section
from fcil.reporting.page.clients import clients_section
from fcil.reporting.page.costs import costs_section
from fcil.reporting.page.detection import detection_section
from fcil.reporting.page.html import Html, Section, joined, note, section, tag
from fcil.reporting.page.prototypes import prototypes_section
from fcil.reporting.page.proxy import proxy_section
from fcil.reporting.page.settings import settings_section
from fcil.reporting.page.sites import sites_section
from fcil.reporting.page.tasks import tasks_section
from fcil.reporting.run_facts import RunFacts
from fcil.reporting.tables import figure

FILE = "report.html"
BEGINNING = "<!doctype html>"  # by which a page is told from other files
MOST_RUNS = 12  # with sections of their own; more would make the page too large
PARTS: tuple[Callable[[RunFacts, str], Section], ...] = (
    tasks_section,
    classes_section,
    clients_section,
    detection_section,
    proxy_section,
    prototypes_section,
    costs_section,
    settings_section,
)
TITLES = {
    "sites": "Federation",
    "tasks": "Tasks",
    "classes": "Classes",
    "clients": "Clients",
    "detection": "Detection",
    "proxy": "Teachers",
    "prototypes": "Prototypes",
    "costs": "Costs",
    "settings": "Configuration",
}
# Nothing may be loaded: the content stays on the reader's machine.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(runs: Sequence[RunFacts], title: str, plotly: bytes, notes: Sequence[str] = ()) -> str:
    """Return the page on one run or on several; `plotly` is its code, and notes are on runs that it does not show."""
    detailed = runs[:MOST_RUNS]
    sections = [[part(run, f"run{number}") for part in _parts(run)] for number, run in enumerate(detailed)]
    bodies = [_run(run, sections[number], f"run{number}", hidden=number > 0) for number, run in enumerate(detailed)]
    parts = [*(tag("p", sentence, class_="note warning") for sentence in notes)]
    parts.append(section(accuracy_section(runs), "page"))
    if len(runs) > MOST_RUNS:
        parts.append(note(f"The sections below are about the first {MOST_RUNS} of {len(runs)} runs."))
    packed = base64.b64encode(gzip.compress(plotly, 9, mtime=0)).decode()
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("link", rel="icon", href="data:,"),
            tag("title", title),
            Html(f"<style>{style()}</style>"),
        ]
    )
    switch = tag("button", "Dark page", type="button", id="theme")
    body = joined(
        [
            tag("header", tag("div", tag("h1", title), switch, class_="bar"), _subtitle(runs)),
            _navigation(detailed, sections),
            tag("main", *parts, *bodies),
            tag("footer", "Written by fcil report. The page is complete in itself and loads nothing."),
            Html(f'<script type="text/plain" id="plotly">{packed}</script>'),
            Html(f"<script>{_resource('script.js')}</script>"),
        ]
    )
    return f'{BEGINNING}\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _parts(run: RunFacts) -> Sequence[Callable[[RunFacts, str], Section]]:
    """Return the sections of a run; only a server has sites."""
    return (sites_section, *PARTS) if run.kind == "server" else PARTS


def title_of(runs: Sequence[RunFacts]) -> str:
    """Return the title of a page on some runs."""
    if len(runs) == 1:
        return f"{runs[0].label}, {'real sites' if runs[0].kind == 'server' else runs[0].source}"
    methods = list(dict.fromkeys(run.summary["method"] for run in runs))
    named = ", ".join(methods[:4]) + (f" and {len(methods) - 4} more" if len(methods) > 4 else "")
    return f"{named} on {', '.join(dict.fromkeys(run.data for run in runs))}"


def plotly_code() -> bytes:
    """Return plotly's code for browsers, which its Python package brings, or say in a sentence how to get it."""
    try:
        return (importlib.resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ConfigError("plotly is not installed; install fcil with its extra `report`") from error


def style() -> str:
    """Return the page's style sheet, which the pages of `fcil watch` share."""
    return _resource("style.css")


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")


def _subtitle(runs: Sequence[RunFacts]) -> Html:
    description = runs[0].config.get("description") or ""
    told = f"{len(runs)} runs side by side" if len(runs) > 1 else ""
    return tag("p", ": ".join(part for part in (told, str(description)) if part), class_="lead")


def _navigation(runs: Sequence[RunFacts], sections: Sequence[Sequence[Section]]) -> Html:
    options = [tag("option", f"{run.label} - {run.name}", value=str(number)) for number, run in enumerate(runs)]
    choice = [tag("select", *options, id="run", aria_label="run")] if len(runs) > 1 else []
    links = [_links(found, f"run{number}", hidden=number > 0) for number, found in enumerate(sections)]
    return tag("nav", tag("div", *choice, *links, class_="inner"), aria_label="sections")


def _links(sections: Sequence[Section], prefix: str, hidden: bool) -> Html:
    """Return links to the sections of a run that have something to show."""
    places = {"page-accuracy": "Accuracy"}
    places |= {f"{prefix}-{part.key}": TITLES[part.key] for part in sections if not part.absent}
    links = [tag("a", title, href=f"#{key}") for key, title in places.items()]
    return tag("div", *links, class_="links", hidden=hidden)


def _run(run: RunFacts, parts: Sequence[Section], prefix: str, hidden: bool) -> Html:
    """Return all sections on one run, after its figures at a glance; absent ones are notes at the end."""
    warnings = [*run.summary.get("warnings", []), *(f"{sentence}; the report goes without it" for sentence in run.lost)]
    said = [tag("p", f"{sentence[:1].upper()}{sentence[1:]}", class_="note warning") for sentence in warnings]
    if run.is_under_way:
        said.insert(0, note(f"{len(run.records)} of {run.planned_rounds} rounds are done; more may follow."))
    said += _guarantee(run)
    shown = [section(part, prefix) for part in parts if not part.absent]
    absent = [joined([tag("h3", part.title), part.body]) for part in parts if part.absent]
    if absent:
        shown.append(tag("section", tag("h2", "Not in this run"), *absent, id=f"{prefix}-absent"))
    return tag("div", _tiles(run), *said, *shown, class_="run", hidden=hidden)


def _guarantee(run: RunFacts) -> list[Html]:
    """Return the run's differential privacy in words, if it has any."""
    words = privacy_in_words(run.summary)
    if words is None:
        return []
    simulated = " The noise of a simulation follows from its seed: this is an experiment, not protection."
    return [note(f"Differential privacy: {words}.{simulated * (run.kind != 'server')}")]


def _rounds(run: RunFacts) -> str:
    if not run.records:
        return "training time"
    of_all = f" of {run.planned_rounds}" if run.is_under_way else ""
    return f"{len(run.records)}{of_all} rounds"


def _tiles(run: RunFacts) -> Html:
    summary = run.summary
    found = summary["detection"]
    kinds = {"simulation": "simulation", "server": "server of real sites", "kept": "kept result"}
    facts = [
        (run.label, kinds[run.kind] if run.kind == "server" else f"{kinds[run.kind]}, {run.source}"),
        (figure(summary["average"]), "average accuracy (%)"),
        (figure(summary["last"]), f"last accuracy (%){_round_of(summary)}"),
        (figure(summary["forgetting"]), "forgetting (points)"),
        (f"{found['hits']} / {found['misses']} / {found['false_alarms']}", "arrivals noticed / missed / false alarms"),
        (f"{summary['bytes_up'] / 1e6:,.0f} / {summary['bytes_down'] / 1e6:,.0f}", "MB up / down"),
        (f"{summary['seconds']:,.0f} s", _rounds(run)),
    ]
    if run.kind == "server":
        del facts[4]  # sites keep their alarms to themselves
    return tag(
        "div", *(tag("div", tag("b", value), tag("span", what), class_="tile") for value, what in facts), class_="tiles"
    )


def _round_of(summary: Summary) -> str:
    """Return which round an accuracy is of, where that is not the last one."""
    return f", after round {summary['last_round']}" if "last_round" in summary else ""
