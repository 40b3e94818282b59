from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CIFAR_FILES = ("train", "test", "meta")


@pytest.fixture(scope="session")
def real_cifar100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder to set FCIL_DATA to, with the real CIFAR-100 in it."""
    given = os.environ.get("FCIL_DATA")
    for folder in (Path(given) / "cifar-100-python", Path(given)) if given else ():
        if all((folder / name).is_file() for name in CIFAR_FILES):
            return Path(given or "")
    writer = Path(__file__).resolve().parents[3] / "shared" / "bin" / "cifar100-official"
    if not writer.is_file():
        pytest.skip(f"CIFAR-100 is neither in FCIL_DATA nor offered by {writer}")
    pytest.importorskip("PIL", reason="cifar100-official needs Pillow")
    target = tmp_path_factory.mktemp("cifar100")
    subprocess.run([sys.executable, writer, target], check=True, capture_output=True, timeout=120)
    return target
