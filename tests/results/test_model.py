from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from fcil.data.source import Source, Split
from fcil.errors import DataError
from fcil.models import ModelConfig, grow, initial_state, load_classifier
from fcil.results.model import load_model, model_bytes
from fcil.wire import ModelState, generator

CONFIG = ModelConfig(width=2, last_relu=False)
CATALOGUE = (2, 0, 3)


def make_source() -> Source:
    images = torch.randint(0, 256, (40, 3, 8, 8), generator=generator(4), dtype=torch.uint8)
    split = Split(images, torch.arange(40) % 4)
    return Source("noise", split, split, ("ant", "bee", "cat", "dog"))


def make_model() -> ModelState:
    """Return a model whose bias is such that it predicts every class now and then."""
    fresh = grow(initial_state(CONFIG, 3, 1), 3, 2)
    net = load_classifier(CONFIG, SOURCE.mean, SOURCE.deviation, fresh, torch.device("cpu")).eval()
    with torch.no_grad():
        return {**fresh, "head.bias": fresh["head.bias"] - net(IMAGES).mean(0)}


SOURCE = make_source()
IMAGES = SOURCE.test.images.float() / 255
MODEL = make_model()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes(MODEL, CATALOGUE, SOURCE, CONFIG))
    return path


def test_a_loaded_model_predicts_as_the_saved_one_and_names_its_classes(file: Path) -> None:
    net = load_classifier(CONFIG, SOURCE.mean, SOURCE.deviation, MODEL, torch.device("cpu")).eval()
    with torch.no_grad():
        outputs = net(IMAGES)
    predictor = load_model(file)
    assert predictor.class_names == ("cat", "ant", "dog")
    assert not predictor.net.training
    with torch.no_grad():
        assert torch.equal(predictor.net(IMAGES), outputs)
    names = [("cat", "ant", "dog")[output] for output in outputs.argmax(1).tolist()]
    assert predictor.predict(IMAGES) == names
    assert len(set(names)) > 1


def test_a_path_may_be_text(file: Path) -> None:
    assert load_model(str(file)).class_names == ("cat", "ant", "dog")


def test_equal_models_are_equal_files() -> None:
    backwards = dict(reversed([(name, tensor.clone()) for name, tensor in MODEL.items()]))
    assert model_bytes(backwards, CATALOGUE, make_source(), CONFIG) == model_bytes(MODEL, CATALOGUE, SOURCE, CONFIG)


def test_another_weight_or_another_catalogue_is_another_file() -> None:
    other = {**MODEL, "head.bias": MODEL["head.bias"] + 1}
    files = {
        model_bytes(MODEL, CATALOGUE, SOURCE, CONFIG),
        model_bytes(other, CATALOGUE, SOURCE, CONFIG),
        model_bytes(MODEL, (0, 2, 3), SOURCE, CONFIG),
    }
    assert len(files) == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.safetensors is not a model written by fcil"):
        load_model(tmp_path / "absent.safetensors")


FACTS = {"class_names": ["a"], "model": {"width": 2}, "mean": [0.5], "deviation": [0.5]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, this is a text",
        save({"weight": torch.zeros(2)}),
        save({"weight": torch.zeros(2)}, metadata={"fcil": "no json"}),
        save({"weight": torch.zeros(2)}, metadata={"fcil": "{}"}),
        save({"weight": torch.zeros(2)}, metadata={"fcil": "[]"}),
        save({"weight": torch.zeros(2)}, metadata={"fcil": json.dumps(FACTS)}),
        save({"weight": torch.zeros(2)}, metadata={"fcil": json.dumps({**FACTS, "model": {"width": 0}})}),
    ],
    ids=["empty", "text", "no facts", "no json", "empty facts", "list", "no weights", "bad width"],
)
def test_what_is_no_model_of_fcil_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "strange.safetensors"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"strange\.safetensors is not a model written by fcil"):
        load_model(path)


def test_a_model_whose_weights_do_not_fit_its_facts_is_refused(file: Path) -> None:
    facts = {
        "class_names": ["cat", "ant", "dog"],
        "model": {"width": 4},
        "mean": SOURCE.mean,
        "deviation": SOURCE.deviation,
    }
    file.write_bytes(save(load(file.read_bytes()), metadata={"fcil": json.dumps(facts)}))
    with pytest.raises(DataError, match="is not a model written by fcil"):
        load_model(file)


def test_a_cut_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="is not a model written by fcil"):
        load_model(file)
