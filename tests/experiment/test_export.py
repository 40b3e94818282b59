from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.colours import COLOURS, paint_plain, write_colour_model

import fcil
from fcil.core.errors import DataError, FileError
from fcil.experiment import export as module
from fcil.experiment.export import BOUND, SAFETENSORS, TORCHSCRIPT, Format, Run, export
from fcil.experiment.model_file import load_model, named_model, noted
from fcil.models import ModelConfig, grow, initial_state

pytestmark = pytest.mark.numeric
NAMES = ("ant", "bée", "cow", "0" * 64)
SHAPES = {"linear": (3, 9, 12), "proxies": (1, 8, 8)}
FORMATS = {"torchscript": TORCHSCRIPT, "safetensors": SAFETENSORS}
WANTED = {"fcil_version": fcil.__version__, "class_names": json.dumps(NAMES)}


def write_random_model(path: Path, head: str, weight: float = 20.0) -> Path:
    """Write a model with random weights, large enough for its images to matter."""
    channels = SHAPES[head][0]
    config = ModelConfig(
        width=2,
        head=head,  # type: ignore[arg-type]
        stem="cifar" if head == "linear" else "imagenet",
        last_relu=head == "linear",
        mean=(0.4, 0.5, 0.6)[:channels],
        deviation=(0.2, 0.3, 0.4)[:channels],
    )
    state = grow(initial_state(config, channels, 1), len(NAMES), 2)
    scaled = "head.weight" if head == "linear" else "head.scale"
    path.write_bytes(named_model({**state, scaled: state[scaled] * weight}, NAMES, config, SHAPES[head]))
    return path


def trial(shape: tuple[int, int, int], count: int = 5) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, *shape), dtype=np.uint8)


def expected(model: Path, images: np.ndarray) -> np.ndarray:
    """Return the predictor's probabilities by its public way, in the order of the outputs."""
    rankings = [dict(found.ranking) for found in load_model(model).predict(images, top=len(NAMES))]
    table = np.array([[ranking[name] for name in NAMES] for ranking in rankings])
    assert np.ptp(table, axis=0).max() > 0.01  # the images matter
    return table


@pytest.mark.parametrize("head", SHAPES)
def test_torchscript_needs_nothing_of_fcil_and_names_its_classes(tmp_path: Path, head: str) -> None:
    model, out = write_random_model(tmp_path / "model", head), tmp_path / "model.pt"
    assert export(model, out, TORCHSCRIPT) < BOUND
    facts = dict.fromkeys(("fcil_version", "class_names", "image_shape", "input", "output"), "")
    with module.undisturbed():
        net = torch.jit.load(str(out), _extra_files=facts)  # type: ignore[no-untyped-call]
    read = {key: value.decode() if isinstance(value, bytes) else value for key, value in facts.items()}
    assert WANTED.items() <= read.items()
    assert tuple(json.loads(read["image_shape"])) == SHAPES[head]
    assert read["input"].startswith("images: float32")
    assert read["output"].startswith("probabilities: float32")
    images = trial(SHAPES[head])
    found = net(torch.from_numpy(images) / 255)
    np.testing.assert_allclose(found.numpy(), expected(model, images), atol=BOUND)


@pytest.mark.parametrize("head", SHAPES)
def test_safetensors_has_facts_that_others_can_read_and_is_a_model_of_fcil(tmp_path: Path, head: str) -> None:
    model, out = write_random_model(tmp_path / "model", head), tmp_path / "model.safetensors"
    assert export(model, out, SAFETENSORS) < BOUND
    with safe_open(out, "pt") as file:
        facts, weights = file.metadata(), file.get_tensor("head.weight")
    assert WANTED.items() <= facts.items()
    assert tuple(json.loads(facts["image_shape"])) == SHAPES[head]
    assert json.loads(facts["fcil"])["deviation"] == [0.2, 0.3, 0.4][: SHAPES[head][0]]
    assert torch.equal(weights, load_model(model).net.head.weight)
    images = trial(SHAPES[head])
    np.testing.assert_allclose(expected(out, images), expected(model, images), atol=1e-6)


def test_notes_are_under_the_digest_and_equal_models_stay_equal_files(tmp_path: Path) -> None:
    model, out = write_random_model(tmp_path / "model", "linear"), tmp_path / "noted"
    notes = {"class_names": "[]", "author": "0" * 64}
    content = model.read_bytes()
    assert noted(content, notes) == noted(content, dict(notes))
    out.write_bytes(noted(content, notes))
    assert load_model(out).class_names == NAMES
    out.write_bytes(out.read_bytes().replace(b"author", b"autlor"))
    with pytest.raises(DataError, match="is damaged"):
        load_model(out)


def test_onnx_runs_in_onnxruntime_for_any_number_of_images(tmp_path: Path) -> None:
    reason = "the extra `onnx` is not installed"
    onnxruntime = pytest.importorskip("onnxruntime", reason=reason)
    onnx = pytest.importorskip("onnx", reason=reason)
    pytest.importorskip("onnxscript", reason=reason)
    from fcil.experiment.export_onnx import ONNX

    model, out = write_random_model(tmp_path / "model", "proxies"), tmp_path / "model.onnx"
    assert export(model, out, ONNX) < BOUND
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert str(Path(fcil.__file__).parent).encode() not in out.read_bytes()  # no paths of this machine
    session = onnxruntime.InferenceSession(out)
    (given,), (gives,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape) == ("images", "tensor(float)", ["batch", *SHAPES["proxies"]])
    assert (gives.name, gives.type, gives.shape) == ("probabilities", "tensor(float)", ["batch", len(NAMES)])
    facts = session.get_modelmeta().custom_metadata_map
    assert WANTED.items() <= facts.items()
    assert tuple(json.loads(facts["image_shape"])) == SHAPES["proxies"]
    assert facts.keys() == {"fcil_version", "class_names", "image_shape", "input", "output"}
    for count in (1, 5, 300):
        images = trial(SHAPES["proxies"], count)
        (found,) = session.run(["probabilities"], {"images": images.astype(np.float32) / 255})
        np.testing.assert_allclose(found, load_model(model).probabilities(torch.from_numpy(images)), atol=BOUND)


def test_a_hand_made_model_keeps_its_meaning(tmp_path: Path) -> None:
    """An image of 0.2, 0.4, 0.8 has the outputs 0.8, 1.6, 3.2; batch norm's epsilon takes 2e-5 off them."""
    model, out = write_colour_model(tmp_path / "model"), tmp_path / "model.pt"
    export(model, out, TORCHSCRIPT)
    with module.undisturbed():
        net = torch.jit.load(str(out))  # type: ignore[no-untyped-call]
    found = net(torch.tensor([0.2, 0.4, 0.8]).view(1, 3, 1, 1).expand(1, 3, 8, 8))[0]
    outputs = np.exp([0.8, 1.6, 3.2])
    np.testing.assert_allclose(found.numpy(), outputs / outputs.sum(), atol=1e-4)
    (prediction,) = load_model(model).predict(paint_plain(tmp_path / "blue.png", (51, 102, 204)), top=3)
    assert [name for name, _ in prediction.ranking] == ["blue", "green", "red"]
    assert prediction.probability == pytest.approx(found[2].item(), abs=1e-6)
    assert load_model(model).class_names == COLOURS


def altered(change: Run, given: Format = SAFETENSORS) -> Format:
    """Return a format whose files give what they should, changed."""

    def opened(path: Path) -> Run:
        run = given.opened(path)
        return lambda images: change(run(images))

    return Format(given.content, opened)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda found: found + 2e-4, "differ from the model's by 0.0002, and at most 0.0001"),
        (lambda found: found.log(), "differ from the model's by"),
        (lambda found: found.roll(1, 1), "and the same likeliest class are allowed"),
        (lambda found: found * float("nan"), "differ from the model's by 1,"),
        (lambda found: found[:, 1:], r"gives the shape \(1, 3\), not \(1, 4\)"),
        (lambda found: found[:1], r"gives the shape \(1, 4\), not \(8, 4\)"),
    ],
    ids=["shifted", "logarithms", "other classes", "nan", "too few classes", "one image only"],
)
def test_a_file_that_predicts_something_else_is_not_left_behind(tmp_path: Path, change: Run, sentence: str) -> None:
    model = write_random_model(tmp_path / "model", "linear")
    with pytest.raises(DataError, match=rf"^{tmp_path}/out was not written: .*{sentence}"):
        export(model, tmp_path / "out", altered(change))
    assert list(tmp_path.iterdir()) == [model]


def test_a_likeliest_class_that_changes_within_the_bound_is_noticed(tmp_path: Path) -> None:
    """An output that is 1e-4 above three others has a probability that is 2.5e-5 above theirs."""
    config = ModelConfig(width=2, mean=(0.5,), deviation=(0.3,))
    state = grow(initial_state(config, 1, 1), 4, 2)
    flat = {**state, "head.weight": state["head.weight"] * 0, "head.bias": torch.tensor([0.0, 1e-4, 0.0, 0.0])}
    model = tmp_path / "model"
    model.write_bytes(named_model(flat, NAMES, config, (1, 8, 8)))
    with pytest.raises(DataError, match=r"differ from the model's by [23]e-05, .* the same likeliest class"):
        export(model, tmp_path / "out", altered(lambda found: found.roll(1, 1)))
    equal = write_random_model(tmp_path / "equal", "proxies", weight=0.0)  # all classes alike: any may be first
    assert export(equal, tmp_path / "out", altered(lambda found: found + torch.arange(4) * 1e-7)) < 1e-6


def test_a_model_that_diverged_is_not_exported(tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "model", "linear", weight=float("nan"))
    for chosen in FORMATS.values():
        with pytest.raises(DataError, match="not finite"):
            export(model, tmp_path / "out", chosen)
    assert list(tmp_path.iterdir()) == [model]


def test_a_place_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "model", "linear")
    with pytest.raises(FileError, match="cannot be written: No such file"):
        export(model, tmp_path / "absent" / "out", SAFETENSORS)
