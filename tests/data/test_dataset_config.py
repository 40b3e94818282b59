from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from fcil.core.errors import ConfigError
from fcil.data.datasets import DATASETS, DataConfig
from fcil.experiment.config import parse_config


def refusal(**data: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config({"data": data})
    return str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"source": "tinyimagenet"},
        {"source": "tinyimagenet", "path": "somewhere", "broken": "skip"},
        {"source": "imagenet-subset", "image_size": 64},
        {"source": "imagefolder", "path": "photos", "image_size": 32, "test_fraction": 0.2, "split_seed": 7},
        {"source": "npz", "path": "data.npz"},
        {"source": "parquet", "path": "data.parquet", "image_size": 32, "image_column": "img"},
    ],
)
def test_a_configuration_of_files_gives_itself_back(data: dict[str, object]) -> None:
    config = parse_config({"data": data})
    assert data.items() <= config.document()["data"].items()
    assert parse_config(json.loads(json.dumps(config.document()))) == config


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"source": "imagefolder", "image_size": 32},
            "data.path: absent, should be the folder of the data for imagefolder",
        ),
        ({"source": "npz"}, "data.path: absent, should be the file of the data for npz"),
        ({"source": "digits", "path": "x"}, "data.path: found 'x', should be absent for digits"),
        (
            {"source": "imagefolder", "path": "x"},
            "data.image_size: absent, should be the pixels per side to which imagefolder scales its images",
        ),
        ({"source": "imagenet-subset", "image_size": 96}, "data.image_size: found 96, should be 64 or 224"),
        ({"source": "cifar100", "test_fraction": 0.2}, "data.test_fraction: found 0.2, should be absent for cifar100"),
        ({"source": "npz", "path": "x", "test_fraction": 1.0}, "data.test_fraction: found 1.0, should be below 1"),
        ({"broken": "ignore"}, "data.broken: found 'ignore', should be 'refuse' or 'skip'"),
        (
            {"source": "imagefolders"},
            "data.source: found 'imagefolders', should be one of: cifar100, digits, ",
        ),
    ],
)
def test_options_that_do_not_fit_get_a_sentence(data: dict[str, object], sentence: str) -> None:
    assert sentence in refusal(**data)


def test_the_lines_in_the_documentation_are_configurations_of_every_data_set() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    lines = re.findall(r"`(data = \{.*?\})`", page)
    sources = [parse_config(tomllib.loads(line)).data.source for line in lines]
    assert sorted(sources) == sorted(DATASETS)


def test_a_tilde_in_the_path_is_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/ada")
    assert str(DataConfig(source="npz", path="~/data.npz").place) == "/people/ada/data.npz"
