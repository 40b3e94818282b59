"""The command line, run in the test's own process."""

from __future__ import annotations

import io
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import click
import pytest
import typer

from fcil.cli.app import app, main

COMMAND = typer.main.get_command(app)
START = re.compile(r"^(?:\$ )?(?:sudo -u \S+ )?(?:/opt/fcil/bin/)?fcil ")  # how a page begins a command line


def fcil(*arguments: str | Path) -> CompletedProcess[str]:
    """Return how `fcil ARGUMENTS` ended and what it said; an interpreter of its own would take seconds to start."""
    command = ["fcil", *map(str, arguments)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", command)
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return CompletedProcess(command, code, out.getvalue(), err.getvalue())


def resolve(words: list[str]) -> tuple[click.Command, str, list[str]]:
    """Return the command that the first words name, and the words after them."""
    command, name = COMMAND, "fcil"
    while isinstance(command, click.Group):
        name, *words = words
        assert name in command.commands, f"fcil has no command {name}"
        command = command.commands[name]
    return command, name, words


def parse(line: str) -> list[str]:
    """Let the command line take a command apart, with all that is required, without running it; return its words."""
    command, name, words = resolve(shlex.split(START.sub("", line), comments=True))
    command.make_context(name, list(words))
    return words
