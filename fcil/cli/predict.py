"""`fcil predict`: the classes of images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len

from fcil.cli.errors import FAILED
from fcil.cli.options import Device, Model
from fcil.core.console import warn
from fcil.core.errors import ConfigError, DataError, one_line

if TYPE_CHECKING:
    from fcil.experiment.predictor import Prediction, Predictor

    Found = Iterator[tuple[Path, Prediction]]

TOP = 3


def predict(
    model: Model,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Image files, and folders that are searched for them.")
    ],
    top: Annotated[
        int | None, typer.Option(min=1, help="How many of the likeliest classes to show; by default 3.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per image, a line each.")] = False,
    device: Device = "cpu",
) -> None:
    """Print the likeliest classes of images, with probabilities.

    An unreadable image gets a warning, and the exit code is then 1.
    """
    from fcil.experiment.model_file import load_model

    if "" in images:
        raise ConfigError('IMAGE "": the path is empty; name a file, or . for the working directory')
    predictor = load_model(model, device)
    shown = _shown(top, predictor)
    skipped: list[DataError] = []
    files = list(_files(images, skipped))
    lone = len(images) == 1 and files == [Path(images[0])]

    def unreadable(error: DataError) -> None:
        if lone:
            raise error
        warn(str(error))
        skipped.append(error)

    found = predictor.stream(files, unreadable, shown)
    begun = False
    for line in _json(found) if as_json else _table(found, files, predictor, shown):
        typer.echo(line)
        begun = True
    if not begun:
        raise DataError(f"IMAGE: none of the {len(skipped)} named can be read as images; the warnings say why")
    if skipped:
        raise typer.Exit(FAILED)


def _shown(top: int | None, predictor: Predictor) -> int:
    classes = len(predictor.class_names)
    if top is not None and top > classes:
        raise ConfigError(f"--top {top}: the model has {classes} classes; it should be {classes} or less")
    return top or min(TOP, classes)


def _files(images: Sequence[str], skipped: list[DataError]) -> Iterator[Path]:
    """Yield the files named and those in the folders named; a folder without images is skipped beside others."""
    from fcil.data.datasets.class_folders import pictures_in
    from fcil.data.datasets.search_path import is_folder

    for name in images:
        place = Path(name)
        try:
            yield from pictures_in(place) if is_folder(place) else [place]
        except DataError as error:
            if len(images) == 1:
                raise
            warn(str(error))
            skipped.append(error)


def _json(found: Found) -> Iterator[str]:
    for file, prediction in found:
        ranking = [{"class": name, "probability": probability} for name, probability in prediction.ranking]
        yield json.dumps({"file": str(file), "predictions": ranking})


def _table(found: Found, files: Sequence[Path], predictor: Predictor, top: int) -> Iterator[str]:
    """Yield the lines of a table; how wide its columns are is known before anything is predicted."""
    headings = ["class"] if top == 1 else [f"class {place + 1}" for place in range(top)]
    first = max(map(_length, ["file", *map(str, files)]))
    name = max(map(_length, [*headings, *predictor.class_names]))

    def line(file: str, pairs: Sequence[tuple[str, str]]) -> str:
        cells = (f"{_padded(label, name)}  {value:>11}" for label, value in pairs)
        return "  ".join([_padded(file, first), *cells])

    for number, (file, prediction) in enumerate(found):
        if number == 0:
            yield line("file", [(heading, "probability") for heading in headings])
        yield line(str(file), [(label, f"{value:.3f}") for label, value in prediction.ranking])


def _length(text: str) -> int:
    return cell_len(one_line(text))


def _padded(text: str, width: int) -> str:
    return one_line(text) + " " * (width - _length(text))
