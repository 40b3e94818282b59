"""Pages of `fcil watch`: a list of runs, a frame around the report of each and of all, and their progress as JSON.

A report is the page that `fcil report` writes. The frame around it asks for the progress of the runs, and loads the
report again when there is more to show.
"""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from fcil.core.errors import FcilError, reason
from fcil.experiment.party_status import read_status
from fcil.reporting.live.discovery import RunProgress, find_runs, progress_of
from fcil.reporting.live.listing import COLUMNS, bare_facts, counted, list_row, quoted
from fcil.reporting.load_runs import load_runs
from fcil.reporting.page import page, plotly_code, title_of
from fcil.reporting.page.html import tag
from fcil.reporting.page.shell import style

EVERY = 2000  # milliseconds between two questions of a browser
ALL = "all runs"
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
MOST_PAGES = 8  # kept, each as it was last made

STYLE = """
body.framed { display: flex; flex-direction: column; height: 100vh; height: 100dvh }
body.framed { position: relative; overflow: hidden }
body.framed header { padding: .4rem 1rem; border-bottom: 1px solid var(--line); display: flex; flex-wrap: wrap; }
body.framed header { gap: 0 1.5rem; max-width: none; margin: 0; width: 100% }
header b, p, td:last-child { overflow-wrap: anywhere }
a { color: var(--accent) }
iframe { border: 0; flex: 1; width: 100% }
iframe.next { position: absolute; bottom: 0; height: 100%; visibility: hidden }
main.list { padding-top: 24px; padding-bottom: 24px }
main.list h1 { margin-bottom: 16px }
main.list section p { margin: 0 0 10px }
td .note { margin: 0 }
progress { width: 8em; height: .7em; accent-color: var(--accent); vertical-align: middle }
"""

SCRIPT = """
"use strict";
(() => {
  try {  // the theme that the reader has chosen on a report
    const theme = localStorage.getItem("fcil-theme");
    if (theme) document.documentElement.dataset.theme = theme;
  } catch { /* a page without storage */ }
  const { stamp, run, every } = JSON.parse(document.getElementById("facts").textContent);
  let frame = document.querySelector("iframe");
  const status = document.getElementById("status");
  let seen = stamp;
  const pause = (time) => new Promise((next) => setTimeout(next, time));
  const typing = () => Boolean(frame) && frame.contentDocument.activeElement?.tagName === "INPUT";

  // The next page is drawn behind the present one and takes its place when it is complete, so that nothing flickers.
  const reload = async () => {
    if (!frame) { location.reload(); return; }
    frame.contentWindow.dispatchEvent(new Event("pagehide"));  // it keeps what the reader has chosen
    const next = frame.cloneNode();
    next.classList.add("next");
    const loaded = new Promise((done) => next.addEventListener("load", done, { once: true }));
    frame.after(next);
    await loaded;
    const page = next.contentDocument;
    const drawn = () => !page.querySelector(".plot") || page.documentElement.dataset.ready === "yes";
    for (let turn = 0; turn < 300 && !drawn(); turn += 1) await pause(100);
    next.contentWindow.scrollTo(0, frame.contentWindow.scrollY);
    frame.remove();
    next.classList.remove("next");
    frame = next;
  };
  const look = async () => {
    try {
      const state = await (await fetch("/state", { cache: "no-store" })).json();
      const now = run === null ? state : state.runs[run];
      if (now === undefined) {
        status.textContent = "the run is no longer there";
      } else {
        const newer = now.stamp !== seen, waiting = newer && typing();
        status.textContent = now.status + (waiting ? "; shown when you leave the search" : "");
        if (newer && !waiting) { await reload(); seen = now.stamp; }
      }
    } catch {
      status.textContent = "nobody answers: fcil watch has ended, or cannot be reached";
    }
    setTimeout(look, every);
  };
  setTimeout(look, every);
})();
"""


class Render(Protocol):
    """Makes one HTML page of the runs in some folders; notes are on runs that it does not show."""

    def __call__(self, folders: Sequence[Path], notes: Sequence[str]) -> str: ...


def render(folders: Sequence[Path], notes: Sequence[str]) -> str:
    """Return the page of `fcil report`."""
    runs = load_runs(folders)
    return page(runs, title_of(runs), plotly_code(), notes)


class RunState(TypedDict):
    """The progress of one run, as a browser reads it."""

    rounds: int
    stamp: str
    status: str


class State(TypedDict):
    """The progress of all runs, as a browser reads it."""

    runs: dict[str, RunState]
    stamp: str
    status: str


class Pages:
    """The pages on the runs in some folders; a run is known by its name, so no path comes from a request."""

    def __init__(self, places: Sequence[Path], render: Render) -> None:
        self.places = places
        self._render = render
        self._made: dict[tuple[str, ...], tuple[str, str]] = {}  # names of runs -> stamp, page
        self._lock = threading.Lock()

    def answer(self, path: str) -> tuple[str, str] | None:
        """Return the type and the text of the page at a path, or none; pages are made on request."""
        runs = find_runs(self.places)
        if path == "/state":
            return "application/json", json.dumps(_state(runs))
        text = None
        if path == "/":
            text = self._frame(runs, next(iter(runs))) if self._is_alone(runs) else self._index(runs)
        elif path == "/all":
            text = self._frame(runs, None)
        elif path == "/page":
            text = self._page(runs)
        elif path.startswith("/run/") and path.removeprefix("/run/") in runs:
            text = self._frame(runs, path.removeprefix("/run/"))
        elif path.startswith("/page/") and path.removeprefix("/page/") in runs:
            name = path.removeprefix("/page/")
            text = self._page({name: runs[name]})
        return None if text is None else ("text/html; charset=utf-8", text)

    def _is_alone(self, runs: dict[str, Path]) -> bool:
        """Say whether the one place that is watched is a run; in a folder of runs others may begin at any time."""
        return [*runs.values()] == [*self.places]

    def _index(self, runs: dict[str, Path]) -> str:
        state = _state(runs)
        body = [tag("h1", counted(len(runs), "run")), tag("p", tag("a", "All runs side by side", href="/all"))]
        if runs:
            head = tag("tr", *(tag("th", name, scope="col") for name in COLUMNS))
            rows = [list_row(name, folder, state["runs"][name]["status"]) for name, folder in runs.items()]
            body.append(tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"))
            body = [body[0], tag("section", *body[1:], tag("p", state["status"], class_="lead", id="status"))]
        else:
            body = [tag("h1", "No run yet"), tag("p", "A run is listed as soon as it has begun.", id="status")]
        return _document("Runs", tag("main", *body, class_="list"), state["stamp"], None)

    def _frame(self, runs: dict[str, Path], name: str | None) -> str:
        """Return the frame around the page on one run, or on all."""
        state = _state(runs)
        one = state if name is None else state["runs"][name]
        links = "" if self._is_alone(runs) else "<a href='/'>List of runs</a>"
        address = "/page" if name is None else f"/page/{quoted(name)}"
        body = (
            f"<header>{links}<b>{html.escape(name or ALL)}</b><span id='status'>{html.escape(one['status'])}</span>"
            f"</header><iframe src='{address}' title='{html.escape(name or ALL)}'></iframe>"
        )
        return _document(name or ALL, body, one["stamp"], name, framed=True)

    def _page(self, runs: dict[str, Path]) -> str:
        """Return the page on some runs, made anew if one has gone on; a run that cannot be shown gets a note."""
        key = tuple(runs)
        stamp = _state(runs)["stamp"]
        with self._lock:  # one at a time: several browsers would have the same page made several times
            made = self._made.pop(key, None)
            if made is None or made[0] != stamp:
                made = stamp, self._make(runs)
            self._made[key] = made
            while len(self._made) > MOST_PAGES:
                self._made.pop(next(iter(self._made)))
        return made[1]

    def _make(self, runs: dict[str, Path]) -> str:
        problems = {name: _problem(folder) for name, folder in runs.items()}
        shown = [folder for name, folder in runs.items() if problems[name] is None]
        notes = [f"{name}: {problem}" for name, problem in problems.items() if problem is not None]
        if not shown:
            return _notes(notes or ["there is no run yet"])
        try:
            return self._render(shown, notes)
        except Exception as error:  # a run may change under the reader's eyes; the next round brings the next page
            what = str(error) if isinstance(error, FcilError) else f"{type(error).__name__}: {reason(error)}"
            return _notes([*notes, f"the page cannot be made just now: {what}"])


def _state(runs: dict[str, Path]) -> State:
    """Return the progress of the runs, as browsers ask for it."""
    found = {name: progress_of(folder) for name, folder in runs.items()}
    finished = sum(one.finished for one in found.values())
    return {
        "runs": {name: _run_state(one) for name, one in found.items()},
        "stamp": " ".join([*found, *(one.stamp for one in found.values())]),
        "status": f"{finished} of {counted(len(found), 'run')} finished",
    }


def _run_state(one: RunProgress) -> RunState:
    status = "finished" if one.finished else "under way or stopped"
    return {"rounds": one.rounds, "stamp": one.stamp, "status": f"{counted(one.rounds, 'round')}, {status}"}


def _problem(folder: Path) -> str | None:
    """Say why there is no page on a run yet, if there is none."""
    facts = bare_facts(folder)
    if isinstance(facts, str):
        return facts
    return None if facts.records or read_status(folder) else "no round has finished yet"


def _notes(sentences: Sequence[str]) -> str:
    lines = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    head = f'<meta charset="utf-8">{VIEWPORT}<title>Note</title><style>{style()}{STYLE}</style>'
    return f"<!doctype html>\n{head}<main>{lines}</main>\n"


def _document(title: str, body: str, stamp: str, run: str | None, framed: bool = False) -> str:
    """Return a page of ours: its body, and the script that keeps it up to date."""
    facts = json.dumps({"stamp": stamp, "run": run, "every": EVERY}).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{VIEWPORT}<title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{style()}{STYLE}</style></head>'
        f"<body{' class=framed' if framed else ''}>{body}"
        f'<script type="application/json" id="facts">{facts}</script><script>{SCRIPT}</script></body></html>\n'
    )
