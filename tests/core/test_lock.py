from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fcil.core.lock import Lock, locked


def test_a_lock_is_exclusive_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    held = Lock(path, wait=False)
    with pytest.raises(BlockingIOError):
        Lock(path, wait=False)
    held.release()
    held.release()  # again, without effect
    Lock(path, wait=False).release()


def test_a_waiting_lock_gets_its_turn(tmp_path: Path) -> None:
    order: list[str] = []

    def wait() -> None:
        with locked(tmp_path / "new" / "folder"):
            order.append("second")

    with locked(tmp_path / "new" / "folder"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    use = "from pathlib import Path; from fcil.core.lock import Lock; Lock(Path(sys.argv[1])); os._exit(1)"
    code = f"import os, sys; {use}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / ".lock")], check=False)
    Lock(tmp_path / ".lock", wait=False).release()
