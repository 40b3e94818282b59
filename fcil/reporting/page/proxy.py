"""Teachers on offer in each round, and the proxy's score of the model it keeps."""

from __future__ import annotations

from collections.abc import Sequence

from fcil.federation.round_record import RoundRecord
from fcil.reporting.colours import PALETTE
from fcil.reporting.page.figure import Figure, Trace, over_rounds, plot, rounds_of
from fcil.reporting.page.html import Html, Section, joined, lacking, note, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Teachers and the proxy's choice"
LEAD = (
    "Accuracy of the proxy's best model on its rebuilt images, and the old models that teach participants in each "
    "round. Where there is a proxy, it chose them in the round before."
)


def proxy_section(run: RunFacts, prefix: str) -> Section:
    """Return the choices of a run."""
    parts: list[Html] = []
    scored = [record for record in run.records if "score" in record.proxy]
    if scored:
        parts += [tag("h3", "Score of the proxy's best model"), _scores(run, scored, prefix)]
    elif any(record.proxy for record in run.records):
        parts.append(note("The proxy has rebuilt no image yet, so it has scored no model."))
    elif run.kind != "kept":
        parts.append(note("This method has no proxy server."))
    if any(record.teachers for record in run.records):
        parts += [tag("h3", "Models on offer"), _offers(run, prefix)]
    elif any(record.model for record in run.records):
        parts.append(note("No old model was on offer to the participants of this run."))
    else:
        parts.append(lacking("names of the models on offer", run.kind == "kept"))
    offers = any(record.teachers for record in run.records)
    return Section("proxy", TITLE, LEAD, joined(parts), absent=not scored and not offers)


def origins(records: Sequence[RoundRecord]) -> list[dict[str, int]]:
    """Return for each round the number of rounds after which each teacher was the global model.

    A model that was never sent was the last one of a block: the head grew before the next round sent it.
    """
    sent: dict[str, int] = {}
    growth = 0
    found = []
    for before, record in zip((None, *records), records, strict=False):
        if before is not None and record.classes != before.classes:
            growth = record.round - 1
        sent.setdefault(record.model, record.round - 1)
        found.append({what: sent.setdefault(digest, growth) for what, digest in record.teachers.items()})
    return found


def _scores(run: RunFacts, scored: Sequence[RoundRecord], prefix: str) -> Html:
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "score",
        "x": rounds_of(scored),
        "y": [round(100 * record.proxy["score"], 1) if record.proxy["score"] >= 0 else None for record in scored],
        "customdata": [int(record.proxy.get("probes", 0)) for record in scored],
        "line": {"color": PALETTE[0], "width": 2, "shape": "hv"},
        "hovertemplate": "round %{x}: %{y} % of %{customdata} images<extra></extra>",
    }
    layout = over_rounds(run.records, "right (%)", yaxis={"range": [0, 103]})
    return plot(f"{prefix}-score", "curve of the kept model's score", Figure([line], layout, 260))


def _offers(run: RunFacts, prefix: str) -> Html:
    found = origins(run.records)
    titles = {"current": "of the newest block", "last": "of the block before"}
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": titles[what],
            "x": [record.round for record, known in zip(run.records, found, strict=True) if what in known],
            "y": [known[what] for known in found if what in known],
            "customdata": [record.teachers[what][:8] for record in run.records if what in record.teachers],
            "marker": {"size": 9, "color": PALETTE[place], "symbol": ("circle", "square")[place]},
            "hovertemplate": "round %{x}: the model after %{y} rounds, %{customdata}<extra>%{fullData.name}</extra>",
        }
        for place, what in enumerate(titles)
        if any(what in known for known in found)
    ]
    highest = max(number for known in found for number in known.values())
    ticks = {"dtick": 1} if highest <= 8 else {}
    layout = over_rounds(run.records, "model after rounds", yaxis={"rangemode": "tozero", **ticks})
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
    return plot(f"{prefix}-teachers", "which models were on offer in each round", Figure(traces, layout, 300))
