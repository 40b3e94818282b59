from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CIFAR_FILES = ("train", "test", "meta")
SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="session")
def real_cifar100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder to set FCIL_DATA to, with the real CIFAR-100 in it."""
    given = os.environ.get("FCIL_DATA")
    for folder in (Path(given) / "cifar-100-python", Path(given)) if given else ():
        if all((folder / name).is_file() for name in CIFAR_FILES):
            return Path(given or "")
    writer = SHARED / "bin" / "cifar100-official"
    if not writer.is_file():
        pytest.skip(f"CIFAR-100 is neither in FCIL_DATA nor offered by {writer}")
    pytest.importorskip("PIL", reason="cifar100-official needs Pillow")
    target = tmp_path_factory.mktemp("cifar100")
    subprocess.run([sys.executable, writer, target], check=True, capture_output=True, timeout=120)
    return target


@pytest.fixture(scope="session")
def real_tinyimagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with TinyImageNet, or with some classes of it."""
    given = os.environ.get("FCIL_DATA")
    if given and (Path(given) / "tiny-imagenet-200" / "wnids.txt").is_file():
        return Path(given) / "tiny-imagenet-200"
    archive = SHARED / "data" / "tinyimagenet-20classes.zip"
    if not archive.is_file():
        pytest.skip(f"TinyImageNet is neither in FCIL_DATA nor offered by {archive}")
    target = tmp_path_factory.mktemp("tinyimagenet")
    with zipfile.ZipFile(archive) as file:
        file.extractall(target)
    return target / "tiny-imagenet-200"
