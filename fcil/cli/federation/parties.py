"""`fcil federation serve`, `join` and `proxy`: the three parties of a federation, each on its own machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.federation.invited import PartyOptions
from fcil.cli.federation.operation import (
    LogFormat,
    MetricsAt,
    Restored,
    begin_epoch,
    echo,
    log_round,
    operated_server,
    server_events,
)
from fcil.cli.federation.staying import check_device, find_way, stay
from fcil.cli.options import PLACE, Configuration, Device, Loggers, Method, Quiet, Settings, console
from fcil.cli.signals import interruptible, stoppable
from fcil.core.errors import ConfigError, StoppedError
from fcil.core.event_log import EventLog
from fcil.core.pulse import PULSE

if TYPE_CHECKING:
    from fcil.deployment.server.rounds import ServerRunner
    from fcil.deployment.server.run import ServedRun
    from fcil.federation.round_record import RoundRecord
    from fcil.reporting.loggers import Log
    from fcil.reporting.terminal.progress import Course

Keys = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of this party's keys.")
]
Invited = Annotated[
    Path | None,
    typer.Argument(metavar="[INVITATION]", click_type=PLACE, help="The file that `fcil federation init` has written."),
]
ServerAddress = Annotated[
    str | None, typer.Option("--server", metavar="HOST:PORT", help="Address of the server, without an invitation.")
]
State = Annotated[
    Path,
    typer.Option("--state", metavar="DIR", click_type=PLACE, help="Folder for this party's own state."),
]
STATE = Path("state")
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no node keys, for trials on a single machine.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads for training.")]
Limits = Annotated[
    Path | None,
    typer.Option(metavar="FILE", click_type=PLACE, help="TOML file of limits that no server can raise."),
]
Accept = Annotated[
    str | None,
    typer.Option(
        metavar="FINGERPRINT|DIGEST",
        help="Accept the invitation with this fingerprint, or the terms with this digest, without a question.",
    ),
]


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
    restored: Restored = False,
    method: Method = None,
    settings: Settings = None,
    log: Loggers = None,
    log_format: LogFormat = "plain",
    metrics: MetricsAt = None,
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
        from fcil.deployment.invitation import stale
    check_address(address, keys)
    try:
        begin = ServedRun.resume if resume or restored else ServedRun.start
        with stoppable(), begin(parsed, out) as run:
            events = server_events(out, log_format)
            _check_begun(run, events)
            if restored:
                begin_epoch(run, keys, events)
            with (
                Log(log or [], events.warn) as logs,
                hosted(run, address, keys, events.warn) as server,
                operated_server(run, server, metrics, events),
            ):
                logs.begin(parsed.document(), out, run.journal.records)
                about = f"federation {run.federation[:8]}, method {parsed.method_name}, terms {run.terms.digest}"
                events.event(f"serving at {address}: {about}", shown=not quiet)
                outdated = stale(keys, run.terms.digest) if keys is not None else None
                if outdated is not None:
                    events.warn(outdated)
                _train(run, server, logs, events, quiet)
                logs.end(run.finish())
                server.dismiss()
                events.event(f"the federation has ended after round {run.state.round}", shown=False)
                server.live.phase("the federation has ended", ready=False)
    except KeyboardInterrupt:  # before the first round, or when the last one was over
        raise StoppedError(f"interrupted; the same command continues, with --resume if {out} has a round") from None
    if log_format == "plain":
        _conclude(run, quiet)


def _check_begun(run: ServedRun, events: EventLog) -> None:
    """Show the warnings of a run, and refuse one without rounds that are left."""
    for warning in run.warnings:
        events.warn(warning)
    if run.finished:
        raise ConfigError(
            f"{run.folder} has finished all its {run.state.round} rounds; --set deployment.rounds=N adds more"
        )


def _train(run: ServedRun, server: ServerRunner, logs: Log, events: EventLog, quiet: bool) -> None:
    """Run the rounds with progress and logs like a simulation's; Ctrl-C stops after a round."""
    from fcil.reporting.terminal.progress import Progress

    shown = Progress(console, _course(run), quiet)
    plain = events.shape == "plain"
    with contextlib.suppress(KeyboardInterrupt), interruptible() as interrupted, shown:
        server.membership.interrupted = lambda: bool(interrupted)
        for record in run.rounds(server):
            PULSE.beat()
            if plain:
                shown.show(record)
            log_round(events, record, server.membership.names)
            logs.round(record)
            if interrupted and not run.finished:
                break
    if not run.finished:
        raise StoppedError(
            f"interrupted after round {run.state.round}; the same command with --resume continues; sites may stay"
        )


def _course(run: ServedRun) -> Course:
    from fcil.experiment.config import OPEN
    from fcil.reporting.terminal.progress import Course, last_measured

    def place(record: RoundRecord) -> str:
        return f"block {record.task + 1 if record.classes else 0}  {record.classes} classes"

    rounds, last = run.settings.now.rounds, last_measured(run.journal.records)
    total = None if rounds == OPEN else rounds
    return Course(run.config.method_name, total, run.state.round, last, place, "sites")


def _conclude(run: ServedRun, quiet: bool) -> None:
    from fcil.experiment.model_file import FILE as MODEL_FILE

    if quiet:
        typer.echo(str(run.folder))
        return
    typer.echo(_final_accuracy(run))
    typer.echo(f"results: {run.folder / 'summary.json'}   model: {run.folder / MODEL_FILE}")


def _final_accuracy(run: ServedRun) -> str:
    """Return a sentence on the newest accuracy: its round where that is not the last one, and what it covers."""
    from fcil.reporting.terminal.progress import last_measured

    found = last_measured(run.journal.records)
    if found is None:
        return "no accuracy was measured: no site has told of enough hold-out images (see hold_out_images)"
    record = run.journal.records[found.round - 1]
    when = "" if found.round == run.state.round else f" after round {found.round} of {run.state.round}"
    sentence = f"accuracy on the sites' hold-out images{when}: {found.accuracy:.1f} %"
    if found.covered < found.classes:
        sentence += f", on {found.images} images of {found.covered} of {found.classes} classes"
    if record.total:
        blocks = zip(record.correct, record.total, strict=True)
        return (
            f"{sentence}; per block of classes: {', '.join(f'{100 * right / images:.1f}' for right, images in blocks)}"
        )
    return sentence


def join(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FOLDER",
            click_type=PLACE,
            help="FOLDER/<class name>/*.png|jpg, or FOLDER/*.csv; it may grow at any time.",
        ),
    ],
    invitation: Invited = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The site's name, at its first start with an invitation.")
    ] = None,
    server: ServerAddress = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of its keys; by default keys/NAME."),
    ] = None,
    state: State = STATE,
    hold_out: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of each class that is never trained on, to measure accuracy.")
    ] = 0.1,
    least_images: Annotated[int, typer.Option(min=1, help="Images that a folder needs to become a class.")] = 5,
    classes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", click_type=PLACE, help="Only folders with a line in this file become classes."),
    ] = None,
    limits: Limits = None,
    accept: Accept = None,
    insecure: Insecure = False,
    device: Device = "cpu",
    threads: Threads = 1,
    log_format: LogFormat = "plain",
    metrics: MetricsAt = None,
) -> None:
    """Join as a site: train on a folder of images that never leave this machine.

    With an invitation the first start makes the keys, shows the terms and prints a request for the server's operators.
    The command then waits for what is missing and goes on by itself.
    """
    if not data.is_dir():
        raise ConfigError(f"--data {data}: there is no such folder; make one with a folder for each class in it")
    with flower_extra():
        from fcil.deployment.client.class_consent import ClassConsent
        from fcil.deployment.client.site import SiteParty
        from fcil.deployment.keys.make import SiteKeys
        from fcil.deployment.party_limits import PartyLimits
    own_limits = PartyLimits.load(limits)
    check_device(device)
    way = find_way(PartyOptions(invitation, server, keys, name, accept, insecure), "site", state, own_limits)
    own = SiteKeys.load(way.keys, insecure)
    consent = ClassConsent(least_images, classes)
    events = EventLog(state, log_format, echo)
    party = SiteParty(own, data, state, events.say, hold_out, device, threads, own_limits, way.accept, consent)
    stay(party, way, None if insecure else own.private_key, own.ca, events, metrics)


def proxy(
    invitation: Invited = None,
    server: ServerAddress = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of its keys; by default keys/proxy."),
    ] = None,
    state: State = STATE,
    limits: Limits = None,
    accept: Accept = None,
    insecure: Insecure = False,
    device: Device = "cpu",
    threads: Threads = 1,
    log_format: LogFormat = "plain",
    metrics: MetricsAt = None,
) -> None:
    """Join as the proxy: open sealed prototypes, score models on them, sign the choice.

    With an invitation the first start makes the keys, as `join` does.
    """
    with flower_extra():
        from fcil.deployment.keys.make import ProxyKeys
        from fcil.deployment.party_limits import PartyLimits
        from fcil.deployment.proxy import ProxyRunner
    own_limits = PartyLimits.load(limits)
    check_device(device)
    way = find_way(PartyOptions(invitation, server, keys, None, accept, insecure), "proxy", state, own_limits)
    own = ProxyKeys.load(way.keys, insecure)
    events = EventLog(state, log_format, echo)
    party = ProxyRunner(own, state, events.say, device, threads, own_limits, way.accept)
    stay(party, way, None if insecure else own.private_key, own.ca, events, metrics)
