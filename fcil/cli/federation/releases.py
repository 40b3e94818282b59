"""`fcil federation release` and `rollback`: which model of a server is the current release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE
from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from fcil.deployment.server.release_store import ReleaseStore

Run = Annotated[Path, typer.Option("--run", metavar="DIR", click_type=PLACE, help="Directory of the server's run.")]
Keys = Annotated[
    Path,
    typer.Option(
        "--keys", metavar="DIR", click_type=PLACE, help="Folder of the server's keys, which has the operators' journal."
    ),
]
RUN, KEYS = Path("run"), Path("keys/server")


def release(
    run: Run = RUN,
    keys: Keys = KEYS,
    show: Annotated[bool, typer.Option("--list", help="Only list the releases; * is the current one.")] = False,
) -> None:
    """Freeze a model after the next round that is evaluated, and send it to all sites.

    The server also releases by itself at the end of a block and every deployment.release_every rounds.
    """
    store = _store(run)
    if show:
        _list(store)
        return
    note(run, keys, "release asked for")
    store.ask()
    typer.echo("asked for; the server makes it after its next round")


def rollback(
    number: Annotated[
        int, typer.Argument(metavar="N", min=1, help="Number of a release, also one that was kept back.")
    ],
    run: Run = RUN,
    keys: Keys = KEYS,
) -> None:
    """Make another release the current one.

    Sites get it after the server's next round, or within seconds if the server is idle. Training goes on unchanged.
    """
    store = _store(run)
    entry = store.entry(number)
    store.model_file(number)  # raises if it is gone
    note(run, keys, "rolled back", release=number, digest=entry.digest)
    store.choose(number)
    typer.echo(f"{entry}, is the current one; sites get it after the server's next round")


def _store(run: Path) -> ReleaseStore:
    if not run.is_dir():
        raise ConfigError(f"--run {run}: there is no such folder; name the directory of `fcil federation serve --out`")
    with flower_extra():
        from fcil.deployment.server.release_store import ReleaseStore
    return ReleaseStore(run)


def note(run: Path, keys: Path, event: str, **facts: Any) -> None:
    """Write an operator's act to the journal beside the server's keys, or in its run's directory without them."""
    with flower_extra():
        from fcil.deployment.keys.files import kind_of
        from fcil.deployment.server import audit_log
    audit_log.note(keys if kind_of(keys) == "server" else run, event, **facts)


def _list(store: ReleaseStore) -> None:
    choice = store.choice
    for entry in store.entries:
        mark = "*" if choice is not None and entry.number == choice.number else " "
        typer.echo(f"{mark} {entry}{f', kept back: {entry.kept_back}' if entry.kept_back else ''}")
    if choice is None:
        typer.echo("no release yet")
