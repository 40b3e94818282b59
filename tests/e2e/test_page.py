"""The report in a real browser: every figure, no request, search, themes, and a phone's width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command import fcil
from support.pages import CHROMIUM, FLAGS, SMALL, opened, ready, small_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("plotly", reason="plotly is not installed")
pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser for all
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
]
FIGURES = {"matrix", "forgetting", "bars", "confusion", "timeline", "entropy", "score", "teachers", "bytes", "seconds"}
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


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
    small_run(folder / "glfc")
    small_run(folder / "finetune", method={"name": "finetune"})
    return folder


@pytest.fixture(scope="module")
def one(runs: Path) -> Path:
    return written(runs / "page.html", runs / "glfc")


def written(path: Path, *places: Path) -> Path:
    ended = fcil("report", *places, "--out", path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"report: {path}\n", "")
    return path


def drawn(tab: Any) -> set[str]:
    """Return which figures are there to be seen, by what follows the run in their names."""
    found: list[str] = tab.eval_on_selector_all(
        ".plot", "all => all.filter(one => one.offsetParent && one.querySelector('.main-svg')).map(one => one.id)"
    )
    return {name.partition("-")[2] for name in found}


@pytest.mark.parametrize(("width", "theme"), [(1100, "light"), (390, "dark")])
def test_every_figure_is_drawn_and_nothing_runs_off_the_screen(browser: Any, one: Path, width: int, theme: str) -> None:
    with opened(browser, one, width, theme) as tab:
        assert drawn(tab) == FIGURES | {"curves"}
        assert tab.evaluate(WIDER) == 0
        assert tab.evaluate("document.documentElement.dataset.theme") == theme
        assert tab.locator(".triptychs img").count() >= 6
        loaded = tab.eval_on_selector_all("img", "all => all.every(one => one.naturalWidth > 0)")
        assert loaded
        assert tab.locator("pre").first.inner_text().startswith("fcil run")


def test_the_switch_changes_the_page_and_its_figures(browser: Any, one: Path) -> None:
    ink = "document.querySelector('#run0-entropy').layout.font.color"
    with opened(browser, one) as tab:
        before = tab.evaluate("getComputedStyle(document.body).backgroundColor"), tab.evaluate(ink)
        tab.click("#theme")
        ready(tab)
        after = tab.evaluate("getComputedStyle(document.body).backgroundColor"), tab.evaluate(ink)
        assert all(old != new for old, new in zip(before, after, strict=True))
        tab.reload()
        ready(tab)
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_class_can_be_searched_for(browser: Any, one: Path) -> None:
    shapes = "document.querySelector('#run0-confusion').layout.shapes.length"
    with opened(browser, one) as tab:
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


def test_a_task_and_a_client_can_be_chosen(browser: Any, one: Path) -> None:
    with opened(browser, one) as tab:
        tab.select_option("select.frame", label="after task 1")
        assert tab.evaluate("document.querySelector('#run0-confusion').data[0].z.length") == 2
        tab.select_option("select.client", label="client 1")
        lines = (
            "document.querySelector('#run0-entropy').data.filter(one => one.mode == 'lines').map(one => one.opacity)"
        )
        assert sorted(tab.evaluate(lines)) == [0.08, 0.08, 0.08, 1]


def test_runs_side_by_side_are_shown_one_at_a_time(browser: Any, runs: Path) -> None:
    with opened(browser, written(runs / "both.html", runs)) as tab:
        assert tab.evaluate("document.querySelector('#accuracy-curves').data.length") == 2
        assert tab.locator(".run:visible").count() == tab.locator("nav .links:visible").count() == 1
        assert "finetune" in tab.locator(".run:visible .tile").first.inner_text()
        tab.select_option("#run", "1")
        ready(tab)
        assert "glfc" in tab.locator(".run:visible .tile").first.inner_text()
        assert drawn(tab) == FIGURES | {"curves"}
        assert tab.evaluate(WIDER) == 0


def test_what_a_run_lacks_is_a_note(browser: Any, runs: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(runs / "finetune", tmp_path / "old"))
    for path in (*old.glob("confusion-*"), old / "timings.jsonl"):
        path.unlink()
    with opened(browser, written(tmp_path / "old.html", old), 390) as tab:
        assert drawn(tab) == FIGURES - {"confusion", "score", "teachers", "seconds"} | {"curves"}
        assert tab.locator(".warning", has_text="the report goes without it").count() == 2
        assert tab.locator(".note:visible").count() >= 6
        assert tab.evaluate(WIDER) == 0


def test_what_sites_and_folders_are_called_is_text_and_never_code(browser: Any, tmp_path: Path) -> None:
    evil = '</script><img src=x onerror="document.title=1">'
    folder = small_run(tmp_path / "run", description=evil)
    page = written(tmp_path / "page.html", folder)
    with opened(browser, page) as tab:
        assert evil in tab.locator("header .lead").inner_text()
        assert tab.title() == f"glfc, seed {SMALL['seed']}, digits"


def test_the_page_is_small(one: Path) -> None:
    """It holds plotly, compressed to less than half; the rest is small beside it."""
    assert one.stat().st_size < 2_200_000
