from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fcil.core.errors import ConfigError, DataError
from fcil.core.messages import ModelState, generator
from fcil.data.datasets.dataset import Source, Split
from fcil.experiment.model_file import load_model, model_bytes
from fcil.models import ModelConfig, grow, initial_state, load_classifier

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
    assert predictor.image_shape == (3, 8, 8)
    assert not predictor.net.training
    with torch.no_grad():
        assert torch.equal(predictor.net(IMAGES), outputs)
    names = [("cat", "ant", "dog")[output] for output in outputs.argmax(1).tolist()]
    assert [prediction.name for prediction in predictor.predict(SOURCE.test.images)] == names
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
    with pytest.raises(DataError, match=r"absent\.safetensors cannot be read as a model: No such file"):
        load_model(tmp_path / "absent.safetensors")
    with pytest.raises(DataError, match=r"holds no model.safetensors; name the directory of a run or a release"):
        load_model(tmp_path)


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "meta", "toaster", ""])
def test_a_device_that_is_not_there_gets_a_sentence(file: Path, device: str) -> None:
    if torch.cuda.is_available() and device == "cuda":
        pytest.skip("this machine has one")
    with pytest.raises(ConfigError, match=rf"^device: {device} is not available on this machine; use cpu"):
        load_model(file, device)


def sealed(tensors: ModelState, **facts: object) -> bytes:
    """Return a file with a right digest, whatever its contents."""
    data: bytes = save(tensors, metadata={"fcil": json.dumps({"sha256": "0" * 64, **facts})})
    return data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1)


FACTS = {
    "class_names": ["cat", "ant", "dog"],
    "model": CONFIG.model_dump(),
    "mean": SOURCE.mean,
    "deviation": SOURCE.deviation,
    "image_shape": (3, 8, 8),
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, this is a text",
        b"\xff" * 200,
        b"\x00\x00\x01\x00\x00\x00\x00\x00" + b"[" * 65536,
        save({"weight": torch.zeros(2)}),
        save(MODEL, metadata={"fcil": "no json"}),
        save(MODEL, metadata={"fcil": "{}"}),
        save(MODEL, metadata={"fcil": "[]"}),
        save(MODEL, metadata={"fcil": json.dumps(FACTS)}),
        save(MODEL, metadata={"fcil": json.dumps({**FACTS, "sha256": 1})}),
    ],
    ids=["empty", "text", "ones", "deep", "no facts", "no json", "empty facts", "list", "no digest", "odd digest"],
)
def test_what_is_no_model_of_fcil_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "strange.safetensors"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"strange\.safetensors is not a model written by fcil"):
        load_model(path)


@pytest.mark.parametrize(
    ("tensors", "change", "reason"),
    [
        (MODEL, {"model": {"width": 4}}, "does not fit a network of this shape"),
        (MODEL, {"model": {"width": 0}}, "model.width: found 0, should be at least 1"),
        (MODEL, {"class_names": ["cat", "ant"]}, "its weights do not fit its facts"),
        (MODEL, {"mean": [0.5]}, "its weights do not fit its facts"),
        (MODEL, {"more": 1}, "more: unknown key"),
        ({"head.weight": MODEL["head.weight"]}, {}, "does not fit a network of this shape"),
        ({"weight": torch.zeros(2)}, {}, "head.weight"),
    ],
)
def test_contents_that_do_not_fit_are_refused_in_one_line(
    file: Path, tensors: ModelState, change: dict[str, object], reason: str
) -> None:
    file.write_bytes(sealed(tensors, **{**FACTS, **change}))
    with pytest.raises(DataError, match=reason) as caught:
        load_model(file)
    assert str(caught.value).startswith(f"{file} is not a model that this version of fcil can use")
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="is damaged"):
        load_model(file)


def test_one_flipped_bit_anywhere_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    header = 8 * (8 + int.from_bytes(whole[:8], "little"))
    random = np.random.default_rng(5)
    for bit in [*random.integers(0, header, 60), *random.integers(header, 8 * len(whole), 60)]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{file} is .*damaged"):
            load_model(file)
