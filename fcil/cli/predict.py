"""`fcil predict`: the classes of images, of the rows of a table, or of series."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.cells import cell_len

from fcil.cli.errors import FAILED
from fcil.cli.options import Device, Model
from fcil.cli.signals import stoppable
from fcil.core.console import warn
from fcil.core.errors import ConfigError, DataError, one_line


class RowPlace(NamedTuple):
    """A row of a file, counted from 1."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file} {self.row}"


if TYPE_CHECKING:
    from fcil.experiment.predictor import Prediction, Predictor

    Found = Iterable[tuple[Path | RowPlace, Prediction]]

TOP = 3


def predict(
    model: Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Image files and folders of them; for other models CSV or .npz files."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="How many of the likeliest classes to show; by default 3.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per image or row, a line each.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the likeliest class of each as CSV.")] = False,
    serve: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer requests at http://HOST:PORT/predict instead.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Print the likeliest classes of images, or of each row of a table, with probabilities.

    Where no class is likely enough, the answer is "none of these". An unreadable image or row gets a warning, and the
    exit code is then 1. With --serve the model is replaced as soon as there is a newer release, round or file.
    """
    from fcil.experiment.model_file import load_model

    if serve is not None:
        _serve(model, serve, device, bool(images or top or as_json or as_csv))
        return
    if not images:
        raise ConfigError("FILE... is missing; name images or folders of them, or --serve HOST:PORT")
    if "" in images:
        raise ConfigError('FILE "": the path is empty; name a file, or . for the working directory')
    if as_json and as_csv:
        raise ConfigError("--json and --csv: choose one of them")
    predictor = load_model(model, device)
    shown = _shown(top, predictor)
    skipped: list[DataError] = []
    if predictor.columns is not None:
        _predict_rows(images, predictor, shown, as_json, as_csv)
        return
    files = list(_files(images, skipped))
    lone = len(images) == 1 and files == [Path(images[0])]

    def unreadable(error: DataError) -> None:
        if lone:
            raise error
        warn(str(error))
        skipped.append(error)

    found = predictor.stream(files, unreadable, shown)
    begun = False
    for line in _lines(found, list(map(str, files)), predictor, shown, as_json, as_csv):
        typer.echo(line)
        begun = True
    if not begun:
        raise DataError(f"FILE: none of the {len(skipped)} named can be read as images; the warnings say why")
    if skipped:
        raise typer.Exit(FAILED)


def _serve(model: Path, address: str, device: str, more: bool) -> None:
    """Answer requests until Ctrl-C or SIGTERM."""
    from fcil.core.net import split_address
    from fcil.experiment.followed_model import FollowedModel
    from fcil.experiment.prediction_server import PredictionServer

    if more:
        raise ConfigError("--serve takes no files, --top, --json or --csv: each request brings its own")
    host, port = split_address(address, "--serve")
    followed = FollowedModel(model, device, typer.echo)
    with stoppable(), PredictionServer(followed, host, port) as server:
        if not server.is_local:
            warn(f"--serve {address}: anyone who reaches this machine can ask; nothing is encrypted or protected")
        typer.echo(f"{followed.loaded.name} answers at {server.url}predict   Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped; requests under way are answered")


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


def _predict_rows(files: Sequence[str], predictor: Predictor, top: int, as_json: bool, as_csv: bool) -> None:
    """Print the classes of the rows or series in files, once all files have been read."""
    from fcil.data.datasets.user_rows import read_file

    assert predictor.columns is not None
    skipped: list[str] = []

    def leave_out(sentence: str) -> None:
        warn(sentence)
        skipped.append(sentence)

    read = [(file, read_file(Path(file), predictor.columns, tell=leave_out)) for file in files]
    if not any(rows.numbers for _, rows in read):
        raise DataError(f"FILE: {', '.join(files)} hold no row that can be read")
    places = [RowPlace(file, number) for file, rows in read for number in rows.numbers]
    predictions = (prediction for _, rows in read for prediction in predictor.ranked(rows.inputs, top))
    found = zip(places, predictions, strict=True)
    for line in _lines(found, list(map(str, places)), predictor, top, as_json, as_csv):
        typer.echo(line)
    if skipped:
        raise typer.Exit(FAILED)


def _lines(
    found: Found, names: Sequence[str], predictor: Predictor, top: int, as_json: bool, as_csv: bool
) -> Iterator[str]:
    if as_json:
        return _json(found)
    return _csv(found) if as_csv else _table(found, names, predictor, top)


def _json(found: Found) -> Iterator[str]:
    for file, prediction in found:
        ranking = [{"class": name, "probability": probability} for name, probability in prediction.ranking]
        place = {"file": file.file, "row": file.row} if isinstance(file, RowPlace) else {"file": str(file)}
        yield json.dumps({**place, "none_of_these": prediction.rejected, "predictions": ranking})


def _csv(found: Found) -> Iterator[str]:
    yield _csv_line(["file", "row", "class", "probability"])
    for file, prediction in found:
        place = file if isinstance(file, RowPlace) else RowPlace(str(file), 1)
        yield _csv_line([place.file, str(place.row), prediction.answer, f"{prediction.probability:.6f}"])


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _table(found: Found, files: Sequence[str], predictor: Predictor, top: int) -> Iterator[str]:
    """Yield the lines of a table; how wide its columns are is known before anything is predicted."""
    from fcil.experiment.predictor import NONE

    headings = ["class"] if top == 1 else [f"class {place + 1}" for place in range(top)]
    first = max(map(_length, ["file", *files]))
    name = max(map(_length, [*headings, *predictor.class_names, *([NONE] if predictor.threshold else [])]))

    def line(file: str, pairs: Sequence[tuple[str, str]]) -> str:
        cells = (f"{_padded(label, name)}  {value:>11}" for label, value in pairs)
        return "  ".join([_padded(file, first), *cells])

    for number, (file, prediction) in enumerate(found):
        if number == 0:
            yield line("file", [(heading, "probability") for heading in headings])
        pairs = [(label, f"{value:.3f}") for label, value in prediction.ranking]
        yield line(str(file), [(NONE, ""), *pairs][:top] if prediction.rejected else pairs)


def _length(text: str) -> int:
    return cell_len(one_line(text))


def _padded(text: str, width: int) -> str:
    return one_line(text) + " " * (width - _length(text))
