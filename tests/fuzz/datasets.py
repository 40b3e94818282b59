"""Data sets: trees of pictures, archives, tables and CIFAR-100's pickles, each of three classes and few images."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from support.trees import CLASSES, paint, write_tiny, write_tree

from fcil.data.datasets import DataConfig, imagenet_subset, load_source
from fuzz.case import Damage, FindingError, Kind, check_same, read_files, write_files
from fuzz.damage import changed, damaged, json_bytes
from fuzz.models import checksummed

Files = dict[str, bytes]
DATA = "data"
WHOLE, DIVIDED = "whole.npz", "divided.npz"  # without a test part, and with one
TABLE = "data.parquet"
BROKEN = "broken"  # in the place of a file: what to do about broken pictures
SMALL = {"ALL_CLASSES": 6, "CLASSES": 3, "TRAINING": 2, "TEST": 1}  # of ImageNet-Subset, which has 60,000 images


def _pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


def _tree(write: Callable[[Path], Any]) -> Files:
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-") as place:
        write(Path(place))
        return read_files(Path(place))


def _subset(folder: Path) -> None:
    write_tree(folder / "train", 2)
    write_tree(folder / "val", 1, first=50)
    (folder / "words.txt").write_text("ant\tan ant\nbee\ta bee\n")


def _png(number: int) -> bytes:
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-") as place:
        paint(Path(place) / "x.png", number)
        return (Path(place) / "x.png").read_bytes()


@cache
def _trees() -> dict[str, Files]:
    return {
        "imagefolder": _tree(lambda folder: write_tree(folder, 4)),
        "tinyimagenet": _tree(lambda folder: write_tiny(folder, 1, 1)),
        "imagenet-subset": _tree(_subset),
    }


@cache
def _arrays() -> dict[str, dict[str, np.ndarray]]:
    labels = np.arange(6) % 3
    names = {"class_names": np.array(CLASSES)}
    return {
        WHOLE: {"images": _pixels(6, 5, 5), "labels": labels, **names},
        DIVIDED: {
            "train_images": _pixels(6, 5, 5, 3),
            "train_labels": labels,
            "test_images": _pixels(3, 5, 5, 3),
            "test_labels": labels[:3].astype(np.uint8),
        },
    }


@cache
def _archives() -> dict[str, list[bytes]]:
    """Return archives of both kinds, as they are and compressed."""
    found: dict[str, list[bytes]] = {name: [] for name in _arrays()}
    for name, arrays in _arrays().items():
        for save in (np.savez, np.savez_compressed):
            buffer = io.BytesIO()
            save(buffer, **arrays)
            found[name].append(buffer.getvalue())
    return found


@cache
def _tables() -> dict[str, bytes]:
    labels = pyarrow.array([0, 1, 2, 0, 1, 2])
    files = pyarrow.array([{"bytes": _png(number), "path": None} for number in range(6)])
    hub = json.dumps({"info": {"features": {"label": {"names": list(CLASSES)}}}}).encode()
    lists = pyarrow.array(_pixels(6, 4, 4).tolist())
    texts = pyarrow.array([CLASSES[label] for label in labels.to_pylist()])
    tables = {
        "files": pyarrow.table({"image": files, "label": labels}).replace_schema_metadata({b"huggingface": hub}),
        "lists": pyarrow.table({"image": lists, "label": texts}),
    }
    found = {}
    for name, table in tables.items():
        for compression in ("none", "snappy"):
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(table, buffer, compression=compression)
            found[f"{name} {compression}"] = buffer.getvalue()
    return found


@cache
def _pickles() -> dict[int, Files]:
    contents: dict[str, Any] = {
        "train": {b"data": _pixels(6, 3072), b"fine_labels": [0, 1, 2, 0, 1, 2], b"filenames": [b"a.png"] * 6},
        "test": {b"data": _pixels(3, 3072), b"fine_labels": [0, 1, 2]},
        "meta": {b"fine_label_names": [b"ant", b"bee", b"cow"]},
    }
    return {
        protocol: {name: pickle.dumps(content, protocol) for name, content in contents.items()}
        for protocol in (2, 4, 5)
    }


# --- damage -------------------------------------------------------------------------------------------------------


def _draw_tree(source: str) -> Callable[[Random], Damage]:
    def draw(random: Random) -> Damage:
        files = _trees()[source]
        texts = [name for name in files if name.endswith(".txt")]
        name = random.choice(texts if texts and random.random() < 1 / 2 else [*files])
        broken = random.choice((b"refuse", b"skip"))
        if random.random() < 1 / 10:
            return Damage({BROKEN: broken, name: None})
        return Damage({BROKEN: broken, name: checksummed(damaged(files[name], random, [*files.values()]))})

    return draw


def _draw_archive(random: Random) -> Damage:
    name = random.choice((WHOLE, DIVIDED))
    archives = _archives()[name]
    if random.random() < 1 / 2:
        return Damage({name: damaged(random.choice(archives), random, archives)})
    arrays = _arrays()[name]
    members = {f"{key}.npy": _npy(array) for key, array in arrays.items()}
    member = random.choice([*members])
    content = members.pop(member)
    if random.random() < 9 / 10:
        members[random.choice((member, member, member, "labels.npy", "x"))] = damaged(
            content, random, [*members.values()]
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for key, data in members.items():
            archive.writestr(zipfile.ZipInfo(key), data)
    return Damage({name: buffer.getvalue()})


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _draw_table(random: Random) -> Damage:
    tables = _tables()
    if random.random() < 3 / 4:
        return Damage({TABLE: damaged(tables[random.choice([*tables])], random, [*tables.values()])})
    rows = [{"image": {"bytes": _png(1).hex(), "path": None}, "label": label} for label in (0, 1, 2, 0, 1, 2)]
    buffer = io.BytesIO()
    try:
        table = pyarrow.Table.from_pylist(json.loads(json_bytes(changed(rows, random))))
        pyarrow.parquet.write_table(table, buffer)
    except (pyarrow.ArrowException, TypeError, ValueError, RecursionError, AttributeError, OverflowError):
        return Damage({TABLE: b""})  # nothing that a table can hold
    return Damage({TABLE: buffer.getvalue()})


def _draw_pickle(random: Random) -> Damage:
    files = _pickles()[random.choice([*_pickles()])]
    name = random.choice(("meta", "train", "test"))
    return Damage({**files, name: damaged(files[name], random, [*files.values()])})


# --- reading ------------------------------------------------------------------------------------------------------


def _load(**fields: Any) -> None:
    """Load a data set; what is read must be one."""
    source = load_source(DataConfig(**fields))
    for split in (source.train, source.test):
        if not len(split) or int(split.labels.min()) < 0 or int(split.labels.max()) >= source.classes:
            raise FindingError(f"a data set with labels outside its {source.classes} classes")


def _play_tree(source: str) -> Callable[[Damage, Path], None]:
    divided = {"test_fraction": 0.5, "image_size": 8} if source == "imagefolder" else {"image_size": 64}

    def play(damage: Damage, folder: Path) -> None:
        for name, value in SMALL.items():
            setattr(imagenet_subset, name, value)
        files = dict(damage.files)
        broken = (files.pop(BROKEN) or b"").decode()
        write_files(folder / DATA, _trees()[source], Damage(files))
        _load(source=source, path=str(folder / DATA), broken=broken, **divided)

    return play


def _play_archive(damage: Damage, folder: Path) -> None:
    write_files(folder, {}, damage)
    (name,) = damage.files
    _load(source="npz", path=str(folder / name), image_size=5, test_fraction=0.5 if name == WHOLE else None)


def _play_table(damage: Damage, folder: Path) -> None:
    write_files(folder, {}, damage)
    _load(source="parquet", path=str(folder / TABLE), image_size=8, test_fraction=0.5)


def _play_pickle(damage: Damage, folder: Path) -> None:
    write_files(folder / DATA / "cifar-100-python", {}, damage)
    _load(source="cifar100")


@cache
def _cached() -> tuple[Files, str]:
    """Return what the cache holds of an archive once it is decoded, and the digest of the data."""
    with tempfile.TemporaryDirectory(prefix="fcil-fuzz-") as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        source = load_source(_archive_in(folder))
        (decoded,) = (path for path in (folder / "cache" / "fcil" / "decoded").iterdir() if path.is_dir())
        return read_files(decoded), source.digest


def _archive_in(folder: Path) -> DataConfig:
    (folder / DIVIDED).write_bytes(_archives()[DIVIDED][0])
    return DataConfig(source="npz", path=str(folder / DIVIDED))


def _draw_cache(random: Random) -> Damage:
    files, _ = _cached()
    name = random.choice([*files])
    if random.random() < 1 / 10:
        return Damage({name: None})
    text = name.endswith(".json") and random.random() < 1 / 2
    return Damage(
        {name: json_bytes(changed(json.loads(files[name]), random)) if text else damaged(files[name], random)}
    )


def _play_cache(damage: Damage, folder: Path) -> None:
    """Load data whose decoded form is damaged: it has to be decoded again."""
    config = _archive_in(folder)
    load_source(config)
    (decoded,) = (path for path in (folder / "cache" / "fcil" / "decoded").iterdir() if path.is_dir())
    for name, data in damage.files.items():
        (decoded / name).unlink()
        write_files(decoded, {}, Damage({name: data}))
    source = load_source(config)
    check_same((source.digest, source.classes, source.warnings), (_cached()[1], 3, ()))
    check_same(source.digest, replace(source).digest)  # which is computed from the images


KINDS = (
    *(
        Kind(name, 2, lambda: Damage({BROKEN: b"refuse"}), _draw_tree(name), _play_tree(name))
        for name in ("imagefolder", "tinyimagenet", "imagenet-subset")
    ),
    Kind("npz", 8, lambda: Damage({WHOLE: _archives()[WHOLE][0]}), _draw_archive, _play_archive),
    Kind("parquet", 6, lambda: Damage({TABLE: _tables()["files none"]}), _draw_table, _play_table),
    Kind("cifar100", 8, lambda: Damage({**_pickles()[4]}), _draw_pickle, _play_pickle),
    Kind("cache", 3, lambda: Damage({**_cached()[0]}), _draw_cache, _play_cache),
)
