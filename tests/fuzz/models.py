"""Model files, and pictures as a model is shown them."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tempfile
import zlib
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from fcil.core.messages import ModelParcel, encode
from fcil.data.datasets.digits import load_digits
from fcil.experiment.model_file import FILE, KEY, UNSEALED, load_model, model_bytes
from fcil.experiment.predictor import Predictor
from fcil.models import ModelConfig, grow, initial_state
from fuzz.case import Damage, Kind, check_same, write_files
from fuzz.damage import changed, damaged, json_bytes

MODELS = {
    "linear": ModelConfig(width=1),
    "proxies": ModelConfig(width=1, head="proxies", last_relu=False),
    "small": ModelConfig(name="cnn", width=1, norm="group"),
}
PNG = b"\x89PNG\r\n\x1a\n"
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "TGA", "PCX", "JPEG2000")


@cache
def _models() -> dict[str, bytes]:
    source = load_digits().reduced(1)
    return {
        name: model_bytes(grow(initial_state(config, 1, 3), 4, 5), (3, 1, 4, 0), source, config)
        for name, config in MODELS.items()
    }


def _draw_model(random: Random) -> Damage:
    models = _models()
    data = models[random.choice([*models])]
    if random.random() < 1 / 3:
        return Damage({FILE: damaged(data, random, [*models.values()])})
    return Damage({FILE: _forged(data, random)}, forged=True)


def _forged(data: bytes, random: Random) -> bytes:
    """Return a model with other facts, another table of tensors or other weights, under lengths and digest that fit."""
    (size,) = struct.unpack_from("<Q", data)
    header, weights = json.loads(data[8 : 8 + size]), data[8 + size :]
    facts = {**json.loads(header.pop("__metadata__")[KEY]), "sha256": UNSEALED}
    match random.randrange(4):
        case 0 | 1:
            facts = changed(facts, random)
        case 2:
            header = changed(header, random)
        case _:
            weights = damaged(weights, random)
    held = header if isinstance(header, dict) else {"x": header}
    text = json_bytes({"__metadata__": {KEY: json_bytes(facts).decode()}, **held})
    whole = struct.pack("<Q", len(text)) + text + weights
    return whole.replace(UNSEALED.encode(), hashlib.sha256(whole).hexdigest().encode(), 1)


def _load(damage: Damage, folder: Path) -> None:
    """Load the model and let it look at a picture."""
    write_files(folder, {}, damage)
    model = load_model(folder / FILE)
    model.predict(np.zeros((8, 8), dtype=np.uint8))
    if not damage.forged:
        check_same(_content(model), *map(_content, _whole_models()))


def _content(model: Predictor) -> tuple[object, ...]:
    return model.class_names, model.image_shape, encode(ModelParcel("", dict(model.net.state_dict())))


@cache
def _whole_models() -> list[Predictor]:
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-") as place:
        for name, data in _models().items():
            (Path(place) / name).write_bytes(data)
        return [load_model(Path(place) / name) for name in MODELS]


@cache
def _pictures() -> dict[str, bytes]:
    """Return pictures in the formats that people have them in."""
    draw = np.random.default_rng(2)
    found = {}
    for name in FORMATS:
        for mode in ("RGB", "L", "P"):
            buffer = io.BytesIO()
            pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            try:
                Image.fromarray(pixels).convert(mode).save(buffer, name)
            except (OSError, KeyError):  # a format that this Pillow does not write, or not in this mode
                continue
            found[f"{name} {mode}"] = buffer.getvalue()
    return found


def _draw_picture(random: Random) -> Damage:
    pictures = _pictures()
    data = pictures[random.choice([*pictures])]
    found = damaged(data, random, [*pictures.values()])
    return Damage({"picture": checksummed(found) if random.random() < 2 / 3 else found})


def checksummed(data: bytes) -> bytes:
    """Return a PNG whose checksums are right for what its chunks hold now; other bytes as they are."""
    if not data.startswith(PNG):
        return data
    found, place = [PNG], len(PNG)
    while place + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, place)
        body = data[place + 4 : place + 8 + size]
        found.append(data[place : place + 4] + body + struct.pack(">I", zlib.crc32(body)))
        place += 12 + size
    return b"".join(found)


def _look(damage: Damage, folder: Path) -> None:
    """Show the picture to a model, as bytes and as a file."""
    write_files(folder, {}, damage)
    _whole_models()[0].predict([damage.files["picture"] or b"", folder / "picture"], top=2)


KINDS = (
    Kind("model", 8, lambda: Damage({FILE: _models()["linear"]}), _draw_model, _load),
    Kind("picture", 10, lambda: Damage({"picture": _pictures()["PNG RGB"]}), _draw_picture, _look),
)
