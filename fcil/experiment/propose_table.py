"""An experiment that fits a table and this machine, as a TOML file with a reason for every choice."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcil.core.errors import DataError
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.search_path import is_file
from fcil.data.datasets.survey import TEST_FRACTION
from fcil.data.datasets.table import open_table
from fcil.data.datasets.table_reader import column_names, tables_in
from fcil.experiment.config import parse_config
from fcil.experiment.cost_estimate import make_plan
from fcil.experiment.propose import (
    EPOCHS,
    FEWEST_ROUNDS,
    MEMORY_SHARE,
    ROUNDS,
    WANTED,
    Proposal,
    Row,
    divided_tasks,
    with_reasons,
)


@dataclass(frozen=True)
class TableSurvey:
    """The contents of a table: rows of each class, and its columns."""

    path: Path
    label: str  # the column of the classes
    class_names: tuple[str, ...]
    train: tuple[int, ...]  # rows by class
    test: tuple[int, ...]
    divided: bool  # it has a test part of its own
    numbers: tuple[str, ...]  # columns
    texts: tuple[str, ...]


def look_at_table(path: Path, label: str) -> TableSurvey:
    """Survey a CSV or Parquet file, or a folder with train* and test* files."""
    names = column_names(path)
    if label not in names:
        raise DataError(f"--label {label}: {path} has no such column; name the one of the classes: {', '.join(names)}")
    divided = not is_file(path) and bool(tables_in(path, "test"))
    fraction = None if divided else TEST_FRACTION
    source = open_table(DataConfig(source="table", path=str(path), label_column=label, test_fraction=fraction))
    if source.classes < 2:
        raise DataError(f"{path} has one class, {source.class_names[0]}; to learn class after class takes two")
    return _survey(path, label, divided, source)


def _survey(path: Path, label: str, divided: bool, source: Source) -> TableSurvey:
    assert source.raw is not None
    columns = source.raw.train.columns
    train, test = (
        tuple(int((part.labels == each).sum()) for each in range(source.classes))
        for part in (source.train, source.test)
    )
    numbers, texts = (
        tuple(column.name for column in columns if (column.texts is None) == plain) for plain in (True, False)
    )
    return TableSurvey(path, label, source.class_names, train, test, divided, numbers, texts)


def propose_table(survey: TableSurvey, name: str, path: str, hours: float, seconds: float) -> Proposal:
    """Return an experiment on a surveyed table that takes so many hours here or fewer, measured for `seconds`.

    `path` is where the file will find the table.
    """
    longest = _tables(survey, name, str(survey.path), ROUNDS, "")
    plan = make_plan(parse_config(_plain(longest)), seconds)
    rounds = min(ROUNDS, max(FEWEST_ROUNDS, int(ROUNDS * hours / max(plan.hours, 1e-9))))
    needed = plan.hours * rounds / ROUNDS
    found = f"for {sum(survey.train):,} rows"
    text = with_reasons(
        [f"# Proposed by `fcil new` after a look at {found[4:]}; every line may be changed."],
        _tables(survey, name, path, rounds, found),
    )
    parse_config(tomllib.loads(text))  # a proposal that is refused would be a mistake of ours
    return Proposal(text, needed, plan.notes)


def _plain(tables: dict[str, list[Row]]) -> dict[str, Any]:
    """Return tables as a configuration."""
    found: dict[str, Any] = {table: {key: value for key, value, _ in rows} for table, rows in tables.items() if table}
    return found | {key: value for key, value, _ in tables[""]}


def _tables(survey: TableSurvey, name: str, path: str, rounds: int, cost: str) -> dict[str, list[Row]]:
    classes = len(survey.class_names)
    held_out = [("test_fraction", TEST_FRACTION, "there is no test part, so a fifth of each class")]
    return {
        "": [
            ("description", f"{name}: {classes} classes", "one line about it"),
            ("seed", 2021, "of everything random; try several before you believe a difference"),
        ],
        "data": [
            ("source", "table", f"columns of numbers: {len(survey.numbers)}, of texts: {len(survey.texts)}"),
            ("path", path, "seen from this file"),
            ("label_column", survey.label, "the column of the classes; data.table.ignore leaves others out"),
            *([] if survey.divided else held_out),
        ],
        "scenario": _scenario_rows(survey, rounds),
        "model": [("name", "mlp", "for rows"), ("width", 64, f"units of each of its four layers {cost}".strip())],
        "train": [
            ("epochs", EPOCHS, "local epochs per round"),
            ("block_epochs", rounds * EPOCHS, "rounds_per_task x epochs; published schedules shrink to it"),
            ("batch_size", 16, "small, because a client has few rows"),
            ("learning_rate", 0.1, "lower it if a run says that its loss is not finite"),
        ],
        "method": [("name", "mosaic", "`fcil list methods` lists the others; `fcil run ... --method NAME` tries one")],
    }


def _scenario_rows(survey: TableSurvey, rounds: int) -> list[Row]:
    classes, fewest, total = len(survey.class_names), min(survey.train), sum(survey.train)
    tasks = divided_tasks(classes)
    clients = min(10, max(3, fewest // WANTED))
    memory = max(2 * classes, round(MEMORY_SHARE * total))
    return [
        ("tasks", list(tasks), f"classes that come together: {classes} in {len(tasks)} steps"),
        ("rounds_per_task", rounds, "a list gives each task a length of its own"),
        ("class_fraction", 1.0, "every client gets rows of all classes of a task"),
        ("split", "disjoint", "every client has rows of its own, as real sites do"),
        ("initial_clients", clients, f"the smallest class has {fewest} training rows"),
        ("joiners", 0, "clients that join at each task"),
        ("participants", max(2, math.ceil(0.4 * clients)), "clients that train in a round"),
        ("memory", memory, f"old rows that a client may keep: 4 % of {total:,}, at least two per class"),
    ]
