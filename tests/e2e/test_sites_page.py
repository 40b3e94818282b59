"""A server's page in a real browser: sites as rows, live, with 3 and with 40 of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.pages import CHROMIUM, FLAGS, serving
from support.records import record
from support.served import served

from fcil.core import pulse
from fcil.core.stopwatch import Stopwatch
from fcil.deployment.server.live_status import LiveStatus
from fcil.deployment.server.run import ServedRun
from fcil.deployment.transport.base import ConnectedParty
from fcil.deployment.transport.model_exchange import PartyTraffic
from fcil.federation.round_record import BUSY, FailureRecord

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("plotly", reason="plotly is not installed")
pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
]
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PICTURES = os.environ.get("FCIL_PICTURES")  # a folder for screenshots, to look at


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield started
        started.close()


def begun(run: ServedRun, sites: int) -> LiveStatus:
    """Return the status of a server with so many sites, of which the last one is away."""
    live = LiveStatus.of(run.folder, run.federation, "glfc", 60, 0, 0)
    names = [f"hospital-{number:02}" for number in range(sites)]
    there = [ConnectedParty(number, name, "site", number == 1) for number, name in enumerate(names)]
    live.members = lambda: there
    live.look()
    live.members = lambda: there[:-1]
    live.look()
    return live


def play(run: ServedRun, live: LiveStatus, number: int, sites: int) -> None:
    """Add a round in which the last site is missing."""
    failure = FailureRecord(client=sites - 1, round=number + 1, stage="answer", reason="site x: it did not answer")
    busy = FailureRecord(client=0, round=number + 1, stage=BUSY, reason="site y: reading 7 of 9 new files")
    made = record(
        number,
        clients=sites,
        classes=3,
        participants=list(range(sites)),
        reports=sites - 1,
        failures=[failure] + [busy] * (number % 3 == 2),
        seconds=4.0 + number % 5,
        members={"site": list(range(sites))} if number == 0 else None,
        per_class={name: (6 + min(number, 30) // 5, 12) for name in ("a", "b", "c")[: 2 + (number > 5)]},
        began="2026-11-19T20:15:00+00:00",
        ended="2026-11-19T20:15:07+00:00",
    )
    run.state = replace(run.state, server=replace(run.state.server, round=number + 1))
    watch = Stopwatch()
    watch.seconds = {"train": 3.0, "aggregate": 0.5}
    run._store(made, watch)
    live.phase(f"round {number + 2}", ready=True)
    live.round(number + 1, {site: PartyTraffic(1.5 + site / 10, 250_000, 250_000, 144) for site in range(sites - 1)})


@pytest.mark.parametrize("sites", [3, 40])
def test_the_page_of_a_server_follows_its_sites(browser: Any, tmp_path: Path, sites: int) -> None:
    with served(tmp_path / "run", 60) as run, serving([tmp_path / "run"]) as server:
        (run.folder / pulse.FILE).touch()
        live = begun(run, sites)
        for number in range(24):
            play(run, live, number, sites)
        live.warn("hospital-02 is left out: it did not answer within 60 s")
        tab = browser.new_page(viewport={"width": 1100, "height": 900})
        wrong = list[str]()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto(server.url)
        frame = tab.frames[1]
        frame.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        rows = frame.locator("table.parties tbody tr")
        assert rows.count() == sites
        away, apart, first = (rows.nth(number).locator("td").all_inner_texts() for number in range(3))
        assert (away[1], away[3], away[4]) == ("not connected", "0", "24"), "what is wrong comes first"
        assert apart[:2] == ["hospital-01", "in quarantine"]
        assert first[:3] == ["hospital-00", "connected", "now"]
        assert first[3:] == ["24", "0", "0", "0", "144", "1.5", "0.25"], "a busy site has not failed"
        assert f"{sites - 1} of {sites} parties" in frame.locator("#run0-sites").inner_text()
        fits = "(at => at.scrollWidth - at.clientWidth)(document.querySelector('table.parties').parentElement)"
        assert frame.evaluate(fits) == 0
        assert "Round 25, since" in frame.locator("#run0-sites .note").first.inner_text()
        assert "did not answer within 60 s" in frame.locator("ul.warnings").inner_text()
        covered = frame.evaluate("document.querySelector('#run0-measured').data[1].y")
        assert (covered[0], covered[-1]) == (pytest.approx(66.7), 100)
        assert len(frame.evaluate("document.querySelector('#run0-rounds').data[0].y")) == 24
        assert frame.evaluate(WIDER) == 0
        if PICTURES:
            Path(PICTURES).mkdir(exist_ok=True)
            frame.locator("#run0-sites").screenshot(path=f"{PICTURES}/{sites}.png")

        # live: a site comes back, and the server ends
        live.members = lambda: [ConnectedParty(number, f"hospital-{number:02}", "site") for number in range(sites)]
        live.look()
        _until(lambda: "not connected" not in tab.frames[1].locator("table.parties").inner_text())
        (run.folder / pulse.FILE).unlink()
        _until(lambda: "Not running" in tab.frames[1].locator("#run0-sites .note").first.inner_text())
        assert wrong == []
        tab.close()


def _until(holds: Any) -> None:
    """Wait until something holds; the frame may just be replaced."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if holds():
                return
        except playwright.Error:
            pass
        time.sleep(0.2)
    raise AssertionError("the page does not follow")
