"""Timeline of the clients: group, participation and failures of each in every round."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from fcil.federation.round_record import DETAILED, ClientTally, RoundRecord, client_tallies
from fcil.reporting.page.figure import WRONG, Figure, Trace, over_rounds, plot, rounds_of, row_height
from fcil.reporting.page.html import Section, joined, lacking, note, table, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Clients over the rounds"
LEAD = (
    "A row per client: when it was there and in which group, in which rounds it trained, and where it failed. "
    "A dotted line stands where a task begins."
)
LONG = 10**6  # from here on a number is shortened
MOST_APART = 40  # rounds or clients whose cells have room between them
DARK = "#1c2430"  # the cells have one colour on light and dark pages, and so have the marks on them
GROUPS = {
    "S_o": ("S_o: no new data", "#9aa5b1"),
    "S_b": ("S_b: new data and a history", "#56b4e9"),
    "S_n": ("S_n: new clients", "#c3a6e0"),
    "site": ("connected", "#56b4e9"),
}


def clients_section(run: RunFacts, prefix: str) -> Section:
    """Return the timeline of a run."""
    groups = memberships(run.records)
    if not groups:
        return Section("clients", TITLE, LEAD, lacking("members of groups", run.kind == "kept"), absent=True)
    seen = {client for members in groups for client in members}
    trained = {client for record in run.records for client in record.participants if client in seen}
    rows = sorted(seen | trained)
    label = "site" if run.kind == "server" else "client"
    failures = run.summary["failures"]
    disputed = {client: one for client, one in client_tallies(run.records).items() if _is_disputed(one)}
    numbers = shortened(dict.fromkeys([*rows, *(one["client"] for one in failures), *disputed]))
    names = [f"{label} {numbers[client]}" for client in rows]
    place = dict(zip(rows, names, strict=True))
    layout = over_rounds(
        run.records,
        "",
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names[::-1],
            "range": _ends(names),
            "showgrid": False,
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "itemsizing": "constant"},
    )
    layout["xaxis"]["showgrid"] = False
    traces = [_presence(run.records, groups, rows, names), *_legend(groups)]
    traces += [_marks(run.records, place, what) for what in ("trained", "failed")]
    drawing = plot(f"{prefix}-timeline", "timeline of clients", Figure(traces, layout, row_height(len(rows)) + 40))
    parts = [drawing]
    if any(record.clients > DETAILED for record in run.records):
        parts.append(note(f"Of more than {DETAILED} clients, those with a lower number are shown."))
    if disputed:
        counts = [(numbers[client], *map(str, one.values())) for client, one in disputed.items()]
        parts += [tag("h3", "Rounds left out"), table((label, "trained", "excluded", "refused", "failed"), counts)]
    if failures:
        cells = [(f"{one['round']}", numbers[one["client"]], one["stage"], one["reason"]) for one in failures[:100]]
        parts += [tag("h3", "Failures"), table(("round", label, "stage", "reason"), cells)]
    return Section("clients", TITLE, LEAD, joined(parts))


def _is_disputed(tally: ClientTally) -> bool:
    """Return whether a client was left out in any round."""
    return bool(tally["excluded"] or tally["refused"] or tally["failed"])


def memberships(records: tuple[RoundRecord, ...]) -> list[dict[int, str]]:
    """Return the group of each client in each round; a record without members is as the one before it."""
    if not records or records[0].members is None:
        return []
    found: list[dict[int, str]] = []
    for record in records:
        if record.members is not None:
            current = {client: group for group, clients in record.members.items() for client in clients}
        found.append(current)
    return found


def shortened(clients: Iterable[int]) -> dict[int, str]:
    """Return the numbers of clients; of long ones, as real sites have, as much as tells them apart.

    >>> shortened([7, 1234567890123, 1299999999999]), shortened([1234567890123, 1234598765432])
    ({7: '7', 1234567890123: '12345…', 1299999999999: '12999…'}, {1234567890123: '123456…', 1234598765432: '123459…'})
    """
    texts = {client: str(client) for client in clients}
    long = [text for client, text in texts.items() if client >= LONG]
    length = next(length for length in itertools.count(5) if len({text[:length] for text in long}) == len(long))
    return {client: text if client < LONG else f"{text[:length]}…" for client, text in texts.items()}


def _ends(names: list[str]) -> list[float]:
    return [-0.5, len(names) - 0.5]


def _presence(
    records: tuple[RoundRecord, ...],
    groups: list[dict[int, str]],
    rows: list[int],
    names: list[str],
) -> Trace:
    codes = {group: number for number, group in enumerate(GROUPS)}
    said = [[GROUPS.get(members.get(client, ""), ("not there", ""))[0] for members in groups] for client in rows]
    steps = len(GROUPS)
    colours = [
        [edge / steps, colour] for number, (_, colour) in enumerate(GROUPS.values()) for edge in (number, number + 1)
    ]
    return {
        "type": "heatmap",
        "x": rounds_of(records),
        "y": names,
        "z": [[codes.get(members.get(client, "")) for members in groups] for client in rows],
        "text": said,
        "zmin": -0.5,
        "zmax": steps - 0.5,
        "colorscale": colours,
        "showscale": False,
        "xgap": 1 if len(records) <= MOST_APART else 0,
        "ygap": 2 if len(rows) <= MOST_APART else 1,
        "hoverongaps": False,
        "hovertemplate": "%{y}, round %{x}: %{text}<extra></extra>",
    }


def _legend(groups: list[dict[int, str]]) -> list[Trace]:
    """Return traces without points, for a heat map has no entries in the legend."""
    there = {group for members in groups for group in members.values()}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": said,
            "marker": {"symbol": "square", "size": 11, "color": colour},
        }
        for group, (said, colour) in GROUPS.items()
        if group in there
    ]


def _marks(records: tuple[RoundRecord, ...], place: dict[int, str], what: str) -> Trace:
    points = [
        (record.round, place[client])
        for record in records
        for client in (record.participants if what == "trained" else [one["client"] for one in record.failures])
        if client in place
    ]
    few = len(records) <= MOST_APART
    edge = {"color": "#ffffff", "width": 1 if few else 0.5}
    looks = {
        "trained": {"symbol": "circle", "size": 7 if few else 3, "color": DARK, "line": edge},
        "failed": {"symbol": "x", "size": 10 if few else 7, "color": WRONG, "line": edge},
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "name": what,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "marker": looks[what],
        "hovertemplate": f"%{{y}} {what} in round %{{x}}<extra></extra>",
        "showlegend": bool(points),
    }
