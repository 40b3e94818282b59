"""Single files with images and labels: npz and parquet."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fcil.core.errors import DataError
from fcil.data.datasets import DataConfig, load_source, npz, parquet
from fcil.data.datasets.dataset import Source


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stack(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int) -> np.ndarray:
    return np.arange(count) % 3


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., Source]:
    def load(fields: dict[str, Any] | None = None, **arrays: Any) -> Source:
        np.savez(tmp_path / "data.npz", **arrays)
        return load_source(DataConfig(source="npz", path=str(tmp_path / "data.npz"), **(fields or {})))

    return load


def divided(**replaced: Any) -> dict[str, Any]:
    arrays = {
        "train_images": stack(9, 6, 6, 3),
        "train_labels": labels(9),
        "test_images": stack(3, 6, 6, 3, seed=1),
        "test_labels": labels(3),
    }
    return {**arrays, **replaced}


def test_an_archive_with_both_parts_is_read_to_the_bit(archive: Callable[..., Source]) -> None:
    arrays = divided(class_names=np.array(["ant", "bee", "cow"]))
    source = archive(**arrays)
    assert source.class_names == ("ant", "bee", "cow")
    for part, split in (("train", source.train), ("test", source.test)):
        assert np.array_equal(split.images.numpy(), arrays[f"{part}_images"].transpose(0, 3, 1, 2))
        assert split.labels.tolist() == arrays[f"{part}_labels"].tolist()


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (1, 5, 7), (3, 5, 7)])
def test_every_order_of_axes_gives_channels_first(archive: Callable[..., Source], shape: tuple[int, ...]) -> None:
    images = stack(9, *shape)
    source = archive(**divided(train_images=images, test_images=images[:3]))
    planes = images if shape[-1] == 7 else images.transpose(0, 3, 1, 2)
    assert np.array_equal(source.train.images.numpy(), planes.reshape(9, -1, 5, 7))
    assert source.class_names == ("0", "1", "2")


def test_one_part_is_divided_by_class_and_seed(archive: Callable[..., Source]) -> None:
    whole = {"images": stack(30, 6, 6), "labels": labels(30)}
    source = archive({"test_fraction": 0.2}, **whole)
    assert torch.bincount(source.train.labels).tolist() == [8, 8, 8]
    assert torch.bincount(source.test.labels).tolist() == [2, 2, 2]
    assert archive({"test_fraction": 0.2}, **whole).digest == source.digest
    assert archive({"test_fraction": 0.2, "split_seed": 3}, **whole).digest != source.digest


def test_image_size_resizes_an_archive(archive: Callable[..., Source]) -> None:
    source = archive({"image_size": 4}, **divided(test_images=stack(3, 9, 8, 3)))
    assert source.image_shape == (3, 4, 4)
    assert source.test.images.shape == (3, 3, 4, 4)


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        ({"train_images": stack(9, 6, 6).astype(np.float32)}, "train_images is float32 .* it should be uint8"),
        ({"train_images": stack(9, 36)}, r"train_images is uint8 \(9, 36\); it should be"),
        ({"train_images": stack(9, 6, 6, 2)}, "it should be uint8 of"),
        ({"train_images": stack(9, 8, 8, 3)}, "set data.image_size"),
        ({"train_labels": labels(8)}, r"train_labels has the shape \(8,\); it should be \(9,\)"),
        ({"train_labels": labels(9).astype(float)}, "labels of type float64"),
        ({"train_labels": labels(9) - 1}, "the label -1; labels should be the whole numbers from 0 to 3"),
        ({"train_labels": labels(9) + 10**12}, "the label 1000000000000; labels should be"),
        ({"train_labels": np.where(labels(9) == 1, 0, labels(9))}, "class 1 has no training image"),
        ({"test_labels": np.zeros(3, dtype=int)}, "class 1 and 1 more has no test image"),
        ({"class_names": np.array(["ant", "bee"])}, "3 different labels, but class_names has 2; there should"),
        ({"train_labels": labels(9).astype("datetime64[s]")}, "labels of type datetime64"),
        ({"images": stack(9, 6, 6)}, "holds both images and test_images .* but not both"),
        ({"class_names": np.array([1, 2, 3])}, "class_names is int64"),
        ({"train_images": stack(0, 6, 6, 3), "train_labels": labels(0)}, "class 0 and 2 more has no training image"),
        (
            dict.fromkeys(("train_images", "test_images"), stack(0, 6, 6))
            | dict.fromkeys(("train_labels", "test_labels"), labels(0)),
            "holds no images",
        ),
        ({"train_images": np.array([{"a": 1}] * 9)}, "cannot be read as a .npz archive of plain arrays.*pickle"),
    ],
)
def test_wrong_arrays_get_a_sentence(
    archive: Callable[..., Source], tmp_path: Path, replaced: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        archive(**divided(**replaced))
    assert str(tmp_path) in str(caught.value)


def test_parts_of_different_channels_are_refused(archive: Callable[..., Source]) -> None:
    with pytest.raises(DataError, match="1 channels for training and 3 for testing"):
        archive(**divided(train_images=stack(9, 6, 6), test_images=stack(len(divided()["test_labels"]), 6, 6, 3)))


def test_a_member_that_is_no_array_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
        for name in ("images", "labels"):
            file.writestr(name, "text")
    with pytest.raises(DataError, match="images is no array"):
        load_source(DataConfig(source="npz", path=str(tmp_path / "data.npz"), test_fraction=0.5))


def test_missing_keys_are_said(archive: Callable[..., Source]) -> None:
    with pytest.raises(DataError, match=r"holds x, y; there should be the keys train_images, .* or images and labels"):
        archive(x=stack(3, 6, 6), y=labels(3))


def test_one_part_needs_a_fraction_and_two_parts_none(archive: Callable[..., Source]) -> None:
    with pytest.raises(DataError, match=r"set data\.test_fraction"):
        archive(images=stack(9, 6, 6), labels=labels(9))
    with pytest.raises(DataError, match=r"leave data\.test_fraction out"):
        archive({"test_fraction": 0.5}, **divided())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"hello", b"\x80\x04."])
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(DataError, match=f"{tmp_path / 'data.npz'} cannot be read"):
        load_source(DataConfig(source="npz", path=str(tmp_path / "data.npz")))
    with pytest.raises(DataError, match="is not a file"):
        load_source(DataConfig(source="npz", path=str(tmp_path / "none.npz")))


def npz_source(path: Path) -> Source:
    return load_source(DataConfig(source="npz", path=str(path), test_fraction=0.5))


@pytest.mark.parametrize(
    ("shape", "claimed", "sentence"),
    [
        ((9, 6, 6), (9 << 40, 6, 6), r"images claims to be uint8 \(98.*, 6, 6\), but 324 bytes cannot be that"),
        ((9, 6, 6), (9, 6, 5), "324 bytes cannot be that; it is damaged"),
        ((9, 6, 6), (-9, -6, 6), "cannot be read as a .npz archive of plain arrays"),
    ],
)
def test_an_array_that_claims_another_size_takes_no_memory(
    tmp_path: Path, shape: tuple[int, ...], claimed: tuple[int, ...], sentence: str
) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("images.npy", "w") as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": claimed}
            np.lib.format.write_array_header_1_0(member, header)
            member.write(stack(*shape).tobytes())
        with archive.open("labels.npy", "w") as member:
            np.lib.format.write_array(member, labels(9))
    with pytest.raises(DataError, match=sentence) as caught:
        npz_source(path)
    assert str(path) in str(caught.value)


def test_an_archive_larger_than_the_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "data.npz", images=np.zeros((300, 64, 64), dtype=np.uint8), labels=labels(300))
    assert (tmp_path / "data.npz").stat().st_size < 10_000
    monkeypatch.setattr(npz, "memory_bytes", lambda: 1_000_000)
    with pytest.raises(DataError, match=r"arrays of 1,231,\d+ bytes, which do not fit into 1,000,000 bytes of memory"):
        npz_source(tmp_path / "data.npz")


def test_names_without_a_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, images=stack(9, 6, 6), labels=labels(9))
    with zipfile.ZipFile(path, "a") as archive, archive.open("class_names.npy", "w") as member:
        header = {"descr": "<U0", "fortran_order": False, "shape": (1 << 50,)}
        np.lib.format.write_array_header_1_0(member, header)
    with pytest.raises(DataError, match="class_names claims to be"):
        npz_source(path)


def damaged(whole: bytes, count: int) -> Iterator[bytes]:
    """Yield copies with a few bytes changed, or cut short."""
    random = np.random.default_rng(8)
    for _ in range(count):
        copy = bytearray(whole)
        for place in random.integers(0, len(whole), random.integers(1, 4)):
            copy[place] = random.integers(0, 256)
        yield bytes(copy[: random.integers(1, len(copy))] if random.random() < 0.1 else copy)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_archive_is_read_or_refused_in_one_line(tmp_path: Path, save: Callable[..., None]) -> None:
    path = tmp_path / "data.npz"
    save(path, images=stack(4, 3, 3), labels=np.array([0, 0, 1, 1]), class_names=np.array(["ant", "bee"]))
    for data in damaged(path.read_bytes(), 150):
        path.write_bytes(data)
        try:
            npz.open_npz(DataConfig(source="npz", path=str(path), test_fraction=0.5)).read()
        except DataError as error:
            assert str(error).startswith(str(path))
            assert "\n" not in str(error)


def test_a_lone_array_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", stack(3, 6, 6))
    with pytest.raises(DataError, match=r"cannot be read as a .npz archive"):
        load_source(DataConfig(source="npz", path=str(tmp_path / "data.npy")))


def png(seed: int, size: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(stack(size, size, 3, seed=seed)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    from pyarrow import parquet

    def write_table(name: str = "data.parquet", metadata: dict[str, str] | None = None, **columns: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), path)
        return path

    return write_table


def table_source(path: Path, **fields: Any) -> Source:
    return load_source(DataConfig(source="parquet", path=str(path), **{"image_size": 8, **fields}))


def test_a_folder_of_parquet_files_as_a_hub_offers_it_is_read(write: Callable[..., Path]) -> None:
    note = {"info": {"features": {"label": {"names": ["ant", "bee", "cow"], "_type": "ClassLabel"}}}}
    metadata = {"huggingface": json.dumps(note)}
    for part, count, first in (("train-0", 3, 0), ("train-1", 6, 3), ("test-0", 3, 50)):
        images = [{"bytes": png(first + row), "path": None} for row in range(count)]
        path = write(f"hub/{part}.parquet", metadata, image=images, label=labels(count).tolist())
    source = table_source(path.parent)
    assert source.class_names == ("ant", "bee", "cow")
    assert source.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert source.test.labels.tolist() == [0, 1, 2]
    assert np.array_equal(source.train.images[4].numpy(), stack(8, 8, 3, seed=4).transpose(2, 0, 1))
    assert np.array_equal(source.test.images[1].numpy(), stack(8, 8, 3, seed=51).transpose(2, 0, 1))


def test_bytes_with_texts_as_labels_are_read_and_divided(write: Callable[..., Path]) -> None:
    names = [("cow", "ant")[row % 2] for row in range(600)]  # more rows than are read at once
    path = write(picture=[png(row % 7) for row in range(600)], kind=names)
    source = table_source(path, image_column="picture", label_column="kind", test_fraction=0.25)
    assert source.class_names == ("ant", "cow")
    assert torch.bincount(source.test.labels).tolist() == [75, 75]
    assert len(source.train) == 450


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_nested_lists_are_images(write: Callable[..., Path], shape: tuple[int, ...]) -> None:
    images = stack(6, *shape)
    source = table_source(write(image=images.tolist(), label=labels(6).tolist()), test_fraction=0.5)
    assert source.image_shape == ((1 if len(shape) == 2 else 3), 8, 8)
    read = torch.cat([source.train.images, source.test.images]).numpy()
    planes = images[:, None] if len(shape) == 2 else images.transpose(0, 3, 1, 2)
    assert {image.tobytes() for image in read} == {image.tobytes() for image in planes}


def test_a_broken_row_is_named_and_refused_or_skipped(write: Callable[..., Path]) -> None:
    images = [png(row) for row in range(12)]
    images[4], images[8] = b"torn", None
    path = write(image=images, label=labels(12).tolist())
    with pytest.raises(DataError, match=f"{path} row 4 cannot be decoded"):
        table_source(path, test_fraction=0.25)
    source = table_source(path, test_fraction=0.25, broken="skip")
    assert len(source.train) + len(source.test) == 10
    assert source.warnings == (f"2 broken images left out: {path} row 4, {path} row 8",)


def test_rows_of_differing_shapes_are_broken(write: Callable[..., Path]) -> None:
    images = [*stack(5, 8, 8).tolist(), [[1, 2], [3]]]
    with pytest.raises(DataError, match="row 5 cannot be decoded: it h"):
        table_source(write(image=images, label=labels(6).tolist()), test_fraction=0.5)


def test_bytes_that_are_no_image_are_called_so(write: Callable[..., Path]) -> None:
    path = write(image=[b"hello"] * 4, label=[0, 0, 1, 1])
    with pytest.raises(DataError, match=f"{path} row 0 cannot be decoded: it is no image of a known format; put it"):
        table_source(path, test_fraction=0.5)


def test_a_damaged_table_is_read_or_refused_in_one_line(write: Callable[..., Path]) -> None:
    path = write(image=[png(row, 4) for row in range(4)], label=[0, 0, 1, 1])
    for data in damaged(path.read_bytes(), 100):
        path.write_bytes(data)
        try:
            config = DataConfig(source="parquet", path=str(path), image_size=4, test_fraction=0.5)
            assert len(list(parquet.open_parquet(config).read().pictures)) == 4
        except DataError as error:
            assert str(error).startswith(str(path))
            assert "\n" not in str(error)


def test_columns_of_differing_lengths_are_refused(write: Callable[..., Path]) -> None:
    path = write(image=[png(0)] * 4, label=[0, 0, 1, 1])
    for labelled in (3, 5):
        with pytest.raises(DataError, match=f"column image has 4 rows where there are {labelled} labels"):
            list(parquet._pictures([(path, labelled)], "image"))


def test_wrong_tables_get_a_sentence(write: Callable[..., Path], tmp_path: Path) -> None:
    images = [png(row) for row in range(6)]
    with pytest.raises(DataError, match=r"has the columns image, kind and none named label; set data.image_column"):
        table_source(write(image=images, kind=labels(6).tolist()), test_fraction=0.5)
    for wrong, sentence in (
        ([0.5] * 6, "labels of type float64"),
        ([0, 0, 0, 2, 2, 2], "the label 2; labels should be the whole numbers from 0 to 1"),
        ([0, None, 0, 1, 1, 1], "labels of type object"),
        ([[0], [1, 2], [], [0], [1], [2]], "column label holds lists"),
    ):
        with pytest.raises(DataError, match=sentence):
            table_source(write(image=images, label=wrong), test_fraction=0.5)
    with pytest.raises(DataError, match=r"set data\.test_fraction"):
        table_source(write(image=images, label=labels(6).tolist()))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"torn.parquet cannot be read as a parquet file"):
        table_source(tmp_path / "torn.parquet", test_fraction=0.5)


def test_a_place_without_parquet_files_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.parquet"):
        with pytest.raises(DataError, match=f"data.path: {path} should be a parquet file, or a folder"):
            table_source(path)


def test_without_pyarrow_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"needs pyarrow; install fcil with its extra"):
        table_source(tmp_path / "data.parquet", test_fraction=0.5)
