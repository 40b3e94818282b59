"""Folders of images: TinyImageNet, ImageNet-Subset and a user's own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trees import CLASSES, paint, write_tiny, write_tree

from fcil.core.errors import DataError
from fcil.data.datasets import DataConfig, imagenet_subset, load_source
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.image import decode


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCIL_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def folder_source(path: Path, **fields: object) -> Source:
    return load_source(DataConfig(source="imagefolder", path=str(path), image_size=8, **fields))


def refusal(path: Path, **fields: object) -> str:
    with pytest.raises(DataError) as caught:
        folder_source(path, **fields)
    return str(caught.value)


@pytest.mark.parametrize("place", ["given", "given/tiny-imagenet-200", "cache/fcil/tiny-imagenet-200"])
def test_tinyimagenet_is_found_in_the_given_folder_and_in_the_cache(tmp_path: Path, place: str) -> None:
    write_tiny(tmp_path / place)
    source = load_source(DataConfig(source="tinyimagenet"))
    assert source.image_shape == (3, 64, 64)
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert source.test.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_classes_of_tinyimagenet_are_in_order_of_their_ids_and_named_by_its_words(tmp_path: Path) -> None:
    source = load_source(DataConfig(source="tinyimagenet", path=str(write_tiny(tmp_path / "mine"))))
    assert source.class_names == ("goldfish, Carassius auratus", "boa", "n03")
    assert source.name == "tinyimagenet"


def test_a_grey_image_of_tinyimagenet_has_three_equal_channels(tmp_path: Path) -> None:
    images = load_source(DataConfig(source="tinyimagenet", path=str(write_tiny(tmp_path / "mine")))).train.images
    equal = [torch.equal(image[0], image[1]) and torch.equal(image[0], image[2]) for image in images]
    assert equal == [False, True, False] * 3


def test_tinyimagenet_is_decoded_at_another_size_if_asked_for(tmp_path: Path) -> None:
    source = load_source(DataConfig(source="tinyimagenet", path=str(write_tiny(tmp_path / "mine")), image_size=32))
    assert source.image_shape == (3, 32, 32)


def test_a_missing_tinyimagenet_names_the_folders_looked_in_and_the_layout(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_source(DataConfig(source="tinyimagenet"))
    for part in (tmp_path / "given" / "tiny-imagenet-200", tmp_path / "cache" / "fcil", "FCIL_DATA", "wnids.txt"):
        assert str(part) in str(caught.value)


@pytest.mark.parametrize("line", ["val_x.JPEG\tn99\t0", "val_x.JPEG"])
def test_an_annotation_of_no_known_class_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    root = write_tiny(tmp_path / "mine")
    with (root / "val" / "val_annotations.txt").open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=r"val_annotations.txt line 7: found 'val_x"):
        load_source(DataConfig(source="tinyimagenet", path=str(root)))


@pytest.mark.parametrize("gone", ["val/val_annotations.txt", "train/n02/images", "val/images/val_n02_1.JPEG"])
def test_what_is_missing_in_tinyimagenet_is_named(tmp_path: Path, gone: str) -> None:
    root = write_tiny(tmp_path / "mine")
    (root / gone).rename(tmp_path / "gone")
    with pytest.raises(DataError, match=str(root / gone)):
        load_source(DataConfig(source="tinyimagenet", path=str(root)))


def test_the_real_tinyimagenet_is_read(real_tinyimagenet: Path, tmp_path: Path) -> None:
    wanted = ("n01742172", "n01443537")  # two classes, to be quick
    root = tmp_path / "two"
    for part in ("train", "val"):
        (root / part).mkdir(parents=True)
    for wnid in wanted:
        (root / "train" / wnid).symlink_to(real_tinyimagenet / "train" / wnid)
    (root / "val" / "images").symlink_to(real_tinyimagenet / "val" / "images")
    (root / "words.txt").symlink_to(real_tinyimagenet / "words.txt")
    (root / "wnids.txt").write_text("\n".join(wanted))
    lines = (real_tinyimagenet / "val" / "val_annotations.txt").read_text().splitlines()
    kept = [line for line in lines if line.split("\t")[1] in wanted]
    (root / "val" / "val_annotations.txt").write_text("\n".join(kept))
    source = load_source(DataConfig(source="tinyimagenet", path=str(root)))
    assert source.class_names == ("goldfish, Carassius auratus", "boa constrictor, Constrictor constrictor")
    assert torch.bincount(source.train.labels).tolist() == [500, 500]
    assert torch.bincount(source.test.labels).tolist() == [50, 50]
    assert source.image_shape == (3, 64, 64)


@pytest.fixture
def small_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the subset 3 of 6 classes with 2 training images and 1 test image each."""
    for name, value in {"ALL_CLASSES": 6, "CLASSES": 3, "TRAINING": 2, "TEST": 1}.items():
        monkeypatch.setattr(imagenet_subset, name, value)


def subset_source(path: Path) -> Source:
    return load_source(DataConfig(source="imagenet-subset", path=str(path), image_size=64))


def test_the_subset_is_the_first_hundred_of_a_shuffle_by_seed_1993() -> None:
    np.random.seed(1993)  # the published recipe
    order = list(range(1000))
    np.random.shuffle(order)
    folders = [Path(f"{place:04}") for place in range(1000)]
    chosen = imagenet_subset.subset(folders, Path("root"))
    assert [int(folder.name) for folder in chosen] == sorted(order[:100])
    assert imagenet_subset.subset(folders[:100], Path("root")) == folders[:100]


@pytest.mark.usefixtures("small_subset")
def test_a_whole_imagenet_gives_both_parts_out_of_its_training_files(tmp_path: Path) -> None:
    names = [f"n{place}" for place in range(6)]
    write_tree(tmp_path / "train", 4, names)
    write_tree(tmp_path / "val", 4, names, first=100_000)
    source = subset_source(tmp_path)
    chosen = np.random.RandomState(1993).permutation(6)[:3]
    assert source.class_names == tuple(f"n{place}" for place in sorted(chosen))
    assert (source.train.labels.tolist(), source.test.labels.tolist()) == ([0, 0, 1, 1, 2, 2], [0, 1, 2])
    for label, name in enumerate(source.class_names):
        assert np.array_equal(source.test.images[label], decode(tmp_path / "train" / name / "002.png", 64))


@pytest.mark.usefixtures("small_subset")
def test_a_subset_that_is_divided_already_keeps_its_division_and_its_names(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", 2)
    write_tree(tmp_path / "val", 1, first=500)
    (tmp_path / "words.txt").write_text("bee\thoney bee\n")
    source = subset_source(tmp_path)
    assert source.class_names == ("ant", "honey bee", "cow")
    assert (len(source.train), len(source.test)) == (6, 3)
    assert source.image_shape == (3, 64, 64)


@pytest.mark.usefixtures("small_subset")
@pytest.mark.parametrize(
    ("classes", "train", "val", "sentence"),
    [
        (4, 3, 0, "train holds 4 folders; there should be the 6 classes of ImageNet, or the 3 of its subset"),
        (3, 1, 5, "train/n0 holds 1 images; there should be 2 at least"),
        (3, 2, 0, "hold 2 images; there should be 3 at least"),
    ],
)
def test_a_tree_that_is_no_imagenet_is_refused(
    tmp_path: Path, classes: int, train: int, val: int, sentence: str
) -> None:
    names = [f"n{place}" for place in range(classes)]
    write_tree(tmp_path / "train", train, names)
    write_tree(tmp_path / "val", val, names)
    with pytest.raises(DataError, match=sentence):
        subset_source(tmp_path)


def test_imagenet_subset_has_224_pixels_a_side_unless_64_are_asked_for() -> None:
    from fcil.data.datasets.imagenet_subset import SIZE

    assert SIZE == 224
    with pytest.raises(DataError, match="imagenet-subset was not found"):
        load_source(DataConfig(source="imagenet-subset"))


def test_two_trees_are_read_class_by_class_in_order_of_names(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", 3)
    write_tree(tmp_path / "test", 1, first=500)
    pixels = paint(tmp_path / "train" / "bee" / "deep" / "0.PNG", 77)
    (tmp_path / "train" / "bee" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "bee" / "._000.png").write_bytes(b"not an image either")
    (tmp_path / "train" / ".hidden").mkdir()
    source = folder_source(tmp_path)
    assert source.class_names == CLASSES
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert source.test.labels.tolist() == [0, 1, 2]
    assert any(np.array_equal(image, pixels.transpose(2, 0, 1)) for image in source.train.images.numpy())


@pytest.mark.parametrize("tree", [".", "train"])
def test_one_tree_is_divided_by_class_and_seed(tmp_path: Path, tree: str) -> None:
    root = tmp_path / "mine"
    write_tree(root / tree, 10)
    source = folder_source(root, test_fraction=0.3)
    assert torch.bincount(source.train.labels).tolist() == [7, 7, 7]
    assert torch.bincount(source.test.labels).tolist() == [3, 3, 3]
    again = folder_source(root, test_fraction=0.3, broken="skip")  # decoded anew
    assert again.digest == source.digest
    assert folder_source(root, test_fraction=0.3, split_seed=1).digest != source.digest
    train = {image.numpy().tobytes() for image in source.train.images}
    assert len(train) == 21
    assert not train & {image.numpy().tobytes() for image in source.test.images}


def test_images_of_differing_sizes_are_brought_to_one(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    for name in CLASSES:
        paint(tmp_path / name / "wide.png", 5, (30, 12))
    assert folder_source(tmp_path, test_fraction=0.5).image_shape == (3, 8, 8)


def test_hidden_folders_are_passed_over(tmp_path: Path) -> None:
    write_tree(tmp_path, 2)
    paint(tmp_path / CLASSES[0] / ".ipynb_checkpoints" / "copy.png", 7)
    source = folder_source(tmp_path, test_fraction=0.5)
    assert len(source.train) + len(source.test) == 2 * len(CLASSES)


def test_what_is_wrong_with_a_tree_is_said(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "empty holds no folders" in refusal(tmp_path / "empty", test_fraction=0.5)
    write_tree(tmp_path / "one", 2)
    assert "set data.test_fraction" in refusal(tmp_path / "one")
    (tmp_path / "one" / "dog").mkdir()
    assert f"{tmp_path / 'one' / 'dog'} holds no images" in refusal(tmp_path / "one", test_fraction=0.5)
    write_tree(tmp_path / "single", 1)
    assert "class ant has 1 image" in refusal(tmp_path / "single", test_fraction=0.5)
    write_tree(tmp_path / "two" / "test", 1, ("ant", "bee", "dog"))
    assert "holds test/ but no train/" in refusal(tmp_path / "two")
    write_tree(tmp_path / "two" / "train", 2)
    assert "train has the class cow, which the other part lacks" in refusal(tmp_path / "two")
    write_tree(tmp_path / "three" / "train", 1)
    write_tree(tmp_path / "three" / "test", 1)
    assert "leave data.test_fraction out" in refusal(tmp_path / "three", test_fraction=0.5)


@pytest.mark.parametrize("source", ["imagefolder", "npz", "parquet", "tinyimagenet", "imagenet-subset"])
def test_a_path_that_the_system_refuses_gets_a_sentence(tmp_path: Path, source: str) -> None:
    size = {} if source == "npz" else {"image_size": 64}
    with pytest.raises(DataError, match="a" * 300):
        load_source(DataConfig(source=source, path=str(tmp_path / ("a" * 300)), **size))


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
@pytest.mark.parametrize(
    "content", [b"n01\0\tn02\n", b"\xff\xfe", b"n" * 300, b""], ids=["zero", "bytes", "long", "empty"]
)
def test_damaged_lists_of_tinyimagenet_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    root = write_tiny(tmp_path / "mine")
    (root / name).write_bytes(content)
    if name == "words.txt" and content in (b"n" * 300, b""):  # then classes are called by their ids
        assert load_source(DataConfig(source="tinyimagenet", path=str(root))).class_names[0] == "n01"
        return
    with pytest.raises(DataError, match=str(root)):
        load_source(DataConfig(source="tinyimagenet", path=str(root)))


def test_a_pipe_among_the_pictures_is_broken_and_not_waited_for(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", 2)
    os.mkfifo(tmp_path / "mine" / CLASSES[0] / "pipe.png")
    assert "pipe.png cannot be decoded: it is not a file" in refusal(tmp_path / "mine", test_fraction=0.5)
