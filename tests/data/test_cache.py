"""The cache of decoded images."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trees import paint, write_tree

from fcil.core.errors import DataError
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets import cache as decoded
from fcil.data.datasets import decode as decoding
from fcil.data.datasets.dataset import Source


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "mine"
    write_tree(root / "train", 4)
    write_tree(root / "test", 2, first=500)
    return root


def load(tree: Path, **fields: object) -> Source:
    return load_source(DataConfig(source="imagefolder", path=str(tree), **{"image_size": 8, **fields}))


def kept(tmp_path: Path) -> list[Path]:
    folders = (tmp_path / "cache" / "fcil" / "decoded").iterdir()
    return sorted(folder for folder in folders if folder.suffix != ".lock")


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded although the cache is there")

    monkeypatch.setattr(decoding, "decode", refuse)


def count_decoding(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    seen: list[object] = []
    original = decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda picture, size: seen.append(picture) or original(picture, size))
    return seen


def test_the_second_load_decodes_nothing_and_gives_the_same(
    tree: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tree)
    request.getfixturevalue("no_decoding")
    hashed: list[Path] = []
    monkeypatch.setattr(decoded, "_checksum", hashed.append)
    second = load(tree)
    assert not hashed
    for part in ("train", "test"):
        assert torch.equal(getattr(first, part).images, getattr(second, part).images)
        assert torch.equal(getattr(first, part).labels, getattr(second, part).labels)
    assert second.class_names == ("ant", "bee", "cow")
    fresh = Source(second.name, second.train, second.test, second.class_names)
    assert (second.digest, second.mean, second.deviation) == (fresh.digest, fresh.mean, fresh.deviation)


def test_what_is_cached_is_mapped_and_no_warning_is_seen(tree: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = load(tree)
    (folder,) = kept(tmp_path)
    array = np.load(folder / "train-images.npy", mmap_mode="r")
    assert array.dtype == np.uint8
    assert array.shape == (12, 3, 8, 8)
    assert np.array_equal(array, source.train.images.numpy())
    assert str(folder / "train-images.npy") in Path("/proc/self/maps").read_text() or sys.platform != "linux"


def test_samples_per_class_is_taken_from_the_same_cache(tree: Path, tmp_path: Path) -> None:
    load(tree)
    reduced = load(tree, samples_per_class=1)
    assert len(reduced.train) == 3
    assert reduced.digest != load(tree).digest
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("change", ["size", "file", "time", "name", "more"])
def test_another_size_or_file_is_another_cache(tree: Path, tmp_path: Path, change: str) -> None:
    load(tree)
    first = tree / "train" / "ant" / "000.png"
    if change == "file":
        paint(first, 99, (9, 9))
    elif change == "time":
        os.utime(first, (1, 1))
    elif change == "name":
        first.rename(first.with_name("zzz.png"))
    elif change == "more":
        paint(tree / "test" / "ant" / "new.png", 98)
    load(tree, image_size=16 if change == "size" else 8)
    assert len(kept(tmp_path)) == 2


def test_files_with_the_same_names_sizes_and_times_elsewhere_are_other_files(tmp_path: Path) -> None:
    digests = set()
    for place, shade in (("one", 0), ("other", 255)):
        (tmp_path / place).mkdir()
        path = tmp_path / place / "data.npz"
        np.savez(path, images=np.full((8, 6, 6), shade, dtype=np.uint8), labels=np.arange(8) % 2)
        os.utime(path, ns=(0, 0))
        config = DataConfig(source="npz", path=str(path), test_fraction=0.5, split_seed=0)
        digests.add(load_source(config).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("name", ["train-images.npy", "test-labels.npy", "facts.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone", "empty"])
def test_a_damaged_cache_is_decoded_again(
    tree: Path, tmp_path: Path, name: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = load(tree).digest
    (folder,) = kept(tmp_path)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    spoilt = {"truncated": data[: len(data) // 2], "flipped": data, "empty": b""}
    if damage == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(spoilt[damage])
    seen = count_decoding(monkeypatch)
    again = load(tree)
    assert again.digest == digest
    assert again.class_names == ("ant", "bee", "cow")
    if (name, damage) != ("checksums.json", "flipped"):  # there the bit may lie in a time, which is hashed and passes
        assert len(seen) == 18
    seen.clear()
    load(tree)
    assert not seen


@pytest.mark.parametrize("name", ["facts.json", "train-labels.npy"])
def test_a_cache_with_right_checksums_of_wrong_contents_is_decoded_again(tree: Path, tmp_path: Path, name: str) -> None:
    first = load(tree)
    (folder,) = kept(tmp_path)
    path = folder / name
    if name == "facts.json":
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in facts.items() if key != "digest"}))
    else:
        np.save(path, np.zeros(3, dtype=np.int64))
    noted = json.loads((folder / "checksums.json").read_text())
    noted[name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "checksums.json").write_text(json.dumps(noted))
    assert load(tree).digest == first.digest


def test_a_file_with_another_time_is_hashed_once_and_kept(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tree)
    (folder,) = kept(tmp_path)
    os.utime(folder / "train-images.npy", (1, 1))
    hashed: list[Path] = []
    original = decoded._checksum
    monkeypatch.setattr(decoded, "_checksum", lambda path: hashed.append(path) or original(path))
    seen = count_decoding(monkeypatch)
    load(tree)
    load(tree)
    assert [path.name for path in hashed] == ["train-images.npy"]
    assert not seen


def test_what_a_killed_process_left_is_cleared_away(tree: Path, tmp_path: Path) -> None:
    load(tree)
    (folder,) = kept(tmp_path)
    partial = folder.with_name(f"{folder.name}.part")
    folder.rename(partial)
    (partial / "rest").write_bytes(b"of a former attempt")
    load(tree)
    assert kept(tmp_path) == [folder]
    assert not (folder / "rest").exists()


def test_who_waited_while_another_decoded_uses_its_result(tree: Path) -> None:
    config = DataConfig(source="imagefolder", path=str(tree), image_size=8)
    decoded_by_other: list[int] = []
    other = threading.Thread(target=load_source, args=(config, lambda done, _: decoded_by_other.append(done)))

    def begin_other(done: int, total: int) -> None:
        if done == 1:
            other.start()
            other.join(0.2)
            assert other.is_alive()

    load_source(config, begin_other)
    other.join(60)
    assert not other.is_alive()
    assert not decoded_by_other


def test_an_interruption_leaves_nothing_behind(tree: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_source(DataConfig(source="imagefolder", path=str(tree), image_size=8), interrupt)
    assert kept(tmp_path) == []


def test_a_cache_that_cannot_be_written_costs_a_warning(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    source = load(tree)
    assert len(source.train) == 12
    assert source.train.images.float().mean() > 0
    (warning,) = source.warnings
    assert f"{tmp_path / 'cache' / 'fcil' / 'decoded'} cannot be written to" in warning
    assert "decoded anew at each start" in warning


def test_no_room_anywhere_is_said(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoding.RowFile, "append", full)
    with pytest.raises(DataError, match=r"cannot be written to .*No space left.* neither can .* make room"):
        load(tree)


@pytest.mark.parametrize("broken", [b"", b"\xff\xd8\xff\xe0 not a JPEG", b"\x89PNG\r\n\x1a\n"])
def test_a_broken_image_is_named_and_refused(tree: Path, tmp_path: Path, broken: bytes) -> None:
    (tree / "train" / "bee" / "001.png").write_bytes(broken)
    with pytest.raises(DataError, match=f"{tree / 'train' / 'bee' / '001.png'} cannot be decoded: .*data.broken=skip"):
        load(tree)
    assert kept(tmp_path) == []


def test_broken_images_are_skipped_by_choice_and_named_at_every_start(
    tree: Path, request: pytest.FixtureRequest
) -> None:
    whole = load(tree)
    names = [tree / "train" / name for name in ("ant/000.png", "bee/003.png", "cow/001.png")] + [
        tree / "test" / "ant" / "000.png"
    ]
    for path in names:
        path.write_bytes(path.read_bytes()[:40])
    source = load(tree, broken="skip")
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert source.test.labels.tolist() == [0, 1, 1, 2, 2]
    remaining = [row for row in range(12) if row not in (0, 7, 9)]
    assert torch.equal(source.train.images, whole.train.images[remaining])
    sentence = f"4 broken images left out: {', '.join(map(str, names[:3]))} and 1 more"
    assert source.warnings == (sentence,)
    request.getfixturevalue("no_decoding")
    assert load(tree, broken="skip").warnings == (sentence,)


def test_a_class_that_loses_all_its_images_is_named(tree: Path) -> None:
    for path in (tree / "test" / "cow").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="class cow has no test image"):
        load(tree, broken="skip")


def test_progress_counts_every_image_once(tree: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = DataConfig(source="imagefolder", path=str(tree), image_size=8)
    load_source(config, lambda done, total: seen.append((done, total)))
    assert seen == [(done, 18) for done in range(1, 19)]
    load_source(config, lambda done, total: seen.append((done, total)))
    assert len(seen) == 18


@pytest.mark.parametrize("count", [1, 9, 10, 12345])
def test_rows_grow_into_an_array_that_numpy_reads(tmp_path: Path, count: int) -> None:
    rows = np.random.default_rng(count).integers(0, 256, (count, 1, 2, 3), dtype=np.uint8)
    with decoding.RowFile(tmp_path / "rows.npy") as file:
        for row in rows:
            file.append(row)
    assert np.array_equal(np.load(tmp_path / "rows.npy"), rows)


def test_the_checksums_are_those_of_the_files(tree: Path, tmp_path: Path) -> None:
    load(tree)
    (folder,) = kept(tmp_path)
    noted = json.loads((folder / "checksums.json").read_text())
    assert sorted([*noted, "checksums.json"]) == sorted(path.name for path in folder.iterdir())
    for name, note in noted.items():
        assert note["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert note["size"] == (folder / name).stat().st_size
