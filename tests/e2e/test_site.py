"""The documentation as a site: built without a warning, whole, and at home in a browser without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from support.pages import CHROMIUM, FLAGS

for needed in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")
pytestmark = pytest.mark.xdist_group("site")  # one site for all

ROOT = Path(__file__).parents[2]
DRAWINGS = sorted((ROOT / "docs" / "drawings").glob("*.svg"))
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Right ends of words beyond the drawing's, or left ends before it: other fonts are narrower than the ones here.
OUTSIDE = """() => [...document.querySelectorAll('text')].filter(one => {
    const box = one.getBoundingClientRect(), whole = document.documentElement.getBoundingClientRect();
    return box.left < whole.left || box.right > whole.right || box.bottom > whole.bottom;
}).map(one => one.textContent)"""


class Page(HTMLParser):
    """The links, anchors and parts of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.parts, self.navigation = set[str](), list[str](), list[str](), set[str]()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = defaultdict(str, {name: value or "" for name, value in attrs})
        self.ids.add(found["id"])
        if tag == "a" and found["href"]:
            self.links.append(found["href"])
            if "md-nav__link" in found["class"]:
                self.navigation.add(found["href"])
        if found["src"] or tag == "link":
            self.parts.append(found["src"] or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built as `make docs` builds it."""
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    ended = subprocess.run(
        build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Return every page but that for wrong addresses, whose links are those of a server."""
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def html(source: Path) -> str:
    """Return where the site has a page of docs/."""
    return source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    listed = {urlsplit(link).path for link in pages[site / "index.html"].navigation}
    expected = {html(source) for source in (ROOT / "docs").rglob("*.md")}
    expected |= {f"repository/{name}.html" for name in ("REPRODUCTION", "CHANGELOG", "CONTRIBUTING")}
    assert expected - {"index.html"} <= listed


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    followed = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            assert place.is_file(), f"{path.relative_to(site)}: {link}"
            assert place.is_relative_to(site)
            if parts.fragment and place in pages:
                assert unquote(parts.fragment) in pages[place].ids, f"{path.relative_to(site)}: {link}"
            followed += 1
    assert followed > 1000


def test_every_part_of_a_page_is_a_file_of_the_site(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for part in page.parts:
            parts = urlsplit(part)
            assert not parts.scheme, f"{path.relative_to(site)} loads {part}"
            assert not parts.netloc, f"{path.relative_to(site)} loads {part}"
            assert (path.parent / unquote(parts.path)).is_file(), f"{path.relative_to(site)}: {part}"


def test_files_of_the_repository_are_shown(site: Path, pages: dict[Path, Page]) -> None:
    listing = (site / "repository" / "fcil" / "methods" / "lwf.py.html").read_text("utf-8")
    assert "LwFConfig" in listing
    assert any("results/digits/curves.svg" in part for part in pages[site / "repository" / "REPRODUCTION.html"].parts)


def test_the_reference_has_what_the_package_offers(pages: dict[Path, Page], site: Path) -> None:
    import fcil

    offered = {f"fcil.{name}" for name in fcil.__all__ if not name.startswith("_")}
    assert offered <= pages[site / "reference" / "python.html"].ids
    assert "fcil.testing.MethodContract" in pages[site / "reference" / "testing.html"].ids
    assert "fcil.methods.local_objective.LocalObjective.loss" in pages[site / "reference" / "methods.html"].ids
    assert "fcil.core.messages.types.Broadcast" in pages[site / "reference" / "messages.html"].ids


# --- in a browser --------------------------------------------------------------------------------------------------

in_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any, site: Path) -> Iterator[Any]:
    """Return a tab in which an error, or a request for anything but a file of the site, fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme="light")
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(site.as_uri()) else wrong.append(asked.url))
    yield page
    context.close()
    assert wrong == []


@in_browser
def test_pages_load_nothing_from_elsewhere_and_fit_a_phone(tab: Any, site: Path) -> None:
    tab.set_viewport_size({"width": 390, "height": 900})
    for name in ("index", "concepts", "settings", "reference/methods", "repository/REPRODUCTION"):
        tab.goto((site / f"{name}.html").as_uri())
        assert tab.evaluate(WIDER) == 0, name
        assert tab.eval_on_selector_all("img", "all => all.every(one => one.naturalWidth > 0)"), name


@in_browser
def test_the_search_finds_a_page_without_a_server(tab: Any, site: Path) -> None:
    tab.goto((site / "index.html").as_uri())
    tab.click(".md-search__input")
    tab.keyboard.type("herding")
    tab.wait_for_selector(".md-search-result__link", timeout=30_000)
    found = tab.eval_on_selector_all(".md-search-result__link", "all => all.map(one => one.href)")
    assert any("methods.html" in link for link in found)


@in_browser
def test_the_switch_makes_the_page_dark(tab: Any, site: Path) -> None:
    tab.goto((site / "concepts.html").as_uri())
    scheme = "document.body.dataset.mdColorScheme"
    assert tab.evaluate(scheme) == "default"
    for _ in range(2):  # from the system's choice to light, then to dark
        tab.locator("form[data-md-component=palette] label:visible").click()
    tab.wait_for_function(f"{scheme} == 'slate'")


@in_browser
@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.stem)
def test_no_word_runs_off_a_drawing(browser: Any, drawing: Path) -> None:
    page = browser.new_page(viewport={"width": 560, "height": 900})
    page.goto(drawing.as_uri())
    assert page.locator("text").count() > 10
    assert page.evaluate(OUTSIDE) == []
    page.close()
