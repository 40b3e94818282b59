"""Methods are found by name: the files of the package, and what other packages name in their entry points."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.command import fcil
from support.plugins import fresh_registry, install

from fcil.core.errors import ConfigError
from fcil.experiment.config import load_config
from fcil.federation.engines import Recipe
from fcil.federation.server import FederationConfig
from fcil.methods import Method, PluginWarning, Setting, get_method, methods
from fcil.methods.base import register_method
from fcil.methods.detection import DetectionConfig
from fcil.methods.finetune import build
from fcil.models import ModelConfig
from fcil.models.trainer import TrainConfig

MODULE = """
from fcil.methods.base import Method, register_method
from fcil.methods.finetune import build
from fcil.methods.detection import DetectionConfig

register_method(Method("{name}", "a method of another package", DetectionConfig, build))
"""


def test_a_method_of_another_package_has_a_name_like_the_others(tmp_path: Path) -> None:
    install(tmp_path, "my-package", "[fcil.methods]\nmine = my_method\n", my_method=MODULE.format(name="mine"))
    with fresh_registry(tmp_path):
        assert methods()["mine"].summary == "a method of another package"
        assert load_config("digits", ["method.name=mine"]).method_name == "mine"
    assert "mine" not in methods()


BROKEN = [
    ("broken = broken_module\n", "import a_module_that_is_not_there\n", "ModuleNotFoundError"),
    ("broken = broken_module\n", "1 / 0\n", "ZeroDivisionError"),
    ("broken = broken_module\n", "this is no Python\n", "SyntaxError"),
    ("broken = broken_module\n", "import sys\nsys.exit(3)\n", "SystemExit: 3"),
    ("broken = broken_module:absent\n", "", "AttributeError"),
    ("broken = not a module!!\n", "", "AttributeError"),
    ("broken = broken_module\n", MODULE.format(name="glfc"), "ConfigError: two methods are called glfc"),
    ("broken = broken_module\n", MODULE.format(name="x") + MODULE.format(name="icarl"), "two methods are called icarl"),
    ("broken = broken_module\n", MODULE.format(name="a/b"), "'a/b' is no name of a method"),
    (
        "broken = broken_module\n",
        MODULE.format(name="x").replace("DetectionConfig, build", "int, build"),
        "should be a kind of MethodConfig",
    ),
    ("nonsense\n", "", "the entry points of the package bad-package cannot be read"),
]


@pytest.mark.parametrize(("entry", "text", "reason"), BROKEN, ids=[reason for _, _, reason in BROKEN])
def test_a_package_that_cannot_be_used_is_named_and_everything_else_works(
    tmp_path: Path, entry: str, text: str, reason: str
) -> None:
    before = set(methods())
    install(tmp_path, "bad-package", f"[fcil.methods]\n{entry}", broken_module=text)
    install(tmp_path, "my-package", "[fcil.methods]\nmine = my_method\n", my_method=MODULE.format(name="mine"))
    with fresh_registry(tmp_path), pytest.warns(PluginWarning) as caught:
        assert set(methods()) == {*before, "mine"}
    (warning,) = caught
    said = str(warning.message)
    assert "bad-package" in said
    assert reason in said
    assert "everything else works" in said
    if entry != "nonsense\n":
        assert f"entry point {entry.strip()}," in said


def test_a_second_package_of_one_name_lies_behind_the_first(tmp_path: Path) -> None:
    for place in ("front", "behind"):
        (tmp_path / place).mkdir()
        name = f"method_{place}"
        modules: dict[str, Any] = {name: MODULE.format(name=place)}
        install(tmp_path / place, "my-package", f"[fcil.methods]\nmine = {name}\n", **modules)
    with fresh_registry(tmp_path / "front", tmp_path / "behind"):
        assert "front" in methods()
        assert "behind" not in methods()


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "a.b"])
def test_a_name_that_could_not_be_a_setting_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a method"):
        register_method(Method(name, "", DetectionConfig, build))


WARNED = (
    "warning: the methods of the package bad-package, entry point broken = broken_module, are left out "
    "(ZeroDivisionError: division by zero); everything else works"
)


def test_a_real_process_says_it_in_one_line_on_the_error_stream(tmp_path: Path) -> None:
    install(tmp_path, "bad-package", "[fcil.methods]\nbroken = broken_module\n", broken_module="1 / 0\n")
    places = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "fcil", "run", "digits", "--method", "glcf"]
    environment = {**os.environ, "PYTHONPATH": places}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    warned, error = ended.stderr.splitlines()
    assert (warned, error[:6]) == (WARNED, "error:")


@pytest.mark.parametrize(
    "command",
    [
        ["list", "methods"],
        ["plan", "digits", "--set", "data.samples_per_class=2", "--set", "model.width=1", "--seconds", "0.1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_says_it_in_one_line_on_the_error_stream(tmp_path: Path, command: list[str]) -> None:
    install(tmp_path, "bad-package", "[fcil.methods]\nbroken = broken_module\n", broken_module="1 / 0\n")
    with fresh_registry(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a process of its own
        ended = fcil(*command)
    assert (ended.returncode, ended.stderr) == (0, f"{WARNED}\n")


def test_workers_do_not_repeat_the_warning(tmp_path: Path) -> None:
    install(tmp_path, "bad-package", "[fcil.methods]\nbroken = broken_module\n", broken_module="1 / 0\n")
    setting = Setting(memory=1, image_shape=(1, 8, 8), secret=0)
    config = get_method("finetune").config()
    recipe = Recipe("finetune", config, setting, ModelConfig(), TrainConfig(), FederationConfig())
    text = recipe.text()
    with fresh_registry(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Recipe.read(text) == recipe


def test_a_recipe_from_another_machine_cannot_have_a_site_show_its_images() -> None:
    setting = Setting(memory=1, image_shape=(1, 8, 8), secret=0, shown=9)
    recipe = Recipe("finetune", DetectionConfig(), setting, ModelConfig(), TrainConfig(), FederationConfig())
    assert Recipe.read(recipe.text()).setting.shown == 9
    assert Recipe.read(recipe.text(), import_modules=False).setting.shown == 0
