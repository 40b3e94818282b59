"""A small GLFC run whose report has every section, and how a page is opened in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fcil.experiment.config import parse_config
from fcil.experiment.run import Run
from fcil.reporting.live.pages import Pages, Render, render
from fcil.reporting.live.server import WatchServer

SMALL: dict[str, Any] = {
    "seed": 4,
    "data": {"source": "digits", "samples_per_class": 6},
    "scenario": {
        "tasks": [2, 2],
        "rounds_per_task": 2,
        "initial_clients": 3,
        "joiners": 1,
        "participants": 2,
        "memory": 4,
        "both_share": 0.5,
    },
    "model": {"width": 2},
    "train": {"epochs": 1, "learning_rate": 0.1, "milestones": []},
    "method": {"name": "glfc", "rebuild_evaluations": 10, "rebuild_restarts": 0, "perturb_steps": 2},
}
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def small_run(folder: Path, rounds: int | None = None, **changes: Any) -> Path:
    """Play a small run, or its first rounds, and return its directory."""
    with Run.start(parse_config({**SMALL, **changes}), folder) as run:
        for number, _ in enumerate(run.rounds(), 1):
            if number == rounds:
                return folder
        run.finish()
    return folder


def resumed(folder: Path) -> None:
    """Play the rest of a run."""
    with Run.resume(folder) as run:
        for _ in run.rounds():
            pass
        run.finish()


@contextmanager
def serving(places: Sequence[Path], made: Render = render, host: str = "127.0.0.1") -> Iterator[WatchServer]:
    """Serve the pages on the runs in some folders."""
    with WatchServer(Pages(places, made), host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def opened(browser: Any, path: Path, width: int = 1100, theme: str = "light") -> Iterator[Any]:
    """Open a page until all its figures are drawn; a console error or any request but for the page itself fails."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    tab, wrong = context.new_page(), list[str]()
    tab.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda asked: wrong.append(asked.url) if asked.url.split("#")[0] != path.as_uri() else None)
    tab.goto(path.as_uri())
    ready(tab)
    yield tab
    context.close()
    assert wrong == []


def ready(tab: Any) -> None:
    """Wait until all figures that are to be seen are drawn."""
    tab.wait_for_selector("html[data-ready=yes]", timeout=30_000)
