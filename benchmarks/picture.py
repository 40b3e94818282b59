"""The picture in README.md: the top of the report that the demo writes, as docs/report.png.

    python -m benchmarks.picture [DIR]

DIR is a finished demo; without it the demo is run first, in a temporary folder. It needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from fcil.core.files import write_atomically
from fcil.reporting.compare.demo import run_demo

ROOT = Path(__file__).resolve().parents[1]
PICTURE, CHROMIUM = ROOT / "docs" / "report.png", Path("/usr/bin/chromium")
WIDTH, HEIGHT = 1000, 1250  # pixels
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


def photograph(page: Path, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """Return the top of a report as PNG, once all its figures are drawn."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (only for this)

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        tab.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        shot: Any = tab.screenshot(animations="disabled")
        browser.close()
    return bytes(shot)


def main() -> int:
    """Write the picture of a demo's report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", nargs="?", type=Path, metavar="DIR", help="a finished demo, as `fcil demo` writes it")
    demo = parser.parse_args().demo
    with tempfile.TemporaryDirectory() as folder:
        if demo is None:
            demo = Path(folder) / "demo"
            run_demo(Console(), demo, 2021)
        write_atomically(PICTURE, photograph(demo / "report.html"))
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
