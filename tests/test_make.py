"""The commands of the Makefile: each says what it does, and the pages name none that is not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from fcil import testing

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE).group(1).split())


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_without_a_target_lists_every_target_with_a_sentence() -> None:
    listed = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory"], check=True, capture_output=True, text=True
    )
    lines = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    assert lines.keys() == TARGETS
    assert set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)) == TARGETS


def test_pages_name_targets_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".ci/*")]
    named = {(path.name, name) for path in pages for name in re.findall(r"`make ([a-z-]+)", path.read_text("utf-8"))}
    assert {name for _, name in named} >= {"check", "dist", "docs", "picture", "test"}
    assert {(page, name) for page, name in named if name not in TARGETS and page != "CHANGELOG.md"} == set()


def test_the_scripts_of_ci_can_be_started() -> None:
    scripts = [path for path in (ROOT / ".ci").iterdir() if path.suffix != ".py" and path.is_file()]
    assert {path.name for path in scripts} == {"dist", "portable", "run"}
    for path in scripts:
        assert os.access(path, os.X_OK), path
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_wheel_is_checked_with_one_member_of_every_kind() -> None:
    suites = {name for name in testing.__all__ if name.endswith("Contract")}
    assert suites == set(
        re.findall(r"^class \w+\((\w+)\):$", (ROOT / ".ci" / "test_kinds.py").read_text(), re.MULTILINE)
    )


def test_the_release_names_one_version_and_the_oldest_python_that_it_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [line.rpartition(" :: ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={named[0]}"
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE).group(1)
    assert f'__version__ = "{cited}"' in (ROOT / "fcil" / "__init__.py").read_text("utf-8")
