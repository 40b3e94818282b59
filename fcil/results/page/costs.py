"""Bytes sent per round, and the seconds of each round's phases."""

from __future__ import annotations

from fcil.results.facts import RunFacts
from fcil.results.page.figure import PALETTE, Figure, Trace, over_rounds, plot, rounds_of
from fcil.results.page.html import Html, Section, joined, lacking, tag

TITLE = "Traffic and time"
LEAD = "What all clients together sent and received in each round, and where its time went."
PHASES = ("announce", "play", "aggregate", "proxy", "evaluate")
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


def costs_section(run: RunFacts, prefix: str) -> Section:
    """Return the costs of a run."""
    if not run.records:
        return Section("costs", TITLE, LEAD, lacking("figures by round", run.kind == "kept"))
    parts: list[Html] = [tag("h3", "Megabytes per round"), _traffic(run, prefix), tag("h3", "Seconds per phase")]
    if run.timings:
        parts.append(_seconds(run, prefix))
        parts.append(_totals(run))
    else:
        parts.append(lacking("seconds by phase", kept=False))
    return Section("costs", TITLE, LEAD, joined(parts))


def _traffic(run: RunFacts, prefix: str) -> Html:
    columns = {
        "from the server to clients": [record.bytes_down / 1e6 for record in run.records],
        "from clients to the server": [record.bytes_up / 1e6 for record in run.records],
    }
    traces = [_bar(name, rounds_of(run.records), values, place) for place, (name, values) in enumerate(columns.items())]
    layout = over_rounds(run.records, "MB", barmode="stack", legend=LEGEND)
    return plot(f"{prefix}-bytes", "bars of megabytes per round", Figure(traces, layout, 300))


def _seconds(run: RunFacts, prefix: str) -> Html:
    known = {phase for seconds in run.timings.values() for phase in seconds}
    phases = [*(phase for phase in PHASES if phase in known), *sorted(known - set(PHASES))]
    rounds = sorted(run.timings)
    traces = [
        _bar(phase, [number + 1 for number in rounds], [run.timings[number].get(phase, 0) for number in rounds], place)
        for place, phase in enumerate(phases)
    ]
    layout = over_rounds(run.records, "seconds", barmode="stack", legend=LEGEND)
    return plot(f"{prefix}-seconds", "bars of seconds per phase and round", Figure(traces, layout, 300))


def _totals(run: RunFacts) -> Html:
    totals: dict[str, float] = {}
    for seconds in run.timings.values():
        for phase, value in seconds.items():
            totals[phase] = totals.get(phase, 0.0) + value
    whole = sum(totals.values()) or 1.0
    told = ", ".join(f"{phase} {value:.1f} s ({100 * value / whole:.0f} %)" for phase, value in totals.items())
    return tag("p", f"In all: {told}.", class_="lead")


def _bar(name: str, x: list[int], y: list[float], place: int) -> Trace:
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": [round(value, 3) for value in y],
        "marker": {"color": PALETTE[place % len(PALETTE)]},
        "hovertemplate": "round %{x}: %{y}<extra>%{fullData.name}</extra>",
    }
