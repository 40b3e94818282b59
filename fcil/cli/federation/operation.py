"""What keeps a party of a federation operable: its log, its status, its metrics, its signs of life, and SIGHUP."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.core.event_log import EventLog, Shape
from fcil.core.net import is_loopback, split_address

if TYPE_CHECKING:
    from fcil.deployment.metrics import PartyFigures
    from fcil.deployment.party import Party
    from fcil.deployment.server.rounds import ServerRunner
    from fcil.deployment.server.run import ServedRun
    from fcil.federation.round_record import RoundRecord

LogFormat = Annotated[
    Shape, typer.Option("--log-format", help="Lines on the screen: plain, text (with time and level) or json.")
]
MetricsAt = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Answer /metrics for Prometheus, /healthz and /readyz there."),
]
Restored = Annotated[
    bool, typer.Option("--restored", help="Resume a run that was restored from a backup; parties ahead of it go along.")
]
DAY = 24 * 3600.0


def echo(line: str, level: int = logging.INFO) -> None:
    """Show a line of a site or the proxy."""
    typer.echo(line)


def server_events(folder: Path, shape: Shape) -> EventLog:
    """Return the log of a server, whose plain warnings are on the error stream."""
    return EventLog(
        folder, shape, lambda line, level: typer.echo(line, err=shape == "plain" and level >= logging.WARNING)
    )


def begin_epoch(run: ServedRun, keys: Path | None, events: EventLog) -> None:
    """Begin a new epoch of a federation whose server was restored from a backup."""
    run.begin_epoch(keys)
    events.warn(f"restored: the federation goes on after round {run.state.round} of the backup, in a new epoch")


def log_round(events: EventLog, record: RoundRecord, names: Mapping[int, str]) -> None:
    """Log a finished round and its failures, of which plain lines are shown by the progress of the run."""
    from fcil.federation.round_record import measured

    for failure in record.failures:
        facts = {"round": record.round, "site": names.get(failure["client"], "?"), "stage": failure["stage"]}
        events.event(failure["reason"], logging.WARNING, shown=False, **facts)
    found = measured(record)
    words = f"round {record.round}: {record.reports} reports of {record.clients} sites in {record.seconds:.1f} s"
    events.event(
        words + (f", accuracy {found.words}" if found else ""),
        shown=False,
        round=record.round,
        sites=record.clients,
        reports=record.reports,
        seconds=record.seconds,
        bytes_up=record.bytes_up,
        bytes_down=record.bytes_down,
        accuracy=round(found.accuracy, 2) if found else None,
    )


@contextmanager
def operated_server(run: ServedRun, server: ServerRunner, metrics: str | None, events: EventLog) -> Iterator[None]:
    """Keep a server's status, certificates and logs in order, and give signs of life and metrics."""
    from fcil.deployment.flower.process import rotate_log
    from fcil.deployment.flower.serve import FOLDER, check_certificates
    from fcil.deployment.metrics import PartyFigures

    acts = (server.live.look, _Daily(lambda: check_certificates(server)), lambda: rotate_log(run.folder / FOLDER))
    figures = lambda: PartyFigures(run.folder, server.live.document, lambda: run.journal.records)  # noqa: E731
    with _operated(run.folder, figures, metrics, events, acts, server.reload):
        try:
            yield
        finally:
            if not run.finished:
                server.live.phase(f"stopped after round {run.state.round}", ready=False)


@contextmanager
def operated_party(party: Party, metrics: str | None, events: EventLog) -> Iterator[None]:
    """Keep the status and logs of a site or the proxy, and give signs of life and metrics."""
    from fcil.deployment.flower.process import rotate_log
    from fcil.deployment.flower.reconnect import FOLDER
    from fcil.deployment.metrics import PartyFigures

    files = {party.authority.name: party.authority} if party.authority else {}
    acts = (_Daily(lambda: party.own.count_days(files)), lambda: rotate_log(party.folder / FOLDER))
    figures = lambda: PartyFigures(party.folder, lambda: party.own.status)  # noqa: E731
    with _operated(party.folder, figures, metrics, events, acts, party.leaving.set):
        yield


@contextmanager
def _operated(
    folder: Path,
    figures: Callable[[], PartyFigures],
    metrics: str | None,
    events: EventLog,
    acts: Sequence[Callable[[], None]],
    reload: Callable[[], None],
) -> Iterator[None]:
    """Give signs of life and metrics until the block ends; on SIGHUP certificates are read again."""
    from fcil.core.pulse import Signs

    with ExitStack() as stack:
        stack.callback(events.close)
        if metrics is not None:
            from fcil.deployment.metrics import Exporter

            stack.enter_context(Exporter(metrics, figures()))
            if not is_loopback(split_address(metrics, "--metrics")[0]):
                events.warn(f"--metrics {metrics}: anyone who reaches this machine can read the names of sites there")
        hung_up: list[int] = []  # by the handler, which may interrupt anything; the thread of the signs follows
        former = signal.signal(signal.SIGHUP, lambda number, _: hung_up.append(number))
        stack.callback(signal.signal, signal.SIGHUP, former)

        def follow() -> None:
            if hung_up:
                hung_up.clear()
                reload()

        stack.enter_context(Signs(folder, (*acts, follow)))
        yield


class _Daily:
    """An act that is done at once and then every day."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.due = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + DAY
            self.act()
