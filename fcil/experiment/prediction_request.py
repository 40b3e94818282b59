"""Requests for predictions: images in a form or in JSON, or rows in JSON, within limits."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes, message_from_string
from email.message import Message
from typing import Any

from PIL import Image

from fcil.core.errors import FcilError

TOP = 3
HEAD = 4096  # bytes of the headers of a part
KEYS = {"images", "rows", "top"}
SHAPE = 'it should be {"images": [base64, ...]} or {"rows": [...]}, with "top" if wanted'


class BadRequestError(FcilError):
    """A request that cannot be answered; the sentence is for the client."""


@dataclass(frozen=True)
class Asked:
    """The samples of a request with a name for each, and how many classes are wanted of each."""

    images: list[bytes]
    rows: list[Any] | None
    names: list[str]
    top: int = TOP


def read_request(body: bytes, kind: str, samples: int, pixels: int) -> Asked:
    """Return the samples in a body of a kind, its Content-Type."""
    form = kind.partition(";")[0].strip().lower() == "multipart/form-data"
    asked = _form(body, kind, samples + 1) if form else _document(body)
    if not 0 < len(asked.names) <= samples:
        raise BadRequestError(f"there are {len(asked.names)} samples; there should be 1 to {samples}")
    if asked.top < 1:
        raise BadRequestError(f"top: found {asked.top}, should be at least 1")
    if sum(map(_pixels, asked.images)) > pixels:
        raise BadRequestError(f"the images have more than {pixels} pixels")
    return asked


def _form(body: bytes, kind: str, most: int) -> Asked:
    images, names, top = [], [], TOP
    for number, (head, content) in enumerate(_parts(body, kind, most)):
        if head.get_filename() is None and head.get_param("name", header="content-disposition") == "top":
            top = _whole(content.decode("ascii", "replace").strip())
        else:
            images.append(content)
            names.append(head.get_filename() or f"image {number}")
    return Asked(images, None, names, top)


def _parts(body: bytes, kind: str, most: int) -> Iterator[tuple[Message, bytes]]:
    """Yield the headers and the content of the parts of a form, at most one more than `most`."""
    boundary = message_from_string(f"Content-Type: {kind}\n\n").get_boundary()
    _, *parts = (b"\r\n" + body).split(f"\r\n--{boundary}".encode(), most + 2) if boundary else (b"",)
    if not parts or (len(parts) < most + 2 and not parts[-1].startswith(b"--")):
        raise BadRequestError("the form has no end, or no boundary")
    for part in parts[:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank or len(head) > HEAD:
            raise BadRequestError("a part of the form has no headers, or too long ones")
        yield message_from_bytes(head.lstrip()), content


def _document(body: bytes) -> Asked:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is neither a form nor JSON; {SHAPE}") from error
    if not isinstance(found, dict) or not set(found) <= KEYS or ("images" in found) == ("rows" in found):
        raise BadRequestError(SHAPE)
    top = found.get("top", TOP)
    if type(top) is not int:
        raise BadRequestError(f"top: found {top!r}, should be a whole number")
    samples = found["images" if "images" in found else "rows"]
    if not isinstance(samples, list):
        raise BadRequestError(SHAPE)
    if "rows" in found:
        return Asked([], _rows(samples), [f"row {number}" for number in range(len(samples))], top)
    images = [_decoded(number, text) for number, text in enumerate(samples)]
    return Asked(images, None, [f"image {number}" for number in range(len(images))], top)


def _rows(rows: list[Any]) -> list[Any]:
    if not all(isinstance(row, (dict, list)) for row in rows):
        raise BadRequestError("rows: each should be an object by column, or an array of numbers")
    return rows


def _decoded(number: int, text: Any) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"images: number {number} is not base64") from error


def _pixels(content: bytes) -> int:
    """Return the pixels that an image has by its header; what is no image is refused when it is decoded."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            return math.prod(opened.size)
    except Exception:  # Pillow's readers raise nearly anything on damaged bytes
        return 0


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise BadRequestError(f"top: found {text[:20]!r}, should be a whole number")
    return int(text)
