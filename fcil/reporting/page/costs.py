"""Bytes sent per round, and the seconds of each round's phases."""

from __future__ import annotations

from collections.abc import Sequence

from fcil.federation.round_record import RoundRecord
from fcil.reporting.colours import COLOURS
from fcil.reporting.page.figure import Figure, Trace, over_rounds, plot, rounds_of
from fcil.reporting.page.html import Html, Section, joined, lacking, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Traffic and time"
LEAD = "Megabytes that all clients together sent (up) and received (down) per round, and seconds per phase."
PHASES = (
    *("announce", "train", "aggregate", "proxy", "evaluate", "teacher", "entropies", "herding", "perturbation"),
    *("inversion", "encoding", "saving"),
)
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


def costs_section(run: RunFacts, prefix: str) -> Section:
    """Return the costs of a run."""
    if not run.records:
        return Section("costs", TITLE, LEAD, lacking("figures by round", run.kind == "kept"), absent=True)
    parts: list[Html] = [tag("h3", "Megabytes per round"), _traffic(run, prefix), tag("h3", "Seconds per phase")]
    if run.timings:
        parts.append(_seconds(run, prefix))
        parts.append(_totals(run))
    else:
        parts.append(lacking("seconds by phase", kept=False))
    return Section("costs", TITLE, LEAD, joined(parts))


def _traffic(run: RunFacts, prefix: str) -> Html:
    columns = _by_phase(run.records) or {
        "down": [record.bytes_down / 1e6 for record in run.records],
        "up": [record.bytes_up / 1e6 for record in run.records],
    }
    traces = [_bar(name, rounds_of(run.records), values) for name, values in columns.items()]
    layout = over_rounds(run.records, "MB", barmode="stack", legend=LEGEND)
    return plot(f"{prefix}-bytes", "bars of megabytes per round", Figure(traces, layout, 300))


def _by_phase(records: Sequence[RoundRecord]) -> dict[str, list[float]]:
    """Return the megabytes per round of each phase and direction; runs of earlier versions know no phases."""
    found: dict[str, list[float]] = {}
    for phase in _in_order({phase for record in records for phase in record.traffic}):
        weights = [record.traffic.get(phase, (0, 0)) for record in records]
        columns = {
            f"{phase}, down": [down / 1e6 for _, down in weights],
            f"{phase}, up": [up / 1e6 for up, _ in weights],
        }
        found |= {name: values for name, values in columns.items() if any(values)}
    return found


def _in_order(phases: set[str]) -> list[str]:
    return [*(phase for phase in PHASES if phase in phases), *sorted(phases - set(PHASES))]


def _seconds(run: RunFacts, prefix: str) -> Html:
    timings, rounds = run.timings, sorted(run.timings)
    traces = [
        _bar(phase, rounds, [timings[number].get(phase, 0) for number in rounds])
        for phase in _in_order({phase for seconds in timings.values() for phase in seconds})
    ]
    layout = over_rounds(run.records, "seconds", barmode="stack", legend=LEGEND)
    return plot(f"{prefix}-seconds", "bars of seconds per phase and round", Figure(traces, layout, 300))


def _totals(run: RunFacts) -> Html:
    totals: dict[str, float] = {}
    for seconds in run.timings.values():
        for phase, value in seconds.items():
            totals[phase] = totals.get(phase, 0.0) + value
    whole = sum(totals.values()) or 1.0
    told = ", ".join(
        f"{phase} {totals[phase]:.1f} s ({100 * totals[phase] / whole:.0f} %)" for phase in _in_order(set(totals))
    )
    return tag("p", f"In all: {told}.", class_="lead after")


def _bar(name: str, x: list[int], y: list[float]) -> Trace:
    """Return the bars of a phase; a phase has one colour in all figures, and its uploads are hatched."""
    phase, _, direction = name.partition(", ")
    place = PHASES.index(phase) if phase in PHASES else len(PHASES) + (phase == "up")
    marker: dict[str, object] = {"color": COLOURS[place]}
    if direction == "up":
        marker["pattern"] = {"shape": "/", "size": 5, "solidity": 0.4}
    return {
        "type": "bar",
        "name": name,
        "x": x,
        "y": [round(value, 3) for value in y],
        "marker": marker,
        "hovertemplate": "round %{x}: %{y}<extra>%{fullData.name}</extra>",
    }
