"""The set-up of docs/deployment.md, run step by step by deploy/walkthrough.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "walkthrough.py"
pytestmark = pytest.mark.xdist_group("federation")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walkthrough", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["walkthrough"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_federation_of_a_server_a_proxy_and_three_sites_takes_at_most_fourteen_steps() -> None:
    walk = script()
    steps = walk.steps_of(walk.PAGE.read_text("utf-8"))
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert 8 < len(steps) <= 14
    assert {step.host for step in steps} == set(walk.HOSTS)
    line = "waits for 12 files; its fingerprint is nvmf-qb32-hir2-43ej-dpeo-kobw ..."
    assert walk.re.search(walk.pattern(line), "waits for 7 files; its fingerprint is aaaa-bbbb-cccc-dddd-eeee-ffff now")
    assert not walk.re.search(walk.pattern(line), "waits for 7 files; its digest is aaaa-bbbb-cccc-dddd-eeee-ffff now")


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="the extra flower is not installed")
def test_the_page_can_be_followed_with_kills_cut_links_and_delays(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "walkthrough"), "--rounds", "12", "--faults", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 steps and 12 rounds" in done.stdout
