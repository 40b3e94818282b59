from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.photos import ORIENTATIONS, scene, stored, write_photo
from support.trees import paint

from fcil.core.errors import ConfigError, DataError
from fcil.data.augment import as_floats
from fcil.data.datasets.image import decode
from fcil.experiment import predictor as module
from fcil.experiment.predictor import NONE, Prediction, Predictor
from fcil.models import ModelConfig, grow, initial_state, load_classifier

NAMES = ("ant", "bee", "cow")
CONFIG = ModelConfig(width=2)


def make_predictor(channels: int = 3, bias: float = 0.0) -> Predictor:
    state = grow(initial_state(CONFIG, channels, 1), 3, 2)
    state["head.weight"] = state["head.weight"] * 5  # so that the images matter
    state["head.bias"] = state["head.bias"] + bias
    net = load_classifier(CONFIG, [0.5] * channels, [0.3] * channels, state, torch.device("cpu")).eval()
    return Predictor(net, NAMES, (channels, 8, 8))


def close(found: list[Prediction], expected: list[Prediction]) -> bool:
    """Compare names and probabilities; the last bits depend on the batch an image is in."""
    pairs = zip(found, expected, strict=True)
    return all(a.name == b.name and a.probability == pytest.approx(b.probability, rel=1e-4) for a, b in pairs)


def test_a_photo_of_any_size_is_prepared_as_the_image_folder_prepares_it(tmp_path: Path) -> None:
    paint(tmp_path / "wide.png", 3, (31, 17))
    predictor = make_predictor()
    with torch.no_grad():
        outputs = predictor.net(as_floats(torch.from_numpy(decode(tmp_path / "wide.png", 8)))[None])[0]
    (found,) = predictor.predict(str(tmp_path / "wide.png"), top=3)
    order = outputs.argsort(descending=True)
    assert [name for name, _ in found.ranking] == [NAMES[output] for output in order]
    assert [value for _, value in found.ranking] == pytest.approx(outputs.softmax(0)[order].tolist(), rel=1e-5)
    assert (found.name, found.probability) == found.ranking[0]
    assert sum(value for _, value in found.ranking) == pytest.approx(1)


def test_a_photo_of_any_orientation_gets_the_same_prediction(tmp_path: Path) -> None:
    predictor = make_predictor()
    paths = [write_photo(tmp_path / f"{orientation}.jpg", orientation) for orientation in ORIENTATIONS]
    first, *others = predictor.predict(paths)
    assert {other.name for other in others} == {first.name}
    assert [other.probability for other in others] == pytest.approx([first.probability] * 7, abs=5e-4)
    sideways = Image.fromarray(stored(scene(), 6))
    assert predictor.predict(sideways)[0].probability != pytest.approx(first.probability, abs=1e-3)


def test_every_kind_of_input_gives_the_same_prediction(tmp_path: Path) -> None:
    pixels = paint(tmp_path / "photo.png", 4, (8, 8))
    path, planes = tmp_path / "photo.png", torch.from_numpy(pixels).permute(2, 0, 1)
    predictor = make_predictor()
    expected = predictor.predict(path)
    same = [
        str(path),
        path.read_bytes(),
        Image.open(path),
        pixels,
        pixels.astype(int),
        pixels / 255,
        planes,
        planes / 255,
    ]
    for image in same:
        assert predictor.predict(image) == expected
    assert close(predictor.predict(same), expected * len(same))
    assert close(predictor.predict(np.stack([pixels, pixels])), expected * 2)
    assert close(predictor.predict((planes / 255).double().expand(2, 3, 8, 8)), expected * 2)
    assert close(predictor.predict(image for image in same[:2]), expected * 2)
    assert predictor.predict([]) == []


def test_more_images_than_one_batch_come_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
    expected = make_predictor().predict(images)
    assert len({prediction.probability for prediction in expected}) == 7
    sizes = []
    predictor = make_predictor()
    predictor.net.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(module, "BATCH_PIXELS", 3 * 64)
    assert close(predictor.predict(images), expected)
    assert sizes == [3, 3, 1]


def test_a_grey_model_takes_colour_and_a_coloured_one_takes_grey(tmp_path: Path) -> None:
    grey = paint(tmp_path / "grey.png", 4, mode="L")
    rgb = np.stack([grey] * 3, 2)
    for predictor in (make_predictor(1), make_predictor(3)):
        expected = predictor.predict(grey)
        for image in (tmp_path / "grey.png", rgb, grey[None], grey[:, :, None], torch.from_numpy(grey) / 255):
            assert predictor.predict(image) == expected


@pytest.mark.parametrize("top", [0, 4, True, 1.0, "2"])
def test_top_is_a_number_of_classes(top: int) -> None:
    with pytest.raises(ConfigError, match=r"top: found .*, should be a whole number from 1 to 3"):
        make_predictor().predict([], top=top)


def test_a_model_that_diverged_says_so_and_names_no_class() -> None:
    with pytest.raises(DataError, match="not finite"):
        make_predictor(bias=float("nan")).predict(np.zeros((8, 8), dtype=np.uint8))


def test_a_temperature_softens_probabilities_and_a_threshold_rejects_what_is_unlikely() -> None:
    plain, images = make_predictor(), np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    before = plain.predict(images, top=3)
    warm = replace(plain, temperature=4.0)
    found = warm.predict(images, top=3)
    assert [one.name for one in found] == [one.name for one in before]
    for one, other in zip(found, before, strict=True):
        raised = np.array([value for _, value in other.ranking]) ** 0.25
        assert [value for _, value in one.ranking] == pytest.approx((raised / raised.sum()).tolist(), rel=1e-4)
    middle = sorted(one.probability for one in found)[10]
    judged = replace(warm, threshold=middle).predict(images)
    assert [one.rejected for one in judged] == [one.probability < middle for one in judged]
    assert [one.answer for one in judged] == [NONE if one.rejected else one.name for one in judged]
    assert sum(one.rejected for one in judged) == 10
    assert not any(one.rejected for one in before)
