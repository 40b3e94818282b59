"""A federation of real sites: each as a row, the time of its rounds, the accuracy with what it covers, and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fcil.experiment.party_status import PartyFacts, Status
from fcil.federation.round_record import ClientTally, RoundRecord, client_tallies, measured
from fcil.reporting.colours import PALETTE
from fcil.reporting.page.figure import RIGHT, Figure, Trace, over_rounds, plot, rounds_of
from fcil.reporting.page.html import Html, Section, joined, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Federation"
LEAD = "The server's view: who is connected, what each site has answered, how long rounds take, and what went wrong."
COLUMNS = ("party", "state", "last seen (UTC)", "answered", "failed", "refused", "excluded", "images", "s", "MB up")
LEFT_OUT: tuple[Literal["failed"], Literal["refused"], Literal["excluded"]] = ("failed", "refused", "excluded")
NONE = ClientTally(trained=0, excluded=0, refused=0, failed=0)


def sites_section(run: RunFacts, prefix: str) -> Section:
    """Return the state of a served run."""
    parts = [_phase(run.status)] if run.status else []
    warnings = run.status.get("warnings", [])
    if run.status.get("parties"):
        parts.append(_table(run.status["parties"], client_tallies(run.records)))
    if run.records:
        parts += [tag("h3", "Seconds per round"), _seconds(run, prefix)]
        parts += [tag("h3", "Accuracy on hold-out images, and the classes that it covers"), _accuracy(run, prefix)]
    if warnings:
        said = [tag("li", f"{_time(one['time'])}  {one['text']}") for one in reversed(warnings)]
        parts += [tag("h3", "Last warnings"), tag("ul", *said, class_="warnings")]
    return Section("sites", TITLE, LEAD, joined(parts))


def _phase(status: Status) -> Html:
    """Return what the server does, in words."""
    running = status.get("alive", False)
    phase = f"{status.get('phase', '?')}, since {_time(status.get('since', ''))}"
    words = phase if running else f"not running; the last that it did: {phase}"
    return tag("p", f"{words[:1].upper()}{words[1:]}.", class_="note" if running else "note warning")


def _table(parties: Sequence[PartyFacts], tallies: dict[int, ClientTally]) -> Html:
    """Return the parties as rows, those first with which something is wrong."""
    head = tag("tr", *(tag("th", column, scope="col") for column in COLUMNS))
    ordered = sorted(parties, key=lambda party: (party.get("connected", False), not party.get("quarantined")))
    rows = [_row(party, tallies.get(party.get("number", -1), NONE)) for party in ordered]
    whole = tag("table", tag("thead", head), tag("tbody", *rows), class_="parties")
    count = sum(party.get("connected", False) for party in parties)
    said = tag(
        "p",
        f"{count} of {len(parties)} parties are connected. Rounds are counted; images, seconds and "
        "megabytes are those of the last answer.",
        class_="lead",
    )
    return joined([said, tag("div", whole, class_="scroll", tabindex="0")])


def _row(party: PartyFacts, tally: ClientTally) -> Html:
    """Return the row of a party; what failed is marked."""
    there = party.get("connected", False)
    state = "in quarantine" if party.get("quarantined") else "connected" if there else "not connected"
    answered = tally["trained"] - tally["failed"] - tally["refused"]
    cells = [
        tag("td", party.get("name", "?")),
        tag("td", state, class_="" if there and not party.get("quarantined") else "wrong"),
        tag("td", "now" if there else _time(party.get("last_seen", ""))),
        tag("td", "-" if party.get("role") == "proxy" else str(max(answered, 0))),
        *(tag("td", str(tally[key]), class_="wrong" if tally[key] else "") for key in LEFT_OUT),
        tag("td", str(party["samples"]) if "samples" in party else "-"),
        tag("td", f"{party['seconds']:.1f}" if "seconds" in party else "-"),
        tag("td", f"{party['up'] / 1e6:.2f}" if "up" in party else "-"),
    ]
    return tag("tr", *cells)


def _seconds(run: RunFacts, prefix: str) -> Html:
    trace: Trace = {
        "type": "bar",
        "x": rounds_of(run.records),
        "y": [record.seconds for record in run.records],
        "customdata": [_answers(record) for record in run.records],
        "marker": {"color": PALETTE[0]},
        "hovertemplate": "round %{x}: %{y:.1f} s, %{customdata}<extra></extra>",
    }
    return plot(
        f"{prefix}-rounds", "bars of seconds per round", Figure([trace], over_rounds(run.records, "seconds"), 260)
    )


def _answers(record: RoundRecord) -> str:
    ended = f", {_time(record.ended)}" if record.ended else ""
    return f"{record.reports} reports of {record.clients} sites{ended}"


def _accuracy(run: RunFacts, prefix: str) -> Html:
    found = [one for record in run.records if (one := measured(record)) is not None]
    line: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "accuracy",
        "x": [one.round for one in found],
        "y": [round(one.accuracy, 2) for one in found],
        "customdata": [f"{one.covered} of {one.classes} classes, {one.images} images" for one in found],
        "line": {"color": RIGHT, "width": 2},
        "hovertemplate": "round %{x}: %{y:.1f} % on %{customdata}<extra></extra>",
    }
    covered: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "classes covered (%)",
        "x": line["x"],
        "y": [round(100 * one.covered / max(one.classes, 1), 1) for one in found],
        "line": {"color": PALETTE[1], "width": 1, "dash": "dot", "shape": "hv"},
        "hovertemplate": "round %{x}: %{y:.0f} % of the classes<extra></extra>",
    }
    layout = over_rounds(run.records, "%", yaxis={"range": [0, 103]})
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
    return plot(f"{prefix}-measured", "curve of accuracy over the rounds", Figure([line, covered], layout, 300))


def _time(text: str) -> str:
    """Return an ISO time in fewer signs.

    >>> _time("2026-11-19T20:15:03+00:00")
    '2026-11-19 20:15:03'
    """
    return text.partition("+")[0].replace("T", " ") or "-"
