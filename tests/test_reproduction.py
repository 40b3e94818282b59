"""The pages that report our runs say what the kept figures say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fcil.config import load_config
from fcil.methods import methods

ROOT = Path(__file__).parents[1]
KEPT = sorted((ROOT / "results").glob("*/*-*.json"))

if not (ROOT / "benchmarks").is_dir():
    pytest.skip("benchmarks come with the source, not with the wheel", allow_module_level=True)


def test_the_pages_are_what_the_figures_say() -> None:
    command = [sys.executable, "-m", "benchmarks.reproduction", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_kept_run_is_one_that_the_present_presets_describe(path: Path) -> None:
    kept = json.loads(path.read_text("utf-8"))
    method, seed = kept["summary"]["method"], kept["summary"]["seed"]
    assert path.stem == f"{method}-{seed}"
    assert method in methods()
    chosen = [f"method.name={method}", f"seed={seed}", f"method.optimiser={kept['config']['method']['optimiser']}"]
    wanted = load_config(path.parent.name, chosen).document()
    assert {**kept["config"], "run": None} == {**json.loads(json.dumps(wanted)), "run": None}
    accuracy = kept["summary"]["accuracy"]
    assert kept["summary"]["average"] == pytest.approx(sum(accuracy) / len(accuracy), abs=1e-3)
