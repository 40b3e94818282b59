"""The package as a stranger gets it: built as a wheel, installed elsewhere, a preset run from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_preset_runs_from_an_installed_wheel(tmp_path: Path) -> None:
    copy, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fcil", copy / "fcil", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(copy)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("fcil-*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)

    environment = {**os.environ, "PYTHONPATH": str(site)}
    listed = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "sbom.py"), str(wheel)], env=environment, check=True, capture_output=True
    )
    bill = json.loads(listed.stdout)
    described = bill["metadata"]["component"]
    assert described["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    assert described["licenses"] == [{"expression": "MIT AND CC-BY-4.0 AND BSD-3-Clause"}]
    references = {described["bom-ref"], *(part["bom-ref"] for part in bill["components"])}
    assert {part["ref"] for part in bill["dependencies"]} == references
    assert {ref for part in bill["dependencies"] for ref in part["dependsOn"]} <= references
    (own,) = (part["dependsOn"] for part in bill["dependencies"] if part["ref"] == described["bom-ref"])
    assert any(name.startswith("pkg:pypi/torch@") for name in own)

    where = [sys.executable, "-c", "import fcil; print(fcil.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == str(site / "fcil" / "__init__.py")

    assert (site / "fcil" / "testing" / "contract.py").is_file()  # for methods of other packages

    small = {"samples_per_class": 6, "width": 2, "epochs": 1}
    settings = [
        "scenario.tasks=2",
        "scenario.rounds_per_task=1",
        "scenario.participants=2",
        "scenario.initial_clients=2",
    ]
    settings += [f"data.samples_per_class={small['samples_per_class']}", f"model.width={small['width']}"]
    settings += [f"train.epochs={small['epochs']}", "method.rebuild_evaluations=20"]
    flags = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "fcil", "run", "digits", *flags, "--out", "run", "--quiet"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["method"] == "glfc"
    assert len(summary["accuracy"]) == 2

    table = [sys.executable, "-m", "fcil", "leaderboard"]
    ended = subprocess.run(table, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "glfc" in ended.stdout
    assert "cifar100-lite" in ended.stdout
    assert (site / "fcil" / "data" / "datasets" / "digits.LICENSE.txt").is_file()
