"""The whole configuration of a run, and the command that repeats it."""

from __future__ import annotations

import json

from fcil.reporting.page.html import Html, Section, joined, note, table, tag
from fcil.reporting.run_facts import RunFacts, flat

TITLE = "Configuration"


def settings_section(run: RunFacts, prefix: str) -> Section:
    """Return the settings of a run; command and file have a button that copies them."""
    parts: list[Html] = []
    if run.command:
        parts.append(_copied(run.command, f"{prefix}-command"))
    if run.kind == "server":
        parts.append(
            note(
                "The server was begun with fcil federation serve and this configuration; its sites have their own data."
            )
        )
    if run.document:
        toml = tag("details", tag("summary", "As a TOML file"), _copied(run.document, f"{prefix}-toml"))
        parts.append(toml)
    rows = [(key, json.dumps(value)) for key, value in flat(run.config)]
    keys = tag("summary", f"All {len(rows)} settings")
    parts.append(tag("details", keys, table(("key", "value"), rows)))
    return Section("settings", TITLE, "The settings of the run, and the command that repeats it.", joined(parts))


def _copied(text: str, key: str) -> Html:
    button = tag("button", "Copy", type="button", class_="copy", data_for=key)
    return tag("div", tag("pre", text, id=key), button, class_="copied")
