"""HTML from Python: text is escaped unless it is marked as HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

VOID = {"img", "input", "meta", "link"}


class Html(str):
    """A piece of HTML, which is put into other pieces as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, a sentence that introduces it, and the rest."""

    key: str
    title: str
    lead: str
    body: Html
    absent: bool = False  # the run has nothing to show here, and the body is a note on why


def tag(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """Return an element; a trailing underscore in an attribute's name is dropped, other underscores become hyphens.

    An attribute without a value is left out.

    >>> tag("p", "a < b", class_="lead")
    '<p class="lead">a &lt; b</p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(
        f" {key}" if value is True else f' {key}="{escape(str(value))}"'
        for key, value in given.items()
        if value or key == "value"
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Html:
    """Return pieces one after the other."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def note(sentence: str) -> Html:
    """Return the text for a run that has nothing to show."""
    return tag("p", sentence, class_="note")


def lacking(what: str, kept: bool) -> Html:
    """Return a note that a run does not have something: it is a kept result, or of an earlier version."""
    if kept:
        return note(f"A kept result has no {what}; the directory of a run does.")
    return note(f"This run has no {what}: only newer versions write them down.")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], key: str = "", keys: Sequence[str] = ()) -> Html:
    """Return a table that scrolls by itself where it is too wide or too long; a search looks at the `keys`."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    found = list(rows)
    searched = list(keys) or [""] * len(found)
    body = [
        tag("tr", *(tag("td", cell) for cell in cells), data_key=word)
        for cells, word in zip(found, searched, strict=True)
    ]
    whole = tag("table", tag("thead", head), tag("tbody", *body), id=key)
    return tag("div", whole, class_="scroll", tabindex="0")


def section(part: Section, prefix: str) -> Html:
    """Return a section with its heading."""
    head = tag("h2", part.title)
    return tag("section", head, tag("p", part.lead, class_="lead"), part.body, id=f"{prefix}-{part.key}")
