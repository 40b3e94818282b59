"""The page on deployments and the units beside it: what they name exists; nothing is started."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from support.command import START, parse, resolve

pytest.importorskip("flwr")

import fcil
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.server.run import deployment_config, server_recipe
from fcil.experiment.config import DeploymentConfig, load_config
from fcil.experiment.presets import read_document

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text("utf-8")
README = (ROOT / "deploy" / "README.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "deployment.toml"
UNITS = sorted((ROOT / "deploy").glob("*.service"))


def check(line: str) -> None:
    """Let the command line take a command apart, and a server the settings that it names, without running anything."""
    words = parse(line)
    settings = [after for before, after in pairwise(words) if before == "--set"]
    if settings:
        config = words[0] if words[0] == "digits" else str(EXAMPLE)
        deployment_config(load_config(config, settings))


def blocks(text: str) -> list[str]:
    return re.findall(r"^```(?:console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def lines_of(text: str) -> list[str]:
    joined = "\n".join(blocks(text)).replace("\\\n", " ")
    return [line for line in joined.splitlines() if START.match(line)]


def container_lines() -> list[str]:
    """Return what follows the image's name, which is that of its command, too."""
    joined = "\n".join(blocks(README)).replace("\\\n", " ")
    return [f"fcil {line.split(' fcil ', 1)[1]}" for line in joined.splitlines() if line.startswith("podman run")]


def started(unit: Path) -> str:
    """Return what a unit starts, as a shell would see it."""
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text("utf-8"), re.MULTILINE)
    if not line.startswith("/bin/sh"):
        return line
    (script,) = shlex.split(line)[2:]
    return f"{script.partition('exec ')[2].removesuffix('$$resume')}--resume"


def test_the_example_is_what_a_server_takes() -> None:
    config = deployment_config(load_config(str(EXAMPLE)))
    recipe = server_recipe(config)
    assert recipe.roles().proxy is not None
    assert recipe.setting.image_shape == (3, 32, 32)
    of_tables = {"columns"}
    assert read_document(str(EXAMPLE))["deployment"].keys() == DeploymentConfig.model_fields.keys() - of_tables
    voted = deployment_config(load_config(str(EXAMPLE), ["method.selection=votes"]))
    assert server_recipe(voted).roles().proxy is None


@pytest.mark.parametrize("line", [*lines_of(PAGE), *lines_of(README), *container_lines()])
def test_a_command_line_has_a_command_and_options_that_exist(line: str) -> None:
    check(line)


def test_the_page_shows_every_command_of_a_deployment() -> None:
    shown = {tuple(START.sub("", line).split()[1:3]) for line in lines_of(PAGE)}
    assert {("sites", "approve"), ("sites", "quarantine"), ("sites", "remove"), ("keys", "secret")} <= shown
    assert {"init", "serve", "join", "proxy"} <= {words[0] for words in shown}


@pytest.mark.parametrize(
    "mention", sorted({*re.findall(r"`(fcil [^`]+)`", PAGE), *re.findall(r"`(fcil [^`]+)`", README)})
)
def test_a_command_named_in_the_text_exists(mention: str) -> None:
    command, _, words = resolve(mention.split()[1:])
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_settings_named_on_the_page_exist() -> None:
    table = re.search(r"\| `\[deployment\]` \|(.*)\|", PAGE)
    assert table
    assert set(re.findall(r"`(\w+)`", table[1])) == DeploymentConfig.model_fields.keys()
    tables = ("deployment", "scenario", "model", "federation", "run", "train")
    document = load_config(str(EXAMPLE)).document()
    named = set(re.findall(rf"`((?:{'|'.join(tables)})\.\w+)`", PAGE + README))
    assert len(named) > 10
    for key in named:
        group, _, name = key.partition(".")
        assert name in document[group], key


def literals() -> list[str]:
    """Return all texts in the package, with a mark in the place of each value."""
    found = []
    for path in Path(fcil.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_sentences_of_the_troubleshooting_table_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| `(.*?)` \|", PAGE.partition("## Troubleshooting")[2], re.MULTILINE)
    assert len(rows) > 15
    texts = literals()
    for sentence in rows:
        pieces = [re.escape(piece.strip(" ")) for piece in sentence.split("...") if piece.strip(" ;,")]
        pattern = re.compile(".*".join(pieces), re.DOTALL)
        assert any(pattern.search(text) for text in texts), sentence


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    check(started(unit))
    text = unit.read_text("utf-8")
    kept = ("NoNewPrivileges=true", "ProtectSystem=strict", "ReadWritePaths=", "Restart=on-failure")
    for needed in ("User=", *kept, "Type=notify", "WatchdogSec="):
        assert re.search(rf"^{needed}", text, re.MULTILINE), needed
    assert re.search(r"^KillMode=mixed$", text, re.MULTILINE)  # Flower's processes must outlive the signal


def test_there_is_a_unit_for_each_party() -> None:
    assert [unit.name for unit in UNITS] == ["fcil-proxy.service", "fcil-server.service", "fcil-site.service"]


def test_the_example_of_limits_has_all_of_them_with_their_defaults() -> None:
    path = ROOT / "examples" / "limits.toml"
    assert PartyLimits.load(path) == PartyLimits()
    assert tomllib.loads(path.read_text("utf-8")).keys() == PartyLimits.model_fields.keys()
