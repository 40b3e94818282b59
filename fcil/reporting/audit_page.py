"""The page of an audit: each attacker's figures with a verdict, and private images beside those that were rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

from fcil.experiment.audit import Audit, Finding
from fcil.federation.diagnostics import PrototypeComparison
from fcil.reporting.page.html import Html, joined, note, table, tag
from fcil.reporting.page.prototypes import as_uri, decibels
from fcil.reporting.page.shell import BEGINNING, POLICY, style

COLUMNS = ("attacker", "figure", "value", "by guessing", "verdict")
LIMITS = (
    "An attacker who does more may learn more: inversion of single updates and a server that deviates from the "
    "protocol are not tried here."
)


def audit_page(found: Audit, title: str) -> str:
    """Return the page as one file that loads nothing."""
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
            Html(f"<style>{style()}</style>"),
        ]
    )
    sections = [tag("section", tag("h2", "What each party learns"), _table(found.findings), note(LIMITS))]
    if found.prototypes:
        pictures = tag("div", *map(_pair, found.prototypes), class_="comparisons")
        sections.append(tag("section", tag("h2", "Images that the proxy rebuilds"), pictures))
    body = joined([tag("header", tag("h1", title)), tag("main", *sections)])
    return f'{BEGINNING}\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def lines(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """Return the rows of the table of findings."""
    return [
        (one.party, one.what, _shown(one.value), _shown(one.chance), f"{one.party} {one.verdict}") for one in findings
    ]


def _table(findings: Sequence[Finding]) -> Html:
    return table(COLUMNS, lines(findings))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _pair(one: PrototypeComparison) -> Html:
    cells = [
        tag("div", tag("img", src=as_uri(image), alt=what), tag("small", what))
        for what, image in (("original", one.original), ("rebuilt", one.rebuilt))
    ]
    told = f"PSNR {decibels(one.to_original)} dB"
    return tag("figure", tag("div", *cells, class_="three"), tag("figcaption", told))
