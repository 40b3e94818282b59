from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from fcil.core.errors import DataError
from fcil.data.datasets import DataConfig, cifar100, load_source
from fcil.data.datasets.cifar100 import load_cifar100

CLASSES = 3
Content = dict[bytes, Any]


def batch(count: int, seed: int) -> Content:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"data": pixels, b"fine_labels": [row % CLASSES for row in range(count)], b"batch_label": b"a batch"}


def as_official(content: object) -> bytes:
    """Pickle as the official archive does: by an old protocol, with numpy's old module names."""
    return pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_folder(folder: Path, **replaced: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "train": as_official(batch(6, 0)),
        "test": as_official(batch(4, 1)),
        "meta": as_official({b"fine_label_names": [b"apple", b"bee", b"crab"]}),
    }
    for name, data in {**contents, **replaced}.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("the network is off")

    monkeypatch.setenv("FCIL_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", no_network)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "given" / "cifar-100-python")


def test_pixels_are_three_planes_of_rows(folder: Path) -> None:
    source = load_source(DataConfig(source="cifar100"))
    assert source.class_names == ("apple", "bee", "crab")
    assert source.image_shape == (3, 32, 32)
    for split, content in ((source.train, batch(6, 0)), (source.test, batch(4, 1))):
        assert split.labels.tolist() == content[b"fine_labels"]
        assert split.images.dtype == torch.uint8
        for image, channel, row, column in ((0, 0, 0, 0), (1, 0, 0, 1), (2, 0, 1, 0), (3, 1, 0, 0), (3, 2, 31, 30)):
            expected = content[b"data"][image, channel * 1024 + row * 32 + column]
            assert split.images[image, channel, row, column] == expected


def test_todays_module_names_of_numpy_are_read_as_well(tmp_path: Path) -> None:
    modern = {name: pickle.dumps(batch(count, seed)) for name, count, seed in (("train", 6, 0), ("test", 4, 1))}
    write_folder(tmp_path / "given", **modern)
    assert torch.equal(load_cifar100().train.images.flatten(1), torch.from_numpy(batch(6, 0)[b"data"]))


@pytest.mark.parametrize("place", ["given", "given/cifar-100-python", "cache/fcil", "cache/fcil/cifar-100-python"])
def test_files_are_found_in_the_given_folder_and_in_the_cache(tmp_path: Path, place: str) -> None:
    write_folder(tmp_path / place)
    assert len(load_cifar100().train) == 6


def test_the_given_folder_comes_before_the_cache(tmp_path: Path, folder: Path) -> None:
    write_folder(tmp_path / "cache" / "fcil", train=as_official(batch(5, 0)))
    assert len(load_cifar100().train) == 6


class RunsOnLoading:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", ["meta", "train", "test"])
def test_a_pickle_that_names_a_command_is_refused_and_does_not_run(folder: Path, name: str, protocol: int) -> None:
    mark = folder / "ran"
    (folder / name).write_bytes(pickle.dumps(RunsOnLoading(os.system, f"touch {mark}"), protocol=protocol))
    with pytest.raises(DataError, match=f"{folder / name}.*system"):
        load_cifar100()
    assert not mark.exists()


@pytest.mark.parametrize(
    "poison",
    [RunsOnLoading(eval, "1"), RunsOnLoading(getattr, "text", "upper"), Path("x"), np.float64(1.0), slice(1)],
    ids=["eval", "getattr", "path", "numpy scalar", "slice"],
)
def test_any_other_name_in_a_pickle_is_refused(folder: Path, poison: object) -> None:
    (folder / "train").write_bytes(pickle.dumps({**batch(6, 0), b"more": poison}))
    with pytest.raises(DataError, match=f"{folder / 'train'}.*not admitted"):
        load_cifar100()


@examples(60)
@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_named(tmp_path_factory: pytest.TempPathFactory, part: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        folder = write_folder(tmp_path_factory.mktemp("truncated"))
        patch.setenv("FCIL_DATA", str(folder))
        whole = (folder / "train").read_bytes()
        (folder / "train").write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(DataError, match=str(folder / "train")):
            load_cifar100()


@pytest.mark.parametrize("data", [b"\x00garbage", b"hello", b"(lp0\n.", b"\x80\x02}q\x00."])
@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_what_is_no_file_of_cifar100_is_named(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=str(folder / name)):
        load_cifar100()


@pytest.mark.parametrize(
    "change",
    [
        {b"data": None},
        {b"data": np.zeros((6, 3071), dtype=np.uint8)},
        {b"data": np.zeros((6, 3072), dtype=np.float32)},
        {b"data": np.zeros((6, 3, 1024), dtype=np.uint8)},
        {b"fine_labels": None},
        {b"fine_labels": [0, 1, 2, 0, 1]},
        {b"fine_labels": [0, 1, 2, 0, 1, CLASSES]},
        {b"fine_labels": [0, 1, 2, 0, 1, -1]},
        {b"fine_labels": [b"apple"] * 6},
        {b"fine_labels": [0, 1, 2, 0, 1, 1 << 80]},
        {b"fine_labels": [0, 1, 2, 0, 1, 0.5]},
    ],
    ids=lambda change: " ".join(f"{key.decode()} {str(value)[:20]}" for key, value in change.items()),
)
def test_wrong_contents_name_the_file(folder: Path, change: Content) -> None:
    (folder / "test").write_bytes(as_official({**batch(6, 0), **change}))
    with pytest.raises(DataError, match=str(folder / "test")):
        load_cifar100()


def test_a_file_of_any_size_but_not_its_own_is_refused_unread(folder: Path) -> None:
    with (folder / "train").open("wb") as file:
        file.truncate(1 << 40)  # it takes no room on the disk
    with pytest.raises(
        DataError, match=rf"{folder / 'train'} has 1,099,511,627,776 bytes; it is not a file of CIFAR-100"
    ):
        load_cifar100()
    (folder / "train").unlink()
    (folder / "train").mkdir()
    with pytest.raises(DataError, match="was not found"):
        load_cifar100()


@pytest.mark.parametrize(
    "content",
    [{}, {b"fine_label_names": b"apple"}, {b"fine_label_names": ["apple"]}, {b"fine_label_names": []}],
)
def test_wrong_class_names_name_the_meta_file(folder: Path, content: Content) -> None:
    (folder / "meta").write_bytes(as_official(content))
    with pytest.raises(DataError, match=f"{folder / 'meta'}.*fine_label_names"):
        load_cifar100()


def test_missing_data_names_the_folders_looked_in_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_cifar100()
    message = str(caught.value)
    assert str(tmp_path / "given" / "cifar-100-python") in message
    assert str(tmp_path / "cache" / "fcil" / "cifar-100-python") in message
    assert "FCIL_DATA" in message
    assert "the network is off" in message


def test_a_folder_that_lacks_one_file_counts_as_missing(folder: Path) -> None:
    (folder / "meta").unlink()
    with pytest.raises(DataError, match="was not found"):
        load_cifar100()


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    members = write_folder(tmp_path / "unpacked" / "cifar-100-python")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        file.add(members, "cifar-100-python")
    return buffer.getvalue()


def serve(monkeypatch: pytest.MonkeyPatch, data: bytes, seconds: float = 0) -> list[str]:
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        asked.append(url)
        time.sleep(seconds)
        return io.BytesIO(data)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def kept(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache" / "fcil").iterdir() if path.suffix != ".lock"]


def test_two_that_need_it_at_once_download_it_once(
    tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, archive, seconds=0.3)
    monkeypatch.setattr(cifar100, "ARCHIVE_MD5", hashlib.md5(archive).hexdigest())
    with ThreadPoolExecutor(2) as pool:
        assert [len(source.train) for source in pool.map(lambda _: load_cifar100(), range(2))] == [6, 6]
    assert len(asked) == 1
    assert kept(tmp_path) == ["cifar-100-python"]


def test_an_archive_that_cannot_be_unpacked_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"no archive")
    monkeypatch.setattr(cifar100, "ARCHIVE_MD5", hashlib.md5(b"no archive").hexdigest())
    with pytest.raises(DataError, match="downloading it failed"):
        load_cifar100()
    assert kept(tmp_path) == []


def test_a_download_with_the_right_checksum_is_unpacked_once(
    tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, archive)
    monkeypatch.setattr(cifar100, "ARCHIVE_MD5", hashlib.md5(archive).hexdigest())
    assert load_cifar100().class_names == ("apple", "bee", "crab")
    assert len(load_cifar100().train) == 6
    assert asked == ["https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"]
    assert kept(tmp_path) == ["cifar-100-python"]


def test_a_download_with_a_wrong_checksum_leaves_nothing_behind(
    tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, archive)
    with pytest.raises(DataError, match=f"{hashlib.md5(archive).hexdigest()}.*eb9058c3a382ffc7106e4002c42a8d85"):
        load_cifar100()
    assert kept(tmp_path) == []


def test_a_download_that_breaks_off_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class BreaksOff(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise ConnectionResetError("connection reset")
            return super().read(10)

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: BreaksOff(b"x" * 100))
    with pytest.raises(DataError, match="connection reset"):
        load_cifar100()
    assert kept(tmp_path) == []


def test_the_real_cifar100_is_read_whole(real_cifar100: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCIL_DATA", str(real_cifar100))
    source = load_cifar100()
    assert torch.bincount(source.train.labels).tolist() == [500] * 100
    assert torch.bincount(source.test.labels).tolist() == [100] * 100
    assert source.image_shape == (3, 32, 32)
    assert source.class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert source.class_names[-1] == "worm"
    assert source.train.labels[:5].tolist() == [19, 29, 0, 11, 1]
    for channel, mean in enumerate((0.5071, 0.4865, 0.4409)):
        plane = source.train.images[:, channel].numpy()
        assert plane.mean() / 255 == pytest.approx(mean, abs=1e-4)
