"""Errors and warnings of the command line: one line each on the error stream, and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

import click
import typer

from fcil.core.console import warn
from fcil.core.errors import FcilError, FederationError, StoppedError, disk_problem, one_line, system_words

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = {  # the table in docs/commands.md; a service starts again after FAILED alone
    DONE: "all done",
    FAILED: "not done, or in part, for a cause that may pass: a federation stopped, a run of a comparison failed, an "
    "image could not be read, a disk is full or fails",
    REFUSED: "refused; one sentence names the key or file, what was found and what would be right",
    INTERRUPTED: "stopped by Ctrl-C or SIGTERM",
}
_GUESS = re.compile(r"\.? Did you mean '?([^',?]+)'?[^?]*\?")  # the first of the names that click or typer suggests
NO_MEMORY = ("can't allocate memory", "out of memory")  # how torch says it, as a RuntimeError


@contextlib.contextmanager
def in_sentences() -> Iterator[None]:
    """Turn errors of the user or the system into a sentence and an exit code; bugs keep their traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _say_warning
        try:
            yield
        except StoppedError as error:
            _leave(str(error), INTERRUPTED)
        except FederationError as error:
            _leave(f"the federation stopped: {error}", FAILED)
        except FcilError as error:
            _leave(f"error: {error}", FAILED if disk_problem(error) else REFUSED)
        except click.UsageError as error:
            if not error.format_message():  # no words at all, for which the help was shown
                sys.exit(REFUSED)
            _leave(f"error: {_objection(error)}", REFUSED)
        except OSError as error:
            _leave(f"error: {system_words(error)}", FAILED if disk_problem(error) else REFUSED)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
                raise
            _leave(
                "error: there is not enough memory for this; make scenario, model.width or train.batch_size smaller, "
                "or use fewer run.workers",
                REFUSED,
            )


def _objection(error: click.UsageError) -> str:
    """Return the sentence for a usage error: the problem, the nearest name, and the help to read."""
    text = _GUESS.sub(lambda found: f"; did you mean {found[1]}?", error.format_message()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        nearest = difflib.get_close_matches(error.option_name, error.possibilities, 1, 0.0)
        text = f"{error.message.rstrip('.')}; did you mean {nearest[0]}?"
    command = error.ctx.command_path if error.ctx else "fcil"
    joint = " See" if text.endswith("?") else "; see"
    return f"{text[:1].lower()}{text[1:]}{joint} `{command} --help`"


def _leave(sentence: str, code: int) -> None:
    with contextlib.suppress(OSError):
        typer.echo(one_line(sentence), err=True)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, which Python would report once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a plugin warning as one line, and any other as Python does."""
    from fcil.methods import PluginWarning

    if issubclass(category, PluginWarning):
        warn(str(message))
    else:
        typer.echo(warnings.formatwarning(message, category, filename, lineno, line), file or sys.stderr, nl=False)
