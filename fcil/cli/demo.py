"""`fcil demo`: methods side by side on the digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.options import PLACE, console
from fcil.cli.signals import stoppable


def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", click_type=PLACE, help="Directory of the runs and the report."),
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 2021,
) -> None:
    """Compare GLFC, federated averaging and Mosaic on the digits.

    The runs take a few minutes and end with a table and a report. With the extra `pretrained` a fourth one shows what
    ImageNet pre-training does.

    An interrupted demonstration is continued. A finished one is kept: the next goes to DIR-2, DIR-3 and so on.
    """
    from fcil.reporting.compare.demo import run_demo

    with stoppable():
        run_demo(console, out, seed)
