"""A federation at home and Ctrl-C: who does not end by itself is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("flwr")

from fcil.cli.signals import stoppable
from fcil.deployment import local_demo as home
from fcil.deployment.local_demo import DemoPlan, LocalDemo

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('there', flush=True); time.sleep(60)"
)


@pytest.fixture
def stubborn(tmp_path: Path) -> LocalDemo:
    """Give a federation of processes that do not end when they are asked to."""
    made = LocalDemo(DemoPlan("digits", (), 2, 4, tmp_path), cast(Any, None), cast(Any, None), print, False)
    for name in ("server", "site-1", "site-2"):
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        made.running[name] = child
    return made


def test_who_does_not_end_in_time_is_killed(stubborn: LocalDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "PATIENCE", 0.3)
    monkeypatch.setattr(home, "LEAVING", 0.3)
    stubborn._end_all()
    assert {child.returncode for child in stubborn.running.values()} == {-signal.SIGKILL}


def test_another_ctrl_c_ends_all_at_once(stubborn: LocalDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "PATIENCE", float("inf"))  # nothing else ends them
    with stoppable():
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        stubborn._end_all()
    assert {child.returncode for child in stubborn.running.values()} == {-signal.SIGKILL}


def test_a_late_site_that_misses_the_end_is_stopped_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "PATIENCE", 0.3)
    said: list[str] = []
    made = LocalDemo(DemoPlan("digits", (), 2, 4, tmp_path), cast(Any, None), cast(Any, None), said.append, False)
    (tmp_path / "server.log").write_text("the last line\n")
    for name, code in (("server", "pass"), ("site-1", "pass"), ("site-3", "import time; time.sleep(60)")):
        made.running[name] = subprocess.Popen([sys.executable, "-c", code])
    made.running["server"].wait()
    made.running["site-1"].wait()
    made._watch()
    assert said == [
        "the last line",
        f"site-3 was away when the federation ended; it is stopped, see {tmp_path / 'site-3'}.log",
    ]
    assert made.running["site-3"].returncode == -signal.SIGTERM
