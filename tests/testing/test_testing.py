"""The contract suite as another package uses it: its own method, its own test file, plain pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

METHODS = """
from fcil.methods.base import Method, register_method
from fcil.methods.bic import BiCConfig, build as correcting
from fcil.methods.finetune import build as forgetting
from fcil.methods.joint import build as hoarding
from fcil.methods.detection import DetectionConfig
from fcil.methods.exemplar_selection import RehearsalConfig

register_method(Method("mine", "keeps nothing", DetectionConfig, forgetting))
register_method(Method("hoarder", "keeps everything", RehearsalConfig, hoarding))

class Silent(BiCConfig):
    def sends(self):
        return {}

register_method(Method("silent", "does not say what it sends", Silent, correcting))
"""
TESTS = """
from fcil.testing import MethodContract

class TestMine(MethodContract):
    method = "mine"
    keeps = "nothing"

class TestHoarder(MethodContract):
    method = "hoarder"

class TestSilent(MethodContract):
    method = "silent"
"""


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_method_of_another_package_is_held_to_the_contracts(tmp_path: Path) -> None:
    facts = tmp_path / "my_package-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[fcil.methods]\nmine = my_methods\n")
    (tmp_path / "my_methods.py").write_text(METHODS)
    (tmp_path / "test_mine.py").write_text(TESTS)
    chosen = "(trains_on_no_more and not TestSilent) or (TestMine and coloured) or (does_not_name and not TestHoarder)"
    ended = python("-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, "test_mine.py", folder=tmp_path)
    lines = ended.stdout.splitlines()
    verdicts = dict(line.split("::", 1)[1].split()[:2] for line in lines if line.startswith("test_mine.py::"))
    assert verdicts == {
        "TestMine::test_every_edition_trains_on_coloured_images_to_the_end[fcil]": "PASSED",
        "TestMine::test_every_edition_trains_on_coloured_images_to_the_end[paper]": "PASSED",
        "TestMine::test_every_edition_trains_on_coloured_images_to_the_end[official]": "PASSED",
        "TestMine::test_trains_on_no_more_than_it_may_keep": "PASSED",
        "TestMine::test_sends_nothing_that_it_does_not_name": "PASSED",
        "TestHoarder::test_trains_on_no_more_than_it_may_keep": "FAILED",
        "TestSilent::test_sends_nothing_that_it_does_not_name": "FAILED",
    }, ended.stdout
    assert "assert 20 <= 12" in ended.stdout  # the values, not only the line
    assert "silent sends bias; its `sends` should name it" in ended.stdout


def test_without_pytest_the_suite_says_what_to_install(tmp_path: Path) -> None:
    ended = python("-c", "import sys; sys.modules['pytest'] = None; import fcil.testing", folder=tmp_path)
    last = ended.stderr.splitlines()[-1]
    assert last == "ImportError: fcil.testing needs pytest; install fcil with its extra `testing`, or pytest itself"
