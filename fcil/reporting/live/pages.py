"""What is served: a list of runs, a frame around the page of each and of all, and how far they are, as JSON.

The page itself stays as `fcil report` writes it. The frame around it asks how far the runs are, and loads the page
again when there is more to show.
"""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

from fcil.core.errors import FcilError, one_line, reason
from fcil.experiment.run import read_summary
from fcil.reporting.live.discovery import Standing, find_runs, standing
from fcil.reporting.live.render import Render

EVERY = 2000  # milliseconds between two questions of a browser
ALL = "all runs"
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
MOST_PAGES = 8  # kept, each as it was last made

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; margin: 0 }
body { display: flex; flex-direction: column }
body.framed { height: 100vh; height: 100dvh; position: relative; overflow: hidden }
header { padding: .4rem 1rem; border-bottom: 1px solid #8884; display: flex; flex-wrap: wrap; gap: 0 1.5rem }
header b { overflow-wrap: anywhere }
main { padding: 0 1rem }
p, td:last-child { overflow-wrap: anywhere }
.list { overflow-x: auto }
iframe { border: 0; flex: 1; width: 100% }
iframe.next { position: absolute; bottom: 0; height: 100%; visibility: hidden }
table { border-collapse: collapse }
td, th { padding: .3rem 1.5rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8884 }
@media (max-width: 600px) { td, th { padding-right: .6rem } }
"""

SCRIPT = """
"use strict";
(() => {
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


class Entry(TypedDict):
    """What a browser is told of one run."""

    rounds: int
    stamp: str
    status: str


class State(TypedDict):
    """What a browser is told of all runs."""

    runs: dict[str, Entry]
    stamp: str
    status: str


class Pages:
    """The pages on the runs in some folders; a run is known by its name, and no path comes from outside."""

    def __init__(self, places: Sequence[Path], render: Render) -> None:
        self.places = places
        self._render = render
        self._made: dict[tuple[str, ...], tuple[str, str]] = {}  # names of runs -> stamp, page
        self._lock = threading.Lock()

    def answer(self, path: str) -> tuple[str, str] | None:
        """Return the type and the text of what is at a path, or none; pages are made when they are asked for."""
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
        rows = "".join(
            f'<tr><td><a href="/run/{_quoted(name)}">{html.escape(name)}</a></td>'
            f"<td>{html.escape(state['runs'][name]['status'])}</td><td>{html.escape(_told(folder))}</td></tr>"
            for name, folder in runs.items()
        )
        body = (
            f"<h1>{len(runs)} runs</h1><p><a href='/all'>All runs side by side</a></p><div class='list'><table>"
            f"<tr><th>run</th><th>state</th><th>last accuracy</th></tr>{rows}</table></div>"
            if runs
            else "<h1>No run yet</h1><p>A run is listed as soon as it has begun.</p>"
        )
        return _document("Runs", f"<main>{body}<p id='status'></p></main>", state["stamp"], None)

    def _frame(self, runs: dict[str, Path], name: str | None) -> str:
        """Return the frame around the page on one run, or on all."""
        state = _state(runs)
        one = state if name is None else state["runs"][name]
        links = "" if self._is_alone(runs) else "<a href='/'>List of runs</a>"
        address = "/page" if name is None else f"/page/{_quoted(name)}"
        body = (
            f"<header>{links}<b>{html.escape(name or ALL)}</b><span id='status'>{html.escape(one['status'])}</span>"
            f"</header><iframe src='{address}' title='{html.escape(name or ALL)}'></iframe>"
        )
        return _document(name or ALL, body, one["stamp"], name, framed=True)

    def _page(self, runs: dict[str, Path]) -> str:
        """Return the page on some runs, made anew if any of them has gone on; what cannot be shown gets a note."""
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
    """Return how far the runs are, as browsers ask for it."""
    found = {name: standing(folder) for name, folder in runs.items()}
    finished = sum(one.finished for one in found.values())
    return {
        "runs": {name: _entry(one) for name, one in found.items()},
        "stamp": " ".join([*found, *(one.stamp for one in found.values())]),
        "status": f"{finished} of {len(found)} runs finished",
    }


def _entry(one: Standing) -> Entry:
    status = "finished" if one.finished else "under way or stopped"
    rounds = f"{one.rounds} round{'' if one.rounds == 1 else 's'}"
    return {"rounds": one.rounds, "stamp": one.stamp, "status": f"{rounds}, {status}"}


def _problem(folder: Path) -> str | None:
    """Say why there is no page on a run yet, if there is none."""
    return _look(folder)[1]


def _told(folder: Path) -> str:
    """Return the last accuracy of a run, or why there is none."""
    last, problem = _look(folder)
    return problem or ("-" if last is None else f"{last:.1f} %")


def _look(folder: Path) -> tuple[float | None, str | None]:
    """Return the last accuracy of a run, and why there is no page on it, if there is none."""
    try:
        summary, _ = read_summary(folder)
    except (FcilError, OSError) as error:
        return None, one_line(str(error))
    return summary["last"], None if standing(folder).rounds else "no round has finished yet"


def _quoted(name: str) -> str:
    return quote(name, errors="surrogateescape")


def _notes(sentences: Sequence[str]) -> str:
    lines = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    head = f'<meta charset="utf-8">{VIEWPORT}<title>Note</title><style>{STYLE}</style>'
    return f"<!doctype html>\n{head}<main>{lines}</main>\n"


def _document(title: str, body: str, stamp: str, run: str | None, framed: bool = False) -> str:
    """Return a page of ours: its body, and the script that keeps it up to date."""
    facts = json.dumps({"stamp": stamp, "run": run, "every": EVERY}).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{VIEWPORT}<title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>'
        f"<body{' class=framed' if framed else ''}>{body}"
        f'<script type="application/json" id="facts">{facts}</script><script>{SCRIPT}</script></body></html>\n'
    )
