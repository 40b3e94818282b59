"""Weights from a file: fitted by name, read as tensors alone, needed where a run begins and nowhere else."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.command import fcil
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import ModelState
from fcil.data.datasets.digits import load_digits
from fcil.deployment.server.run import ServedRun
from fcil.experiment.build import make_recipe
from fcil.experiment.config import differing_settings, load_config, parse_config
from fcil.experiment.model_file import load_model, named_model
from fcil.experiment.run import Run
from fcil.federation.engines import Recipe
from fcil.models import ModelConfig, grow, initial_state
from fcil.models.weights import read_weights

CONFIG = ModelConfig(width=2)
SMALL = [
    "data.samples_per_class=4",
    "scenario.tasks=[2, 2]",
    "scenario.rounds_per_task=1",
    "scenario.initial_clients=2",
    "scenario.joiners=0",
    "scenario.participants=2",
    "train.epochs=1",
    "method.name=finetune",
    "model.name=cnn",
    "model.width=2",
]


def trained(config: ModelConfig = CONFIG, channels: int = 3) -> ModelState:
    """Return weights that no seed gives, statistics included."""
    state = grow(initial_state(config, channels, 9), 4, 1)
    return {name: tensor + 1 for name, tensor in state.items()}


def backbone(state: ModelState) -> dict[str, Tensor]:
    return {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}


def torchvision_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a backbone's tensors as torchvision calls them."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        first, *rest = name.split(".")
        if first == "stem":
            theirs = [("conv1", "bn1")[int(rest[0])], *rest[1:]]
        else:
            theirs = [f"layer{int(rest[0]) + 1}", *("downsample" if part == "shortcut" else part for part in rest[1:])]
        found[".".join(theirs)] = value
    return {**found, "fc.weight": torch.zeros(1000, 16), "fc.bias": torch.zeros(1000)}


def write(path: Path, kind: str, state: ModelState) -> Path:
    match kind:
        case "model of fcil":
            normalised = CONFIG.model_copy(update={"mean": (0.5,) * 3, "deviation": (0.25,) * 3})
            path.write_bytes(named_model(state, ("a", "b", "c", "d"), normalised, (3, 8, 8)))
        case "safetensors":
            save_file(backbone(state), path)
        case "state dict":
            torch.save(OrderedDict(backbone(state)), path)
        case "checkpoint of a script":
            torch.save({"epoch": 3, "state_dict": state}, path)
        case "torchvision":
            torch.save(torchvision_names(backbone(state)), path)
        case "torchvision, before 2018":
            named = torchvision_names(backbone(state))
            torch.save({name: value for name, value in named.items() if not name.endswith("num_batches_tracked")}, path)
        case "half precision":
            save_file(
                {name: value.half() if value.is_floating_point() else value for name, value in state.items()}, path
            )
    return path


KINDS = ["model of fcil", "safetensors", "state dict", "checkpoint of a script", "torchvision"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_backbone_starts_from_a_file_and_the_head_from_the_seed(tmp_path: Path, kind: str) -> None:
    file, state = tmp_path / "weights", trained()
    started = initial_state(CONFIG.model_copy(update={"weights": str(write(file, kind, state))}), 3, 5)
    plain = initial_state(CONFIG, 3, 5)
    assert list(started) == list(plain)
    for name, value in started.items():
        wanted = state[name] if name.startswith("backbone.") else plain[name]
        assert torch.equal(value, wanted)
        assert value.dtype == plain[name].dtype


@pytest.mark.parametrize("kind", ["torchvision, before 2018", "half precision"])
def test_counters_may_be_missing_and_floats_be_of_another_width(tmp_path: Path, kind: str) -> None:
    file, state = tmp_path / "weights", trained()
    started = initial_state(CONFIG.model_copy(update={"weights": str(write(file, kind, state))}), 3, 5)
    for name, value in started.items():
        if name.startswith("backbone.") and value.is_floating_point():
            torch.testing.assert_close(value, state[name], atol=2e-3, rtol=1e-3)
            assert value.dtype == torch.float32


class Bomb:
    """What a pickle can do to whoever loads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code was run')",)


def without(state: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name not in names}


def bad_file(path: Path, kind: str) -> None:
    state = backbone(trained())
    match kind:
        case "wrong shape":
            save_file({**state, "stem.0.weight": torch.zeros(2, 3, 7, 7)}, path)
        case "wrong type":
            save_file({**state, "stem.0.weight": torch.zeros(2, 3, 3, 3, dtype=torch.int32)}, path)
        case "missing":
            save_file(without(state, "stem.1.bias", "stages.3.1.bn2.weight"), path)
        case "many missing":
            save_file({"stem.0.weight": state["stem.0.weight"]}, path)
        case "unknown":
            save_file({**state, "extra.weight": torch.zeros(1)}, path)
        case "not finite":
            save_file({**state, "stem.1.bias": torch.tensor([1.0, float("nan")])}, path)
        case "no tensors":
            torch.save([1, 2], path)
        case "code":
            torch.save({"stem.0.weight": Bomb()}, path)
        case "cut off":
            torch.save(state, path)
            path.write_bytes(path.read_bytes()[:1000])
        case "text":
            path.write_text("weights")
        case "empty":
            path.write_bytes(b"")
        case "folder":
            path.mkdir()


REFUSED = {
    "wrong shape": "of another shape or type: stem.0.weight (2, 3, 7, 7) for (2, 3, 3, 3)",
    "wrong type": "of another shape or type: stem.0.weight",
    "missing": "missing: stem.1.bias, stages.3.1.bn2.weight",
    "many missing": "and 96 more",
    "unknown": "unknown: extra.weight",
    "not finite": "not finite: stem.1.bias",
    "no tensors": "holds no state dict, that is, tensors by name",
    "code": "is refused: it is damaged, or holds more than tensors, which could run code",
    "cut off": "is refused: it is damaged",
    "text": "is neither a safetensors file nor a state dict of torch.save",
    "empty": "is neither a safetensors file nor a state dict of torch.save",
    "folder": "cannot be read: Is a directory",
    "absent": "cannot be read: No such file or directory",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_does_not_serve_is_refused_with_what_is_wrong(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "weights"
    bad_file(file, kind)
    with pytest.raises(ConfigError) as caught:
        initial_state(CONFIG.model_copy(update={"weights": str(file)}), 3, 5)
    said = str(caught.value)
    assert said.startswith(f"model.weights: {file}")
    assert REFUSED[kind] in said
    if kind in ("wrong shape", "missing"):
        assert "does not fit model.name resnet18 with model.width 2 and model.norm batch" in said


def test_statistics_of_batches_do_not_fit_a_network_without(tmp_path: Path) -> None:
    file = write(tmp_path / "weights", "safetensors", trained())
    group = ModelConfig(width=2, norm="group", weights=str(file))
    with pytest.raises(
        ConfigError, match=r"model\.norm group: unknown: stages.0.0.bn1.num_batches_tracked, .* and 57 more"
    ):
        read_weights(group, initial_state(group.without_file(), 3, 0))


def test_another_file_under_the_name_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "weights", "safetensors", trained())
    digest = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(ConfigError, match=rf"has the SHA-256 [0-9a-f]{{64}}, should be the file with {digest}"):
        initial_state(CONFIG.model_copy(update={"weights": str(file), "weights_digest": digest}), 3, 0)


# --- a run that starts from a file ------------------------------------------------------------------------------------


def small_weights(folder: Path, seed: int = 9) -> Path:
    config = ModelConfig(name="cnn", width=2)
    file = folder / f"weights-{seed}"
    save_file({name: value + 1 for name, value in backbone(initial_state(config, 1, seed)).items()}, file)
    return file


def test_the_digest_of_the_file_tells_runs_apart_and_its_place_does_not(tmp_path: Path) -> None:
    first, other = small_weights(tmp_path), small_weights(tmp_path, 10)
    moved = tmp_path / "moved"
    moved.write_bytes(first.read_bytes())
    documents = [load_config("digits", [*SMALL, f"model.weights={file}"]).document() for file in (first, moved, other)]
    assert documents[0]["model"]["weights_digest"] == hashlib.sha256(first.read_bytes()).hexdigest()
    assert differing_settings(documents[0], documents[1]) == []
    (differing,) = differing_settings(documents[0], documents[2])
    assert differing.startswith("model.weights_digest")


def test_a_document_from_before_networks_had_names_is_of_the_same_run() -> None:
    config = load_config("digits")
    former = config.document()
    for key in ("name", "norm", "weights", "weights_digest", "freeze"):
        del former["model"][key]
    assert differing_settings(former, config.document()) == []
    assert parse_config(former) == config


def test_a_file_is_named_relative_to_the_toml_that_names_it(tmp_path: Path) -> None:
    small_weights(tmp_path)
    (tmp_path / "mine.toml").write_text('extends = "digits"\n[model]\nname = "cnn"\nwidth = 2\nweights = "weights-9"\n')
    config = load_config(str(tmp_path / "mine.toml"))
    assert config.model.weights == str(tmp_path / "weights-9")


def test_no_worker_and_no_site_is_told_of_the_file(tmp_path: Path) -> None:
    config = load_config("digits", [*SMALL, f"model.weights={small_weights(tmp_path)}"])
    recipe = make_recipe(config, load_digits().reduced(4))
    assert str(tmp_path) not in recipe.text()
    assert Recipe.read(recipe.text()).model == recipe.model.without_file()


def test_a_frozen_run_resumes_without_its_file_and_its_model_can_be_used(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    settings = [*SMALL, f"model.weights={file}", "model.freeze=true"]
    with Run.start(parse_config(_document(settings)), tmp_path / "run") as run:
        began = run.state.model
        for _ in run.rounds():
            break
    assert torch.equal(began["backbone.layers.0.weight"], backbone_of(file)["layers.0.weight"])
    file.rename(tmp_path / "elsewhere")
    with Run.resume(tmp_path / "run") as resumed:
        assert list(resumed.rounds())
        resumed.finish()
    model = load_model(tmp_path / "run" / "model.safetensors")
    for name, value in model.net.state_dict().items():
        assert not name.startswith("backbone.") or torch.equal(value, began[name])
    assert str(tmp_path).encode() not in (tmp_path / "run" / "model.safetensors").read_bytes()
    kept = json.loads((tmp_path / "run" / "config.json").read_text())["model"]
    assert (kept["weights"], len(kept["weights_digest"])) == (str(file), 64)


def _document(settings: list[str]) -> dict[str, Any]:
    return load_config("digits", settings).document()


def backbone_of(file: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(file)
    return found


def test_a_server_starts_and_resumes_from_the_file_that_it_has(tmp_path: Path) -> None:
    settings = [*SMALL, "deployment.channels=1", "deployment.image_size=8"]
    config = load_config("digits", [*settings, f"model.weights={small_weights(tmp_path)}"])
    with ServedRun.start(config, tmp_path / "served") as run:
        model = run.state.server.model
        text = run.recipe.text()
    assert torch.equal(model["backbone.layers.0.weight"], backbone_of(tmp_path / "weights-9")["layers.0.weight"])
    assert str(tmp_path) not in text
    with ServedRun.resume(config, tmp_path / "served") as run:
        assert torch.equal(run.state.server.model["backbone.layers.0.weight"], model["backbone.layers.0.weight"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.weights=absent.pt"], "error: model.weights: absent.pt cannot be read: No such file or directory"),
        (["model.weights=weights-9", "model.width=3"], "error: model.weights: "),
    ],
)
def test_the_command_line_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], said: str
) -> None:
    small_weights(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = [part for setting in [*SMALL, *settings] for part in ("--set", setting)]
    ended = fcil("run", "digits", *options, "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert ended.stderr.startswith(said)
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_frozen_backbone_without_weights_is_warned_of(tmp_path: Path) -> None:
    with Run.start(load_config("digits", [*SMALL, "model.freeze=true"]), tmp_path / "run") as run:
        assert "model.freeze is true without model.weights: what is frozen is random" in run.warnings
