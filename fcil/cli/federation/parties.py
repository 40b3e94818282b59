"""`fcil federation serve`, `join` and `proxy`: the three parties of a federation, each on its own machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE, Configuration, Device, Loggers, Method, Quiet, Settings, console
from fcil.cli.signals import interruptible, stoppable
from fcil.core.console import warn
from fcil.core.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from fcil.deployment.party import Party
    from fcil.deployment.server.rounds import ServerRunner
    from fcil.deployment.server.run import ServedRun
    from fcil.federation.round_record import RoundRecord
    from fcil.reporting.loggers import Log
    from fcil.reporting.terminal.progress import Course

Keys = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of this party's keys.")
]
ServerAddress = Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Address of the server.")]
State = Annotated[
    Path,
    typer.Option("--state", metavar="DIR", click_type=PLACE, help="Folder for this party's own state."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no node keys, for trials on a single machine.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads for training.")]


def serve(
    config: Configuration,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; 0.0.0.0:PORT for all addresses of this machine.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", click_type=PLACE, help="Directory of the run.")],
    keys: Keys = None,
    insecure: Insecure = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out after its last finished round.")
    ] = False,
    method: Method = None,
    settings: Settings = None,
    log: Loggers = None,
    quiet: Quiet = False,
) -> None:
    """Run the server: admit registered sites, run the rounds, keep checkpoints."""
    from fcil.experiment.config import load_config
    from fcil.reporting.loggers import Log, check_loggers

    check_loggers(log or [])
    chosen = [*(settings or []), *([f"method.name={method}"] if method is not None else [])]
    parsed = load_config(config, chosen)
    if insecure == (keys is not None):
        raise ConfigError(
            "--keys DIR is needed (see `fcil federation keys server`), or --insecure in its place, not both"
        )
    with flower_extra():
        from fcil.deployment.flower.process import quieten
        from fcil.deployment.server.run import ServedRun

        quieten(out / "flower")
        from fcil.deployment.flower.serve import check_address, hosted
    check_address(address, keys)
    try:
        with stoppable(), (ServedRun.resume if resume else ServedRun.start)(parsed, out) as run:
            for warning in run.warnings:
                warn(warning)
            if run.finished:
                raise ConfigError(
                    f"{out} has finished all its {parsed.deployment.rounds} rounds; --set deployment.rounds=N adds more"
                )
            with Log(log or [], warn) as logs, hosted(run, address, keys, warn) as server:
                logs.begin(parsed.document(), out, run.journal.records)
                if not quiet:
                    typer.echo(f"serving at {address}: federation {run.federation[:8]}, method {parsed.method_name}")
                _train(run, server, logs, quiet)
                logs.end(run.finish())
                server.dismiss()
    except KeyboardInterrupt:  # before the first round, or when the last one was over
        raise StoppedError(f"interrupted; the same command continues, with --resume if {out} has a round") from None
    _conclude(run, quiet)


def _train(run: ServedRun, server: ServerRunner, logs: Log, quiet: bool) -> None:
    """Run the rounds with progress and logs like a simulation's; Ctrl-C stops after a round."""
    from fcil.reporting.terminal.progress import Progress

    shown = Progress(console, _course(run), quiet)
    with contextlib.suppress(KeyboardInterrupt), interruptible() as interrupted, shown:
        server.membership.interrupted = lambda: bool(interrupted)
        for record in run.rounds(server):
            shown.show(record)
            logs.round(record)
            if interrupted and not run.finished:
                break
    if not run.finished:
        raise StoppedError(
            f"interrupted after round {run.state.round}; the same command with --resume continues; sites may stay"
        )


def _course(run: ServedRun) -> Course:
    from fcil.reporting.terminal.progress import Course

    def place(record: RoundRecord) -> str:
        return f"block {record.task + 1 if record.classes else 0}  {record.classes} classes"

    config, last = run.config, run.summary()["last"]
    return Course(config.method_name, config.deployment.rounds, run.state.round, last, place, "sites")


def _conclude(run: ServedRun, quiet: bool) -> None:
    from fcil.experiment.model_file import FILE as MODEL_FILE

    if quiet:
        typer.echo(str(run.folder))
        return
    summary = run.summary()
    blocks = ", ".join(f"{value:.1f}" for value in (summary["accuracy_matrix"] or [[]])[-1])
    if blocks:
        typer.echo(f"accuracy on the sites' hold-out images: {summary['last']:.1f} %; per block of classes: {blocks}")
    typer.echo(f"results: {run.folder / 'summary.json'}   model: {run.folder / MODEL_FILE}")


def join(
    server: ServerAddress,
    keys: Annotated[Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of this site's keys.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="FOLDER", click_type=PLACE, help="FOLDER/<class name>/*.png|jpg; it may grow at any time."
        ),
    ],
    state: State,
    hold_out: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of each class that is never trained on, to measure accuracy.")
    ] = 0.1,
    insecure: Insecure = False,
    device: Device = "cpu",
    threads: Threads = 1,
) -> None:
    """Join as a site: train on a folder of images that never leave this machine."""
    if not data.is_dir():
        raise ConfigError(f"--data {data}: there is no such folder; make one with a folder for each class in it")
    with flower_extra():
        from fcil.deployment.client.site import SiteParty
        from fcil.deployment.keys.make import SiteKeys
    _check_server(server, insecure)
    own = SiteKeys.load(keys, insecure)
    _check_device(device)
    party = SiteParty(own, data, state, _say, hold_out, device, threads)
    _stay(party, server, None if insecure else own.private_key, own.ca)


def proxy(
    server: ServerAddress,
    keys: Annotated[Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of the proxy's keys.")],
    state: State,
    insecure: Insecure = False,
    device: Device = "cpu",
    threads: Threads = 1,
) -> None:
    """Join as the proxy: open sealed prototypes, score models on them, sign the choice."""
    with flower_extra():
        from fcil.deployment.keys.make import ProxyKeys
        from fcil.deployment.proxy import ProxyRunner
    _check_server(server, insecure)
    own = ProxyKeys.load(keys, insecure)
    _check_device(device)
    _stay(ProxyRunner(own, state, _say, device, threads), server, None if insecure else own.private_key, own.ca)


def _stay(party: Party, server: str, key: Path | None, ca: Path | None) -> None:
    from fcil.deployment.flower.process import quieten

    quieten(party.folder / "flower")
    from fcil.deployment.flower.reconnect import Connection, stay_connected

    try:
        with stoppable():
            stay_connected(party, Connection(server, key, ca), _say)
    except KeyboardInterrupt:
        raise StoppedError("stopped; the same command continues where this one left off") from None
    finally:
        party.close()
    _say("the federation has ended")


def _check_server(server: str, insecure: bool) -> None:
    """Refuse an address that is none, or that of another machine where nothing would be encrypted."""
    from fcil.core.net import check_loopback, split_address

    if insecure:
        check_loopback(server, "--server")
    else:
        split_address(server, "--server")


def _check_device(device: str) -> None:
    from fcil.experiment.run import device_is_there

    if device not in ("cpu", "cuda", "mps") or not device_is_there(device):
        raise ConfigError(f"--device {device}: it is not available on this machine; use cpu")


def _say(line: str) -> None:
    typer.echo(line)
