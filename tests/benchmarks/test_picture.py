"""The picture in README.md is made by a command."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from support.pages import CHROMIUM, small_run

import fcil

picture = pytest.importorskip("benchmarks.picture", reason="benchmarks come with the source, not with the wheel")


@pytest.mark.xdist_group("browser")
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")
def test_the_top_of_a_report_becomes_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    page = fcil.report(small_run(tmp_path / "run"))
    shot = Image.open(io.BytesIO(picture.photograph(page, 500, 400)))
    assert (shot.format, shot.size) == ("PNG", (500, 400))
    assert len(shot.convert("RGB").getcolors(2**18) or []) > 50, "nothing is drawn"


def test_the_picture_in_the_readme_has_the_size_that_the_command_gives_it() -> None:
    assert f"({picture.PICTURE.relative_to(picture.ROOT)})" in (picture.ROOT / "README.md").read_text("utf-8")
    with Image.open(picture.PICTURE) as drawn:
        assert drawn.size == (picture.WIDTH, picture.HEIGHT)
