"""`fcil export`: a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.cli.extra import onnx_extra
from fcil.cli.options import PLACE, Model, new_file

if TYPE_CHECKING:
    from fcil.experiment.export import Format

ENDINGS = {"onnx": "onnx", "torchscript": "pt", "safetensors": "safetensors"}


def export(
    model: Model,
    format: Annotated[str, typer.Option("--format", help="onnx, torchscript or safetensors.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", click_type=PLACE, help="Where the file is written; by default beside the model."
        ),
    ] = None,
) -> None:
    """Export a model to ONNX, TorchScript or safetensors.

    The exported model maps images with values in [0, 1] to probabilities and includes the normalisation. One for tables
    or series takes plain numbers.

    The file is loaded again and compared with the model on random images; it is written only if both agree. ONNX needs
    the extra `onnx`.
    """
    from fcil.core.settings_table import chosen_from
    from fcil.experiment.export import export as exported

    name = chosen_from("--format", format, tuple(ENDINGS))
    place = out or (model if model.is_dir() else model.parent) / f"exported.{ENDINGS[name]}"
    difference = exported(model, new_file("--out", place), _format(name))
    typer.echo(f"{place} predicts as the model does; its probabilities differ by {difference:.1g} at most")


def _format(name: str) -> Format:
    from fcil.experiment.export import SAFETENSORS, TORCHSCRIPT

    if name != "onnx":
        return TORCHSCRIPT if name == "torchscript" else SAFETENSORS
    with onnx_extra():
        from fcil.experiment.export_onnx import ONNX
    return ONNX
