"""Data sets that a program passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.trees import paint
from torch.utils.data import Dataset

from fcil.core.errors import DataError
from fcil.data.datasets import at_hand, load_source
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.in_memory import given_source


def grey(value: int, side: int = 4) -> np.ndarray:
    return np.full((side, side), value, dtype=np.uint8)


def config(**fields: Any) -> DataConfig:
    return DataConfig(source="python", **{"test_fraction": 0.5, **fields})


PAIRS = [(grey(10 * number), number % 2) for number in range(8)]


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A torch Dataset with names for its classes and floats for pixels; like most, it does not end by itself."""

    classes = ("dark", "light")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((1, 4, 4), 10 * place / 255), torch.tensor(place % 2)


def test_a_list_and_a_dataset_of_the_same_samples_are_the_same_data() -> None:
    listed, dataset = given_source(PAIRS, config()), given_source(Squares(), config())
    assert listed.digest == dataset.digest
    assert (listed.class_names, dataset.class_names) == (("0", "1"), ("dark", "light"))
    assert listed.image_shape == (1, 4, 4)
    assert [len(listed.train), len(listed.test)] == [4, 4]
    assert sorted(listed.test.labels.tolist()) == [0, 0, 1, 1]
    together = torch.cat([listed.train.images, listed.test.images])[:, 0, 0, 0]
    assert sorted(together.tolist()) == [10 * number for number in range(8)]


def test_images_may_be_files_pictures_arrays_and_tensors(tmp_path: Path) -> None:
    pixels = paint(tmp_path / "a.png", 1, (6, 6))
    forms = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        (tmp_path / "a.png").read_bytes(),
        Image.fromarray(pixels),
        pixels,
        torch.from_numpy(pixels.transpose(2, 0, 1).copy()),
    ]
    source = given_source(
        {"train": [(form, "x") for form in forms], "test": [(pixels, "x")]}, config(test_fraction=None)
    )
    assert (source.train.images == source.test.images[0]).all()
    assert source.image_shape == (3, 6, 6)


def test_names_as_labels_are_numbered_in_their_order_and_columns_are_found_by_name() -> None:
    rows = [{"picture": grey(number), "kind": name} for number, name in enumerate(["cow", "ant", "cow", "ant"])]
    source = given_source(rows, config(image_column="picture", label_column="kind"))
    assert source.class_names == ("ant", "cow")
    found = dict(zip(source.train.images[:, 0, 0, 0].tolist(), source.train.labels.tolist(), strict=True))
    assert all(label == (number + 1) % 2 for number, label in found.items())


def test_the_parts_and_the_names_may_be_given() -> None:
    data = {"train": PAIRS[:6], "test": PAIRS[6:], "class_names": ["even", "odd"]}
    source = given_source(data, config(test_fraction=None))
    assert source.class_names == ("even", "odd")
    assert source.test.labels.tolist() == [0, 1]
    assert given_source(source, config()) is source


def test_images_are_brought_to_one_size() -> None:
    source = given_source([(grey(number, 4 + number), 0) for number in range(4)], config(image_size=8))
    assert source.image_shape == (1, 8, 8)


def test_a_broken_image_is_refused_by_its_place_or_left_out_with_a_warning() -> None:
    broken = [*PAIRS, (b"no picture", 1)]
    with pytest.raises(DataError, match=r"data: sample 8 cannot be read as an image: .*set data.broken=skip"):
        given_source(broken, config())
    source = given_source(broken, config(broken="skip"))
    assert source.warnings == ("1 broken image left out: sample 8",)
    assert source.digest == given_source(PAIRS, config()).digest


@pytest.mark.parametrize(
    ("data", "fields", "sentence"),
    [
        (PAIRS, {"test_fraction": None}, "data has no test part; add one, or set data.test_fraction"),
        ({"train": PAIRS, "test": PAIRS}, {}, "data: it has a test part of its own; leave data.test_fraction out"),
        ({"train": PAIRS, "test": PAIRS[:1]}, {"test_fraction": None}, "data: class 1 has no test image"),
        ({"training": PAIRS}, {}, "data: found a mapping with training; its keys should be train"),
        ([], {}, "data: it holds no images"),
        ("photos", {}, "data: found a str; it should be a sequence or Dataset"),
        (7, {}, "data: found a int; it should be a sequence or Dataset"),
        ([grey(1)], {}, r"data: sample 0 is a ndarray; it should be a pair \(image, label\)"),
        ([(grey(1), 0, 2)], {}, r"data: sample 0 is a tuple; it should be a pair"),
        ([{"image": grey(1)}], {}, "data: sample 0 has no label, only image"),
        ([(grey(1), "a"), (grey(1), 1)], {}, "data: found the label 'a'; labels should all be whole numbers"),
        ([(grey(1), 0.5)] * 2, {}, "data: found the label 0.5"),
        ([(grey(1), True)] * 2, {}, "data: found the label True"),
        (
            [(grey(1), 0), (grey(1), 2)] * 2,
            {},
            "data holds the label 2; labels should be the whole numbers from 0 to 1",
        ),
        ([(grey(1, 4), 0), (grey(1, 5), 0)], {}, r"images of shape \(1, 4, 4\) and \(1, 5, 5\); set data.image_size"),
        ([(grey(1), 0), (np.zeros((4, 4, 3), np.uint8), 0)], {}, "images of one and of three channels"),
        ({"train": PAIRS, "class_names": "ab"}, {}, "data: class_names is 'ab'; it should be a list of texts"),
        ({"train": PAIRS, "class_names": ["a"]}, {}, "data holds 2 different labels, but class_names has 1"),
        ([(grey(1), 0)], {}, "data: class 0 has 1 image; to divide it takes two at least"),
    ],
)
def test_what_is_no_data_gets_a_sentence(data: Any, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        given_source(data, config(**fields))


def test_without_its_data_the_source_says_what_to_do() -> None:
    assert not at_hand(config())
    with pytest.raises(DataError, match=r"data.source: python is data that a program passes to fcil.run"):
        load_source(config())
