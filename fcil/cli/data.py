"""`fcil data`: the classes and samples of each client, before training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fcil.cli.options import PLACE, AsJson, Configuration, Settings, console
from fcil.core.console import warn
from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from fcil.data.datasets.dataset import Source
    from fcil.data.scenario.holdings import ClientRow, Holding, HoldingsTable
    from fcil.data.scenario.scenario import Scenario
    from fcil.experiment.config import Config

LEADING = ("client", "rounds", "trains")
NAMED = 12  # classes of a task that are named


def data(
    config: Configuration,
    round: Annotated[
        int | None, typer.Option("--round", metavar="N", help="Show this round, from 1, instead of every task.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.png", click_type=PLACE, help="Draw a picture of it as well.")
    ] = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Show each client's classes and samples, per task or round.

    Nothing is trained. Broken or missing data and unusual scenarios are reported.
    """
    from fcil.api.holdings import holdings

    if out is not None and out.suffix.lower() != ".png":
        raise ConfigError(f"--out {out}: the picture is a PNG; name a file that ends in .png")
    found = holdings(config, settings=settings or [], round=round)
    ledger, source = found.ledger, found.source
    for warning in found.warnings:
        warn(warning)
    if out is not None:
        found.save(out)
    if as_json:
        typer.echo(json.dumps(_document(ledger, source, round), indent=2))
        return
    if round is None:
        _print_tasks(ledger, source, found.config)
    else:
        _print_round(ledger, source, found.scenario, round)
    if out is not None:
        console.print(f"picture: {out}", soft_wrap=True)


def _document(ledger: HoldingsTable, source: Source, round: int | None) -> dict[str, Any]:
    from fcil.data.scenario.skew import task_skews

    context: dict[str, Any] = {"skew": [asdict(one) for one in task_skews(ledger)]} if round is None else {}
    context |= {} if round is None else {"round": round}
    return {"source": source.name, "class_names": list(source.class_names), **context, **asdict(ledger)}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _print_tasks(ledger: HoldingsTable, source: Source, config: Config) -> None:
    from fcil.data.columns import WORDS
    from fcil.data.scenario.holdings import ABSENT
    from fcil.data.scenario.ownership import split_in_words
    from fcil.data.scenario.skew import task_skews

    shape, what = " x ".join(map(str, source.image_shape)), WORDS[source.kind]
    console.print(
        f"{source.name}: {len(source.train):,} training and {len(source.test):,} test {what} of {source.classes} "
        f"classes, {shape}; seed {config.seed}; {split_in_words(config.scenario)}",
        soft_wrap=True,
    )
    table = Table("task", "rounds", "clients", "S_o / S_b / S_n", "skew", "classes", box=None)
    skews = task_skews(ledger)
    for place, task in enumerate(ledger.tasks):
        groups = [row.holdings[place].group for row in ledger.clients]
        sizes = " / ".join(str(groups.count(name)) for name in ("S_o", "S_b", "S_n"))
        named = _named([*task.classes], source)
        late = [f"{source.class_names[label]} (late, round {context})" for label, context in task.late.items()]
        there = str(len(groups) - groups.count(ABSENT))
        unequal = f"{_number(skews[place].classes)} / {_number(skews[place].sizes)}"
        table.add_row(str(place + 1), f"{task.first}-{task.last}", there, sizes, unequal, ", ".join([named, *late]))
    console.print(table)
    console.print(
        "skew: of the mix of classes (0: all clients alike; near 1: no class in common) / of the number of samples "
        "(Gini; 0: equal)",
        soft_wrap=True,
    )
    _print_clients(ledger)
    console.print(
        "a cell: group, classes held, samples; in the task's last round with the client (S_o gets no new data)",
        soft_wrap=True,
    )
    if config.scenario.groups == "each-round":
        console.print("groups are drawn anew in every round: --round N shows another one", soft_wrap=True)


def _print_clients(ledger: HoldingsTable) -> None:
    """Print what each client holds in each task, as many tasks beside each other as there is room for."""
    from fcil.reporting.terminal.report import Panel, print_panel

    columns = (*LEADING, *(f"task {task + 1}" for task in range(len(ledger.tasks))))
    rows = tuple(
        (str(row.client), _presence(row), f"{row.drawn} x", *map(_cell, row.holdings)) for row in ledger.clients
    )
    console.print()
    print_panel(console, Panel("", columns, rows), len(LEADING))


def _presence(row: ClientRow) -> str:
    return f"{row.joins}-" if row.leaves is None else f"{row.joins}-{row.leaves - 1}"


def _cell(holding: Holding) -> str:
    from fcil.data.scenario.holdings import ABSENT

    if holding.group == ABSENT:
        return "-"
    if not holding.samples:
        return f"{holding.group}  none"
    return f"{holding.group}  {len(holding.samples)}: {sum(holding.samples.values()):,}"


def _print_round(ledger: HoldingsTable, source: Source, scenario: Scenario, round: int) -> None:
    index = round - 1
    arriving = set(scenario.arrivals(index))
    console.print(f"round {round}, of task {scenario.task(index) + 1}", soft_wrap=True)
    table = Table("client", "group", "trains", "new classes", "samples", "classes", box=None)
    for row in ledger.clients:
        (holding,) = row.holdings
        samples = f"{sum(holding.samples.values()):,}"
        names = _named([*holding.samples], source)
        new, trains = ("yes" if row.client in group else "" for group in (arriving, scenario.participants(index)))
        table.add_row(str(row.client), holding.group, trains, new, samples, names)
    console.print(table)


def _named(labels: list[int], source: Source) -> str:
    """Return the names of classes, or of the first of them."""
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return ", ".join(source.class_names[label] for label in labels[:NAMED]) + more
