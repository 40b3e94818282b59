"""Detection of new classes: entropy and alarms of each client, beside the true arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcil.experiment.metrics import Detection, detection
from fcil.federation.round_record import RoundRecord
from fcil.reporting.page.figure import RIGHT, TRUTH, WRONG, Figure, Trace, over_rounds, plot
from fcil.reporting.page.html import Html, Section, joined, lacking, note, table, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Detection of new classes"
LEAD = (
    "Entropy of the received model on each client's newest data, when new classes arrived, and when it raised an alarm."
)
FAINT = "#8a94a0"


def detection_section(run: RunFacts, prefix: str) -> Section:
    """Return the curves of a run and a table per client."""
    if run.kind == "server":
        text = "Real sites keep entropies and alarms to themselves, and nobody knows the truth about their data."
        return Section("detection", TITLE, LEAD, note(text), absent=True)
    found = run.summary["detection"]
    delay = "" if found["mean_delay"] is None else f", {found['mean_delay']:.1f} rounds after the arrival on average"
    said = f"{found['hits']} arrivals noticed{delay}; {found['misses']} missed; {found['false_alarms']} false alarms."
    parts: list[Html] = [tag("p", said), tag("p", _rule(run), class_="lead")]
    if not any(record.entropies for record in run.records):
        parts.append(lacking("entropies by client", run.kind == "kept"))
    else:
        parts += _curves(run, prefix)
    clients = sorted({client for record in run.records for client in (*record.alarms, *record.arrivals)})
    if clients:
        columns = ("client", "arrivals", "noticed", "missed", "false alarms", "mean delay")
        parts.append(table(columns, [_row(run.records, client) for client in clients]))
    return Section("detection", TITLE, LEAD, joined(parts))


def of_client(records: Sequence[RoundRecord], client: int) -> Detection:
    """Return how the alarms of one client met its arrivals."""
    own = [
        replace(
            record,
            alarms=[one for one in record.alarms if one == client],
            arrivals=[one for one in record.arrivals if one == client],
        )
        for record in records
    ]
    return detection(own)


def _rule(run: RunFacts) -> str:
    rules = {
        "labels": "An alarm is raised by labels that a client has not had before; the entropy is not used.",
        "oracle": "Clients are told the truth; the entropy is not used.",
        "entropy": "An alarm is raised when the entropy rises by as much as the paper's threshold.",
    }
    return rules.get(str(run.table("method").get("detector")), "")


def _row(records: Sequence[RoundRecord], client: int) -> tuple[str, ...]:
    found = of_client(records, client)
    arrivals = sum(client in record.arrivals for record in records)
    delay = "-" if found["mean_delay"] is None else f"{found['mean_delay']:.1f}"
    counts = (arrivals, found["hits"], found["misses"], found["false_alarms"])
    return (str(client), *map(str, counts), delay)


def _curves(run: RunFacts, prefix: str) -> list[Html]:
    clients = sorted({client for record in run.records for client in record.entropies}, key=lambda one: (len(one), one))
    lines = [_line(run.records, client) for client in clients]
    traces = [*lines, *_marks(run.records)]
    layout = over_rounds(run.records, "entropy (nats)", yaxis={"rangemode": "tozero"})
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
    drawing = plot(f"{prefix}-entropy", "curves of entropy by client, with alarms", Figure(traces, layout, 380))
    options = [tag("option", "all clients", value="")]
    options += [tag("option", f"client {client}", value=client) for client in clients]
    choice = tag("label", "Show ", tag("select", *options, class_="client", data_for=f"{prefix}-entropy"))
    return [tag("p", choice), drawing]


def _line(records: Sequence[RoundRecord], client: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"client {client}",
        "x": [record.round for record in records],
        "y": [record.entropies.get(client) for record in records],
        "line": {"color": FAINT, "width": 1.5},
        "opacity": 0.6,
        "showlegend": False,
        "meta": client,
        "hovertemplate": "client " + client + ", round %{x}: %{y:.2f}<extra></extra>",
    }


def _marks(records: Sequence[RoundRecord]) -> list[Trace]:
    """Return arrivals and alarms as points on the curves; an alarm without an open arrival is false."""
    kinds: dict[str, list[tuple[int, float, str]]] = {"new classes arrive": [], "alarm": [], "false alarm": []}
    open_arrivals: set[int] = set()
    for record in records:
        for client in record.arrivals:
            open_arrivals.add(client)
            kinds["new classes arrive"].append(_point(record, client))
        for client in record.alarms:
            kinds["alarm" if client in open_arrivals else "false alarm"].append(_point(record, client))
            open_arrivals.discard(client)
    looks = {
        "new classes arrive": {"symbol": "triangle-up-open", "size": 13, "color": TRUTH, "line": {"width": 2}},
        "alarm": {"symbol": "circle", "size": 7, "color": RIGHT},
        "false alarm": {"symbol": "x", "size": 9, "color": WRONG},
    }
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": kind,
            "x": [x for x, _, _ in points],
            "y": [y for _, y, _ in points],
            "customdata": [client for _, _, client in points],
            "marker": looks[kind],
            "hovertemplate": f"client %{{customdata}}, round %{{x}}: {kind}<extra></extra>",
        }
        for kind, points in kinds.items()
        if points
    ]


def _point(record: RoundRecord, client: int) -> tuple[int, float, str]:
    return record.round, record.entropies.get(str(client), 0.0), str(client)
