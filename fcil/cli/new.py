"""`fcil new`: from a folder of images, or a table, to an experiment that fits it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fcil.cli.options import PLACE, console, finite
from fcil.core.errors import ConfigError, DataError, one_line
from fcil.core.files import exists, write_new

if TYPE_CHECKING:
    from fcil.data.datasets.survey import Survey
    from fcil.experiment.propose import Proposal
    from fcil.experiment.propose_table import TableSurvey

LISTED = 30  # classes in the table
BROKEN = 5  # broken files that are named
LOOK, MEASURE = 15.0, 2.0  # seconds


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the experiment.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FOLDER|TABLE",
            click_type=PLACE,
            help="Images: a folder per class, or train/ and test/ of these. Or a table: a CSV or Parquet file.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", click_type=PLACE, help="File to write; by default NAME.toml."),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.01, callback=finite, help="Hours that a run may take on this machine.")
    ] = 1.0,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a table: the column of the classes; by default label.")
    ] = None,
) -> None:
    """Write an experiment that fits a folder of images, or a table.

    The TOML file gives a reason for every choice. An existing file is never overwritten.
    """
    from fcil.data.datasets.search_path import is_file, is_folder
    from fcil.data.datasets.table_reader import tables_in
    from fcil.experiment.propose import duration

    place = out or Path(_file_name(name))
    if exists(place):
        raise ConfigError(f"{place}: the file exists; name another one with --out, or remove it")
    if not is_folder(place.parent):
        raise ConfigError(f"{place}: {place.parent} is not a folder; make it first, or name another place")
    made = _of_table if is_file(data) or tables_in(data, "train") else _of_images
    proposal = made(data, name.removesuffix(".toml"), place, hours, label)
    try:
        content = proposal.text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"--data {one_line(str(data))}: the folder's name is not valid UTF-8; rename it") from error
    write_new(place, content)
    limit = f"the limit was {duration(hours)} (--hours)"
    console.print(
        f"\n{place}: at most about {duration(proposal.hours)} per run on this machine; {limit}", soft_wrap=True
    )
    for note in proposal.notes:
        console.print(f"note: {note}", soft_wrap=True)
    _print_next(shlex.quote(str(place)))


def _print_next(file: str) -> None:
    console.print("next:", soft_wrap=True)
    purposes = {"data": "which client will hold what", "plan": "time, memory and traffic", "run": "train"}
    for command, purpose in purposes.items():
        console.print(f"  {f'fcil {command} {file}':{len(file) + 10}}   # {purpose}", soft_wrap=True)


def _of_images(data: Path, name: str, place: Path, hours: float, label: str | None) -> Proposal:
    """Return a proposal for a folder of images, and print what is in it."""
    from fcil.data.datasets.search_path import is_folder
    from fcil.data.datasets.survey import look_at
    from fcil.experiment.propose import propose

    if not is_folder(data):
        raise DataError(
            f"--data {data}: it is neither a table nor a folder; it should be a CSV or Parquet file, or hold a folder "
            "for each class, or train/ and test/"
        )
    if label is not None:
        raise ConfigError(f"--label {label}: it names a column of a table, and {data} is a folder of images")
    survey = look_at(data, LOOK)
    proposal = propose(survey, name, _seen_from(place, data), hours, MEASURE)
    _print_survey(survey)
    return proposal


def _of_table(data: Path, name: str, place: Path, hours: float, label: str | None) -> Proposal:
    """Return a proposal for a table, and print what is in it."""
    from fcil.experiment.propose_table import look_at_table, propose_table

    survey = look_at_table(data, label or "label")
    proposal = propose_table(survey, name, _seen_from(place, data), hours, MEASURE)
    _print_classes(survey, "training rows", "test rows")
    for kind, names in (("numbers", survey.numbers), ("texts", survey.texts)):
        if names:
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            console.print(f"{kind}: {one_line(', '.join(names[:LISTED]))}{more}", soft_wrap=True)
    return proposal


def _file_name(name: str) -> str:
    if not name or name != Path(name).name or not name.isprintable() or name.startswith((".", "-")):
        raise ConfigError(f"NAME {name!r}: it becomes a file, so it should be a plain name; --out takes any place")
    return name if name.endswith(".toml") else f"{name}.toml"


def _seen_from(place: Path, folder: Path) -> str:
    """Return the folder as the file sees it: relative where it lies below, so that both can move together."""
    base, target = place.absolute().parent.resolve(), folder.absolute().resolve()
    return os.path.relpath(target, base) if target.is_relative_to(base) else str(target)


def _print_classes(survey: Survey | TableSurvey, training: str, testing: str) -> None:
    table = Table("class", "name", training, testing, box=None)
    rows = list(zip(survey.class_names, survey.train, survey.test, strict=True))
    for number, (name, train, test) in enumerate(rows[:LISTED]):
        table.add_row(str(number), one_line(name), f"{train:,}", f"{test:,}")
    if len(rows) > LISTED:
        more = rows[LISTED:]
        sums = (sum(train for _, train, _ in more), sum(test for _, _, test in more))
        table.add_row("", f"and {len(more)} more", f"{sums[0]:,}", f"{sums[1]:,}")
    console.print(table)


def _print_survey(survey: Survey) -> None:
    _print_classes(survey, "training images", "test images")
    smallest, median, largest = survey.sides
    looked = "all" if survey.looked == survey.images else f"{survey.looked:,}"
    sound = survey.looked - len(survey.broken)
    parts = "its own test part" if survey.divided else "no test part: a fifth of each class is held out"
    console.print(f"{survey.images:,} images, {looked} looked at; {parts}", soft_wrap=True)
    console.print(f"shorter sides: {smallest} to {largest} pixels, median {median}", soft_wrap=True)
    console.print(f"grey: {survey.grey:,} of {sound:,}; a grey image gets three equal channels", soft_wrap=True)
    for name in survey.broken[:BROKEN]:
        console.print(f"broken: {one_line(name)}", soft_wrap=True)
    if len(survey.broken) > BROKEN:
        console.print(f"broken: {len(survey.broken) - BROKEN} more", soft_wrap=True)
