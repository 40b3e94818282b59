"""Photos are turned upright by their EXIF orientation wherever images are read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.photos import ORIENTATIONS, is_scene, photo, scene, write_photo

from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.image import decode, decode_as
from fcil.data.datasets.in_memory import given_source
from fcil.data.datasets.user_images import prepare

SIDE = 32


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_jpeg_of_each_orientation_is_decoded_upright(tmp_path: Path, orientation: int) -> None:
    path = write_photo(tmp_path / "photo.jpg", orientation)
    with Image.open(path) as opened:
        for image in (path, path.read_bytes(), opened):
            assert is_scene(decode(image, None))
            assert is_scene(decode_as(image, (1, SIDE, SIDE)))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_other_formats_with_an_orientation_are_turned_once(kind: str) -> None:
    for orientation in ORIENTATIONS:
        assert np.array_equal(decode(photo(orientation, kind), None), np.stack([scene()] * 3))


def test_the_sides_of_a_photo_follow_its_orientation() -> None:
    wide = np.full((16, 40), 90, dtype=np.uint8)
    for orientation in ORIENTATIONS:
        assert decode(photo(orientation, upright=wide), None).shape == (3, 16, 40)


def test_an_image_that_was_turned_already_is_not_turned_again() -> None:
    from PIL import ImageOps

    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(photo(6))))
    assert is_scene(decode(turned, None))


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_unknown_orientation_changes_nothing(value: int) -> None:
    exif = Image.Exif()
    exif[274] = value
    buffer = io.BytesIO()
    Image.fromarray(scene()).save(buffer, "PNG", exif=exif)
    assert np.array_equal(decode(buffer.getvalue(), None)[0], scene())


@pytest.mark.parametrize("damage", [b"", b"XX", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\x09\x01\x12"])
def test_damaged_exif_data_leaves_the_pixels_as_they_are_stored(damage: bytes) -> None:
    buffer = io.BytesIO()
    Image.fromarray(scene()).save(buffer, "JPEG", quality=100, exif=b"Exif\0\0" + damage)
    assert is_scene(decode(buffer.getvalue(), None))


def test_a_folder_of_photos_is_a_data_set_of_upright_images(tmp_path: Path) -> None:
    for orientation in ORIENTATIONS:
        write_photo(tmp_path / "mine" / "train" / "ant" / f"{orientation}.jpg", orientation)
    write_photo(tmp_path / "mine" / "test" / "ant" / "6.jpg", 6)
    config = DataConfig(source="imagefolder", path=str(tmp_path / "mine"), image_size=SIDE)
    for _ in ("decoded", "from the cache"):
        source = load_source(config)
        assert len(source.train) == 8
        assert all(is_scene(image.numpy()) for image in torch.cat([source.train.images, source.test.images]))


def test_photos_in_a_parquet_file_are_turned_upright(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    from pyarrow import parquet

    columns = {"image": [photo(orientation) for orientation in ORIENTATIONS], "label": [0] * 8}
    parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    fields = {"path": str(tmp_path / "data.parquet"), "image_size": SIDE, "test_fraction": 0.25}
    source = load_source(DataConfig(source="parquet", **fields))
    assert all(is_scene(image.numpy()) for image in torch.cat([source.train.images, source.test.images]))


def test_photos_that_a_program_passes_are_turned_upright(tmp_path: Path) -> None:
    paths = [write_photo(tmp_path / f"{orientation}.jpg", orientation) for orientation in ORIENTATIONS]
    source = given_source([(path, 0) for path in paths], DataConfig(source="python", test_fraction=0.5))
    assert all(is_scene(image.numpy()) for image in torch.cat([source.train.images, source.test.images]))
    assert all(is_scene(pixels) for pixels in prepare(paths, (1, SIDE, SIDE)))  # as `fcil predict` reads them


def test_a_cache_from_before_the_turn_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photo(tmp_path / "mine" / "train" / "ant" / "6.jpg", 6)
    write_photo(tmp_path / "mine" / "test" / "ant" / "6.jpg", 6)
    config = DataConfig(source="imagefolder", path=str(tmp_path / "mine"), image_size=SIDE)
    with monkeypatch.context() as before:
        before.setattr("fcil.data.datasets.cache.FORMAT", 1)
        before.setattr("fcil.data.datasets.image.upright", lambda image: image)
        assert not is_scene(load_source(config).train.images[0].numpy())
    assert is_scene(load_source(config).train.images[0].numpy())
