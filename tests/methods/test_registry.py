"""Methods are found by name: the files of the package, and what other packages name in their entry points."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from fcil.config import load_config
from fcil.methods import base, methods

MODULE = """
from fcil.methods.base import Method, register
from fcil.methods.finetune import build
from fcil.methods.rehearsal import RehearsalConfig

register(Method("mine", "a method of another package", RehearsalConfig, build))
"""


def test_a_method_of_another_package_has_a_name_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_method.py").write_text(MODULE)
    facts = tmp_path / "my_package-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[fcil.methods]\nmine = my_method\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(base, "_registry", dict(base._registry))
    base._import_all.cache_clear()
    try:
        assert [entry.value for entry in importlib.metadata.entry_points(group="fcil.methods")] == ["my_method"]
        assert methods()["mine"].summary == "a method of another package"
        assert load_config("digits", ["method.name=mine"]).method_name == "mine"
    finally:
        monkeypatch.undo()
        base._import_all.cache_clear()
    assert "mine" not in methods()
