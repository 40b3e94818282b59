"""`fcil new`: from a folder of images to an experiment that fits it."""

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

LISTED = 30  # classes in the table
BROKEN = 5  # broken files that are named
LOOK, MEASURE = 15.0, 2.0  # seconds


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the experiment.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FOLDER",
            click_type=PLACE,
            help="Images: a folder per class, or train/ and test/ of these.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", click_type=PLACE, help="File to write; by default NAME.toml."),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.01, callback=finite, help="How long a run should take on this machine, about.")
    ] = 1.0,
) -> None:
    """Write an experiment that fits a folder of images.

    The TOML file gives a reason for every choice. An existing file is never overwritten.
    """
    from fcil.data.datasets.search_path import is_folder
    from fcil.data.datasets.survey import look_at
    from fcil.experiment.propose import duration, propose

    place = out or Path(_file_name(name))
    if exists(place):
        raise ConfigError(f"{place}: the file exists; name another one with --out, or remove it")
    if not is_folder(place.parent):
        raise ConfigError(f"{place}: {place.parent} is not a folder; make it first, or name another place")
    if not is_folder(data):
        raise DataError(
            f"--data {data}: it is not a folder; it should hold a folder for each class, or train/ and test/"
        )
    survey = look_at(data, LOOK)
    proposal = propose(survey, name.removesuffix(".toml"), _seen_from(place, data), hours, MEASURE)
    try:
        content = proposal.text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"--data {one_line(str(data))}: its name is no text; rename the folder") from error
    write_new(place, content)
    _print_survey(survey)
    console.print(
        f"\n{place}: at most about {duration(proposal.hours)} on this machine, where {duration(hours)} were the aim",
        soft_wrap=True,
    )
    for note in proposal.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print("next:", soft_wrap=True)
    for command, what in (("data", "who will hold what"), ("plan", "what it costs"), ("run", "train")):
        console.print(f"  fcil {command} {shlex.quote(str(place))}   # {what}", soft_wrap=True)


def _file_name(name: str) -> str:
    if not name or name != Path(name).name or not name.isprintable() or name.startswith((".", "-")):
        raise ConfigError(f"NAME {name!r}: it becomes a file, so it should be a plain name; --out takes any place")
    return name if name.endswith(".toml") else f"{name}.toml"


def _seen_from(place: Path, folder: Path) -> str:
    """Return the folder as the file sees it: relative where it lies below, so that both can move together."""
    base, target = place.absolute().parent.resolve(), folder.absolute().resolve()
    return os.path.relpath(target, base) if target.is_relative_to(base) else str(target)


def _print_survey(survey: Survey) -> None:
    table = Table("class", "folder", "training images", "test images", box=None)
    rows = list(zip(survey.class_names, survey.train, survey.test, strict=True))
    for label, (name, train, test) in enumerate(rows[:LISTED]):
        table.add_row(str(label), one_line(name), f"{train:,}", f"{test:,}")
    if len(rows) > LISTED:
        more = rows[LISTED:]
        sums = (sum(train for _, train, _ in more), sum(test for _, _, test in more))
        table.add_row("", f"and {len(more)} more", f"{sums[0]:,}", f"{sums[1]:,}")
    console.print(table)
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
