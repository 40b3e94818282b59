"""The report in a real browser: every figure, no request, search, themes, and a phone's width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command import fcil as command
from support.pages import CHROMIUM, FLAGS, SMALL, opened, ready, resumed, serving, small_run

import fcil

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("plotly", reason="plotly is not installed")
pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser for all
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
]
FIGURES = {
    "loss",
    "matrix",
    "forgetting",
    "bars",
    "confusion",
    "timeline",
    "entropy",
    "score",
    "teachers",
    "bytes",
    "seconds",
}
RESULTS = Path(__file__).parents[2] / "results"
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
EVIL = '</script><img src=x onerror="document.title=1">'
OPACITIES = (
    "document.querySelector('#run0-entropy').data.filter(one => one.mode == 'lines').map(one => one.opacity).sort()"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the runs of two methods."""
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "glfc", description=EVIL)
    small_run(folder / "finetune", method={"name": "finetune"})
    return folder


@pytest.fixture(scope="module")
def one(runs: Path) -> Path:
    path = runs / "page.html"
    ended = command("report", runs / "glfc", "--out", path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"report: {path}\n", "")
    return path


@pytest.fixture(scope="module")
def desk(browser: Any, one: Path) -> Iterator[Any]:
    """Return a tab with the page of one run; who changes it leaves it as it was, but for the last."""
    with opened(browser, one) as tab:
        yield tab


def drawn(tab: Any) -> set[str]:
    """Return which figures are there to be seen, by what follows the run in their names."""
    found: list[str] = tab.eval_on_selector_all(
        ".plot", "all => all.filter(one => one.offsetParent && one.querySelector('.main-svg')).map(one => one.id)"
    )
    return {name.partition("-")[2] for name in found}


def check_whole(tab: Any, theme: str) -> None:
    assert EVIL in tab.locator("header .lead").inner_text(), "what people write is text and never code"
    assert tab.title() == f"glfc, seed {SMALL['seed']}, digits"
    assert drawn(tab) == FIGURES | {"curves"}
    assert tab.evaluate(WIDER) == 0
    assert tab.evaluate("document.documentElement.dataset.theme") == theme
    assert tab.locator(".comparisons img").count() >= 6
    assert tab.eval_on_selector_all("img", "all => all.every(one => one.naturalWidth > 0)")
    assert tab.locator("pre").first.inner_text().startswith("fcil run")


def test_every_figure_is_drawn_and_nothing_runs_off_the_screen(desk: Any) -> None:
    check_whole(desk, "light")


def test_nothing_runs_off_the_screen_of_a_dark_phone(browser: Any, one: Path) -> None:
    with opened(browser, one, 390, "dark") as tab:
        check_whole(tab, "dark")


def test_a_class_can_be_searched_for(desk: Any) -> None:
    tab = desk
    shapes = "document.querySelector('#run0-confusion').layout.shapes.length"
    rows = tab.locator("#run0-class-table tbody tr:visible")
    assert rows.count() == 4
    tab.fill("input.find", "3")
    assert [rows.count(), rows.first.inner_text()[0]] == [1, "3"]
    assert tab.evaluate(shapes) == 2
    assert tab.evaluate("document.querySelector('#run0-bars').data[0].marker.opacity") == [0.15, 0.15, 0.15, 1]
    assert tab.locator(".found").inner_text() == "1 found"
    tab.fill("input.find", "no such class")
    assert [rows.count(), tab.evaluate(shapes)] == [0, 0]
    tab.fill("input.find", "")
    assert rows.count() == 4


def test_what_is_chosen_is_shown_and_outlasts_a_page_that_is_loaded_again(desk: Any) -> None:
    tab = desk
    colours = (
        "[getComputedStyle(document.body).backgroundColor, document.querySelector('#run0-entropy').layout.font.color]"
    )
    light = tab.evaluate(colours)
    tab.select_option("select.frame", label="after task 1")
    tab.select_option("select.client", label="client 1")
    tab.fill("input.find", "1")
    tab.locator("details").first.click()
    tab.click("#theme")
    ready(tab)
    for again in (False, True):
        if again:
            tab.reload()
            ready(tab)
        assert all(old != new for old, new in zip(light, tab.evaluate(colours), strict=True))
        assert tab.evaluate("document.querySelector('#run0-confusion').data[0].z.length") == 2
        assert tab.evaluate(OPACITIES) == [0.08, 0.08, 0.08, 1]
        assert tab.locator(".found").inner_text() == "1 found"
        assert tab.locator("details").first.evaluate("one => one.open")


def test_runs_side_by_side_are_shown_one_at_a_time(browser: Any, runs: Path) -> None:
    with opened(browser, fcil.report(runs, out=runs / "both.html")) as tab:
        assert tab.evaluate("document.querySelector('#accuracy-curves').data.length") == 2
        assert tab.locator(".run:visible").count() == tab.locator("nav .links:visible").count() == 1
        assert "finetune" in tab.locator(".run:visible .tile").first.inner_text()
        tab.select_option("#run", "1")
        ready(tab)
        assert "glfc" in tab.locator(".run:visible .tile").first.inner_text()
        assert drawn(tab) == FIGURES | {"curves"}
        assert tab.evaluate(WIDER) == 0
        tab.click("#theme")  # while the other run is hidden
        ready(tab)
        tab.select_option("#run", "0")
        ready(tab)
        inks = "['run0', 'run1'].map(run => document.querySelector(`#${run}-entropy`).layout.font.color)"
        assert len(set(tab.evaluate(inks))) == 1


def test_what_a_run_lacks_is_a_note(browser: Any, runs: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(runs / "finetune", tmp_path / "old"))
    for path in (*old.glob("confusion-*"), old / "timings.jsonl"):
        path.unlink()
    with opened(browser, fcil.report(old, out=tmp_path / "old.html"), 390) as tab:
        assert drawn(tab) == FIGURES - {"confusion", "score", "teachers", "seconds"} | {"curves"}
        assert tab.locator(".warning", has_text="the report goes without it").count() == 2
        assert tab.locator(".note:visible").count() >= 6
        assert tab.evaluate(WIDER) == 0


def test_many_names_get_room_above_the_figure_on_a_phone(browser: Any, tmp_path: Path) -> None:
    methods = sorted((RESULTS / "digits").glob("*-2021.json"))
    assert len(methods) > 10
    with opened(browser, fcil.report(*methods, out=tmp_path / "page.html"), 390) as tab:
        assert tab.evaluate("document.querySelector('#accuracy-curves')._fullLayout._size.h") > 200
        assert tab.evaluate(WIDER) == 0


def test_the_page_that_follows_a_run_takes_in_a_round_and_keeps_what_was_typed(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcil.reporting.live.pages.EVERY", 200)
    folder = small_run(tmp_path / "run", rounds=2)
    wrong: list[str] = []
    with serving([tmp_path]) as server:
        address = server.url
        context = browser.new_context(viewport={"width": 390, "height": 900}, color_scheme="dark", is_mobile=True)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on(
            "request", lambda asked: wrong.append(asked.url) if not asked.url.startswith((address, "data:")) else None
        )
        tab.goto(f"{address}all")
        inner = tab.frame_locator("iframe:not(.next)")
        inner.locator("html[data-ready=yes]").wait_for(timeout=30_000)
        assert inner.locator(".tile").last.inner_text().endswith("2 of 4 rounds")
        inner.locator("input.find").fill("1")
        resumed(folder)
        said = "1 of 1 run finished; shown when you leave the search"
        tab.locator("#status", has_text=said).wait_for(timeout=30_000)
        assert inner.locator(".tile").last.inner_text().endswith("2 of 4 rounds")
        inner.locator("h1").click()
        inner.locator(".tile", has_text="4 rounds", has_not_text="of 4").wait_for(timeout=30_000)
        assert inner.locator(".found").inner_text() == "1 found"
        assert (tab.evaluate(WIDER), tab.locator("iframe").count()) == (0, 1)
        tab.goto(address)
        assert tab.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert tab.evaluate("innerWidth") == 390
        context.close()
    assert wrong == []


def test_the_page_is_small(one: Path) -> None:
    """It holds plotly, compressed to less than half; the rest is small beside it."""
    assert one.stat().st_size < 2_200_000
