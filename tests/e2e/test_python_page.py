"""The page on the Python interface, followed from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.plugins import fresh_registry

import fcil

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text("utf-8")


def test_the_snippets_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    monkeypatch.chdir(tmp_path)
    here: dict[str, Any] = {"__name__": "__main__"}
    said = {}
    with fresh_registry():
        for heading, snippet in re.findall(r"^## ([^\n]+)\n[^#]*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE):
            exec(snippet, here)
            said[heading] = capsys.readouterr().out
    assert len(said) == PAGE.count("```python\n")
    assert re.search(r"^\| icarl \| .* ±", said["Compare methods"], re.MULTILINE)
    assert re.match(r"\{\d: 20, \d: 20\}\n$", said["Who holds what"])
    assert said["Read a run"].splitlines()[0].startswith("1 2 [")
    assert said["Read a run"].splitlines()[-1].startswith("60 fcil run digits --method icarl --seed 1 --set ")
    assert len(said["Use the model"].splitlines()) == 3
    assert said["When something is wrong"].startswith("method.name: 'icral' is unknown; there are analytic, bic, dde, ")
    assert said["When something is wrong"].endswith("; did you mean icarl?\n")
    made = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.suffix == ".html")
    assert made == ["all.html", "runs/icarl/report.html"]
    assert (tmp_path / "who.png").is_file()
    assert all(path.is_file() for path in here["pictures"])
    assert isinstance(here["compared"], fcil.Compared)


def test_its_links_lead_somewhere() -> None:
    for target, anchor in re.findall(r"\]\(([^)#]+)#?([^)]*)\)", PAGE):
        path = DOCS / target
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], anchor
