"""A member of any kind is one file: dropped into the folder of its kind, it is there; nothing else is touched."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.plugins import REGISTRIES

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin" / "fcil_example"
FILES = {
    "method": ("softmax_replay", "softmax-replay"),
    "network": ("pooled", "pooled"),
    "aggregator": ("quantile", "quantile"),
    "data set": ("bars", "bars"),
    "logger": ("jsonl", "jsonl"),
    "engine": ("reversed", "reversed"),
}


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.what)
def test_one_file_in_the_folder_of_its_kind_is_enough(registry, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    file, name = FILES[registry.what]
    (tmp_path / f"{file}.py").write_text((PLUGIN / f"{file}.py").read_text("utf-8"))
    package = importlib.import_module(registry.folder)
    len(registry)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_members", dict(registry._members))
    monkeypatch.setattr(registry, "_found_ours", False)
    try:
        row = next(row for row in registry.rows() if row.name == name)
        assert (row.package, bool(row.summary)) == ("fcil", True)
        assert registry[name].module == f"{registry.folder}.{file}"
    finally:
        sys.modules.pop(f"{registry.folder}.{file}", None)


def test_listing_imports_no_optional_package() -> None:
    code = (
        "import sys\nfrom fcil.experiment.config import setting_rows\nsetting_rows()\n"
        "from fcil.federation.engines import ENGINES\nfrom fcil.reporting.loggers import LOGGERS\n"
        "ENGINES.rows(), LOGGERS.rows()\n"
        "print([name for name in ('ray', 'tensorboard', 'mlflow', 'wandb', 'pyarrow', 'flwr') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_every_kind_has_a_page_with_its_example() -> None:
    pages = PLUGIN.parents[2] / "docs" / "extend"
    names = {"data set": "dataset"}
    for kind, (file, _) in FILES.items():
        page = (pages / f"{names.get(kind, kind)}.md").read_text("utf-8")
        (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        assert code == (PLUGIN / f"{file}.py").read_text("utf-8"), kind
