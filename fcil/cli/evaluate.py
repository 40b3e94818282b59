"""`fcil evaluate`: how well a model does on labelled images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len
from rich.table import Table

from fcil.cli.errors import FAILED
from fcil.cli.options import PLACE, AsJson, Device, Model, console, new_file
from fcil.core.console import warn
from fcil.core.errors import DataError, one_line
from fcil.core.files import write_atomically

if TYPE_CHECKING:
    from fcil.experiment.evaluation import ClassResult, Evaluation
    from fcil.experiment.predictor import Predictor

NAMED = 10  # classes that a sentence lists


def evaluate(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FOLDER|FILE",
            click_type=PLACE,
            help="Images, a folder for each class; for other models a CSV or .npz file with labels.",
        ),
    ],
    as_json: AsJson = False,
    confusion: Annotated[
        Path | None,
        typer.Option("--confusion", metavar="FILE", click_type=PLACE, help="Write the confusion matrix here, as CSV."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Measure a model's accuracy and confusions on labelled images or rows.

    The names of the folders in FOLDER are the classes. An unreadable image or row gets a warning, and the exit code is
    then 1.
    """
    from fcil.data.columns import WORDS
    from fcil.experiment.evaluation import confusion_csv, evaluate_rows
    from fcil.experiment.evaluation import evaluate as evaluated
    from fcil.experiment.model_file import load_model

    if confusion is not None:
        new_file("--confusion", confusion)
    predictor = load_model(model, device)
    if predictor.columns is not None:
        found = evaluate_rows(predictor, data, warn)
    else:
        found = evaluated(predictor, _images(data, predictor), lambda error: warn(str(error)))
    if predictor.columns is not None and not found.images:
        raise DataError(f"--data {data}: no row has a class of the model, {_listed(predictor.class_names)}")
    if not found.images:
        raise DataError(f"--data {data}: no image of the model's classes can be read; the warnings say why")
    if confusion is not None:
        write_atomically(confusion, confusion_csv(found))
    if as_json:
        typer.echo(json.dumps(found.document()))
    else:
        _show(found, confusion, WORDS["image" if predictor.columns is None else predictor.columns.kind], predictor)
    if found.unreadable:
        raise typer.Exit(FAILED)


def _images(data: Path, predictor: Predictor) -> dict[str, list[Path]]:
    """Return the images of each class, once some of them are of the model's classes."""
    from fcil.data.datasets.class_folders import class_folders, pictures_in

    folders = class_folders(data)
    if not {folder.name for folder in folders} & set(predictor.class_names):
        raise DataError(
            f"--data {data}: its folders are {_listed([folder.name for folder in folders])}, and the model's classes "
            f"are {_listed(predictor.class_names)}; at least one folder should have the name of a class "
            "(`fcil federation name` gives the classes of a server's model their names)"
        )
    images: dict[str, list[Path]] = {}
    for folder in folders:
        try:
            images[folder.name] = pictures_in(folder)
        except DataError as error:
            warn(str(error))
    return images


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _show(found: Evaluation, confusion: Path | None, what: str, predictor: Predictor) -> None:
    from fcil.reporting.tables import figure

    table = _aligned("class", what, "right", "accuracy (%)", "most often taken for")
    for row in found.rows:
        table.add_row(_text(row.name), f"{row.images}", f"{row.right}", figure(row.accuracy), _text(_taken(row)))
    console.print(table)
    console.print(
        f"accuracy {figure(found.accuracy)} % ({found.right} of {found.images} {what})   "
        f"mean per class {figure(found.mean_per_class)} %"
    )
    if predictor.threshold:
        _say(f'{what} of the model\'s classes that are "none of these": {sum(row.rejected for row in found.rows)}')
    for row in found.unknown:
        none = f", none of these: {row.rejected}" if predictor.threshold else ""
        facts = f"{what}, not counted above: {row.images}, most often taken for {_taken(row)}{none}"
        _say(f"{row.name} is no class of the model; {facts}")
    if found.absent:
        _say(f"classes of the model without {what}: {', '.join(found.absent)}")
    if found.unreadable:
        _say(f"{what} that could not be read: {found.unreadable}")
    _show_confusion(found, what)
    if confusion is not None:
        _say(f"confusion matrix: {confusion}")


def _show_confusion(found: Evaluation, what: str) -> None:
    """Print the confusion matrix if it fits the terminal."""
    rows = [(name, counts) for name, counts in found.confusion() if any(counts)]
    largest = len(str(max(max(counts) for _, counts in rows)))
    columns = [max(cell_len(one_line(name)), largest) for name in found.classes]
    first = max(cell_len(one_line(name)) for name in ("true class", *(name for name, _ in rows)))
    if first + sum(columns) + 2 * len(columns) + 2 > console.width:
        _say("the confusion matrix does not fit here; --confusion FILE.csv writes it, and --json has it")
        return
    _say("")
    _say(f"{what} of each class (rows) taken for each class (columns):")
    table = _aligned("true class", *map(_text, found.classes))
    for name, counts in rows:
        table.add_row(_text(name), *(f"{count}" if count else "." for count in counts))
    console.print(table)


def _aligned(*columns: str) -> Table:
    table = Table(box=None)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def _taken(row: ClassResult) -> str:
    return "-" if row.taken_for is None else f"{row.taken_for[0]} ({row.taken_for[1]})"


def _text(text: str) -> str:
    return one_line(text)


def _say(text: str) -> None:
    console.print(one_line(text), soft_wrap=True)
