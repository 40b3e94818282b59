"""The names that `fcil` has for programs: there, documented, fast to import, and shown on a page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.plugins import fresh_registry
from torch import nn

import fcil
from fcil.core.errors import ConfigError
from fcil.core.registry import SCRIPT
from fcil.methods.detection import DetectionConfig
from fcil.methods.finetune import build

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
NAMES = [name for name in fcil.__all__ if not name.startswith("__")]


def test_importing_the_package_imports_nothing_slow() -> None:
    code = "import sys, fcil; assert fcil.__version__; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="has no attribute 'ruin'"):
        fcil.ruin  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there_documented_and_on_the_page(name: str) -> None:
    assert name in dir(fcil)
    assert (getattr(fcil, name).__doc__ or "").splitlines()[0].endswith(".")
    assert re.search(rf"fcil\.{name}\b", PAGE.read_text("utf-8"))
    assert importlib.util.find_spec(f"fcil.{name}") is None, "importing that module would hide the name"


def test_lists_have_what_there_is_and_what_was_registered() -> None:
    assert {"glfc", "icarl", "finetune"} <= set(fcil.list_methods())
    assert {"resnet18", "cnn"} <= set(fcil.list_networks())
    assert "digits" in fcil.list_presets()
    with fresh_registry():
        fcil.register_method(fcil.Method("mine", "a method of mine", DetectionConfig, build))
        fcil.register_network(fcil.Network("own", "a network of mine", lambda plan: nn.Flatten()))
        assert fcil.list_methods()["mine"] == "a method of mine"
        assert fcil.list_networks()["own"] == "a network of mine"
    assert "mine" not in fcil.list_methods()


def test_a_registration_that_cannot_be_is_a_sentence() -> None:
    with fresh_registry():
        with pytest.raises(fcil.FcilError, match="two methods are called icarl; choose another name"):
            fcil.register_method(fcil.Method("icarl", "", DetectionConfig, build))
        with pytest.raises(fcil.FcilError, match="the config of odd is 3, should be a kind of MethodConfig"):
            fcil.register_method(fcil.Method("odd", "", 3, build))  # type: ignore[arg-type]
        with pytest.raises(fcil.FcilError, match="two networks are called cnn; choose another name"):
            fcil.register_network(fcil.Network("cnn", "", lambda plan: nn.Flatten()))


def test_a_name_of_ours_is_refused_even_before_ours_are_needed() -> None:
    code = "import fcil; fcil.register_method(fcil.Method('glfc', '', object, print))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "two methods are called glfc" in done.stderr.splitlines()[-1]


def test_a_notebook_may_register_its_own_again_but_no_other_s() -> None:
    def backbone(plan: object) -> nn.Module:
        return nn.Flatten()

    backbone.__module__ = SCRIPT
    with fresh_registry():
        for summary in ("a first try", "a second one"):
            fcil.register_network(fcil.Network("own", summary, backbone))
        assert fcil.list_networks()["own"] == "a second one"
        with pytest.raises(ConfigError, match="two networks are called own"):
            fcil.register_network(fcil.Network("own", "of another module", lambda plan: nn.Flatten()))
        with pytest.raises(ConfigError, match="two networks are called cnn"):
            fcil.register_network(fcil.Network("cnn", "of a notebook", backbone))
