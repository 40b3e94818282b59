"""The command line, played in the test's own process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from fcil.cli import main


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
