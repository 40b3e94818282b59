"""`fcil federation status`: the state of a running server, site or proxy, from the files that it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcil.cli.errors import FAILED
from fcil.cli.options import PLACE, AsJson
from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from fcil.experiment.party_status import Status

PLACES = ("run", "state")  # where a party is looked for


def status(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", click_type=PLACE, help="A server's run, or the --state of a site; by default run or state."
        ),
    ] = None,
    as_json: AsJson = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether it is alive: exit code 0 if so, else 1.")
    ] = False,
) -> None:
    """Show what a server, a site or the proxy does, on its own machine.

    A server shows its rounds, who is connected, last answers, failures and how many classes the accuracy covers.
    """
    from fcil.core.pulse import seconds_since_sign
    from fcil.experiment.party_status import is_alive, read_status

    place = folder or next((Path(name) for name in PLACES if read_status(Path(name))), Path(PLACES[0]))
    found, sign = read_status(place), seconds_since_sign(place)
    alive = is_alive(place)
    if not check and not found:
        raise ConfigError(f"{place} has no status; name the folder of a running server, site or proxy")
    if check:
        typer.echo("alive" if alive else "not running" if sign is None else f"no sign of life for {sign:.0f} s")
        raise typer.Exit(0 if alive else FAILED)
    document = _document(place, found)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    for line in _lines(document):
        typer.echo(line)


def _document(place: Path, found: Status) -> dict[str, Any]:
    """Return the status with what follows from the records and the disk."""
    import shutil

    document: dict[str, Any] = {**found, "disk_free": shutil.disk_usage(place).free}
    if found.get("kind") != "server":
        return document
    from fcil.experiment.run import read_records
    from fcil.federation.round_record import client_tallies, measured

    records = read_records(place)[0]
    tallies = client_tallies(records)
    parties = [{**party, **tallies.get(party.get("number", -1), {})} for party in found.get("parties", [])]
    accuracy = next((one for record in reversed(records) if (one := measured(record)) is not None), None)
    document["parties"] = parties
    document["accuracy"] = accuracy and {
        "percent": round(accuracy.accuracy, 2),
        "round": accuracy.round,
        "images": accuracy.images,
        "classes_covered": accuracy.covered,
        "classes": accuracy.classes,
    }
    return document


def _lines(found: dict[str, Any]) -> list[str]:
    """Return a status in words."""
    state = "" if found["alive"] else "  (not running)"
    head = f"{found['kind']} {found.get('name', '')}".strip()
    lines = [f"{head}, fcil {found.get('version', '?')}, started {found.get('started', '?')}{state}"]
    lines.append(f"{found.get('phase', '?')}, since {found.get('since', '?')}")
    lines += _of_server(found) if found["kind"] == "server" else _of_site(found)
    lines += [f"certificate {name}: {days} days left" for name, days in found.get("certificates", {}).items()]
    lines.append(f"disk: {found['disk_free'] / 1e9:.1f} GB free")
    lines += [f"{warning['time']}  warning: {warning['text']}" for warning in found.get("warnings", [])[-5:]]
    return lines


def _of_server(found: dict[str, Any]) -> list[str]:
    epoch = f", epoch of {found['epoch']}" if "epoch" in found else ""
    lines = [f"federation {found['federation'][:8]}, method {found['method']}{epoch}"]
    lines.append(f"rounds: {found['round']} of {found['rounds']}")
    accuracy = found["accuracy"]
    if accuracy:
        covers = f"{accuracy['classes_covered']} of {accuracy['classes']} classes, {accuracy['images']} images"
        lines.append(f"accuracy: {accuracy['percent']} % after round {accuracy['round']}, on {covers}")
    return [*lines, *(_party(party) for party in found["parties"])]


def _party(party: dict[str, Any]) -> str:
    """Return a line on a party of a server."""
    there = "connected" if party.get("connected") else f"last seen {party.get('last_seen', 'never')}"
    parts = [f"  {party['name']:<20}", "in quarantine" if party.get("quarantined") else there]
    if "answered" in party:
        parts.append(f"last answer {party['answered']} in {party.get('seconds', 0):.1f} s")
        parts.append(f"{party.get('samples', 0)} images, {party.get('up', 0) / 1e6:.2f} MB, fcil {party['release']}")
    counts = ", ".join(
        f"{what} {party[what]}" for what in ("trained", "excluded", "refused", "failed") if what in party
    )
    return "  ".join(filter(None, [*parts, counts]))


def _of_site(found: dict[str, Any]) -> list[str]:
    lines = [f"server: {found.get('server', 'none yet')}, {'' if found.get('connected') else 'not '}connected"]
    if "answered" in found:
        lines.append(f"last answer {found['answered']} in {found['seconds']:.1f} s, {found['bytes'] / 1e6:.2f} MB")
    if "images" in found:
        lines.append(
            f"{found['images']} images of {found['classes']} classes; {found.get('samples', 0)} in the last round"
        )
    return [*lines, f"rounds since the start: {found['trained']}, failures {found['failures']}"]
