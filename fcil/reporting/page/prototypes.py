"""Prototype comparisons: original, perturbed by the client, and rebuilt by the proxy."""

from __future__ import annotations

import base64
import io

from PIL import Image
from torch import Tensor

from fcil.federation.diagnostics import PrototypeComparison
from fcil.reporting.page.classes import called
from fcil.reporting.page.html import Html, Section, joined, note, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Prototypes"
LEAD = (
    "Images that stand for new classes: original, perturbed by the client, and rebuilt by the proxy from a gradient. "
    "PSNR in dB: the higher, the more alike. Each stands next to the nearest rebuilt image of its class."
)
MOST_SIDE = 128  # pixels on the page


def prototypes_section(run: RunFacts, prefix: str) -> Section:
    """Return the prototypes of a run, task by task."""
    if not run.prototypes:
        why = {
            "server": "Sites and proxy keep images to themselves.",
            "kept": "A kept result has no pictures; the directory of a run does.",
            "simulation": "This run has kept no prototypes: its method sends none, run.prototypes is 0, or it is old.",
        }[run.kind]
        return Section("prototypes", TITLE, LEAD, note(why), absent=True)
    tasks = {record.round: record.task + 1 for record in run.records}
    parts = []
    for number, found in sorted(run.prototypes.items()):
        parts.append(tag("h3", f"Task {tasks.get(number, '?')}, round {number}"))
        parts.append(tag("div", *(_comparison(run, one) for one in found.items), class_="comparisons"))
    return Section("prototypes", TITLE, LEAD, joined(parts))


def _comparison(run: RunFacts, one: PrototypeComparison) -> Html:
    name = called(run, one.label)
    pictures = {"original": one.original, "perturbed": one.perturbed, "rebuilt": one.rebuilt}
    cells = [
        tag("div", tag("img", src=as_uri(image), alt=f"{what} image of {name}"), tag("small", what))
        for what, image in pictures.items()
    ]
    told = f"{name}: PSNR {decibels(one.to_perturbed)} to the perturbed, {decibels(one.to_original)} to the original"
    return tag("figure", tag("div", *cells, class_="three"), tag("figcaption", told))


def decibels(value: float) -> str:
    """Return a PSNR; from 100 dB on the difference is no larger than rounding.

    >>> decibels(27.04), decibels(100.0)
    ('27.0', '≥ 100')
    """
    return "≥ 100" if value >= 99.95 else f"{value:.1f}"


def as_picture(image: Tensor) -> Image.Image:
    """Return an image of one or three channels, (channels, height, width) in uint8."""
    values = image.permute(1, 2, 0).numpy()
    return Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values[:, :, :3])


def as_uri(image: Tensor) -> str:
    """Return an image as a PNG in a data URI, no larger than the page shows it."""
    picture = as_picture(image)
    picture.thumbnail((MOST_SIDE, MOST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
