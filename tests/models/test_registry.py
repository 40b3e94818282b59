"""The registry of networks, the published one to the bit, and what is refused by the names of its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.command import fcil
from support.plugins import fresh_registry, install
from torch import Tensor, nn

from fcil.core.errors import ConfigError
from fcil.experiment.config import load_config, parse_config
from fcil.federation.engines import Recipe
from fcil.federation.server import FederationConfig
from fcil.maths.averaging import RunningMean
from fcil.methods import PluginWarning, Setting, get_method
from fcil.models import (
    Blueprint,
    ModelConfig,
    Network,
    cost_of,
    grow,
    initial_state,
    networks,
    parameter_bytes,
    register_network,
)
from fcil.models import registry as network
from fcil.models.registry import groups
from fcil.models.trainer import TrainConfig, Trainer
from fcil.testing import NetworkContract, trial
from fcil.testing.recorded import SHORT, snapshot

SHAPE = (3, 8, 8)
MODULE = """
import torch
from torch import nn
from fcil.models import Network, register_network

class Patches(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.features = 2 * plan.width
        self.patches = nn.Conv2d(plan.channels, plan.width, 4, 4)
        self.mixed = nn.Linear(plan.width, self.features)
        self.steps = [self.patches, nn.functional.gelu]  # held twice, by name and in a list
        self.register_buffer("scale", torch.ones(()))

    def forward(self, images):
        for step in self.steps:
            images = step(images)
        return self.mixed(images.mean((2, 3)) * self.scale)

register_network(Network("{name}", "patches of four pixels", Patches, reads=frozenset({{"width"}})))
"""


class OldBlock(nn.Module):
    """The block as it was before networks had names."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        added: Tensor = self.bn2(self.conv2(out)) + self.shortcut(x[:, :, :: self.stride, :: self.stride])
        return F.relu(added, inplace=True)


class OldNetwork(nn.Module):
    """The backbone and its head, likewise."""

    def __init__(self, channels: int, width: int, stem: str = "cifar") -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.backbone = nn.ModuleDict()
        shape = (3, 1, 1) if stem == "cifar" else (7, 2, 3)
        layers = [nn.Conv2d(channels, width, *shape, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.backbone["stem"] = nn.Sequential(*layers, *([] if stem == "cifar" else [nn.MaxPool2d(3, 2, 1)]))
        self.backbone["stages"] = nn.ModuleList(
            nn.Sequential(
                OldBlock(widths[stage], widths[stage + 1], 1 if stage == 0 else 2),
                OldBlock(widths[stage + 1], widths[stage + 1], 1),
            )
            for stage in range(4)
        )
        self.head = nn.Linear(8 * width, 1)

    def extract(self, images: Tensor) -> Tensor:
        x = self.backbone["stem"](images.contiguous(memory_format=torch.channels_last))
        for stage in self.backbone["stages"]:
            x = stage(x)
        return x.mean((2, 3))


def former(stem: str = "cifar") -> OldNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return OldNetwork(3, 2, stem)


@pytest.mark.parametrize("settings", [{}, {"stem": "imagenet"}, {"head": "proxies", "last_relu": False}])
def test_initial_weights_are_those_of_former_versions(settings: dict[str, Any]) -> None:
    state = initial_state(ModelConfig(width=2, **settings), 3, 5)
    body = {
        name: value for name, value in former(settings.get("stem", "cifar")).state_dict().items() if "head" not in name
    }
    head = ["head.weight", "head.scale"] if "head" in settings else ["head.weight", "head.bias"]
    assert list(state) == [*body, *head]  # names, in their order
    assert all(torch.equal(state[name], value) for name, value in body.items())


def test_the_published_network_is_what_it_was_to_the_last_bit() -> None:
    old, images = former(), torch.rand(4, *SHAPE)
    config = ModelConfig(width=2, mean=(0.0,) * 3, deviation=(1.0,) * 3)
    new = Trainer(config, TrainConfig()).net(initial_state(ModelConfig(width=2), 3, 5))
    for training in (True, False):  # batch statistics, then those that they have left
        with torch.no_grad():
            assert torch.equal(new.train(training).extract(images), old.train(training).extract(images))


def test_groups_are_large_enough_to_have_a_spread() -> None:
    for channels in range(1, 200):
        assert channels % groups(channels) == 0
        assert groups(channels) == 1 or channels // groups(channels) >= 8
    assert groups(1024) == 32


@pytest.mark.parametrize("name", ["resnet18", "cnn"])
def test_with_group_norm_nothing_but_parameters_is_sent_and_averaged(name: str) -> None:
    config = ModelConfig(name=name, width=2, norm="group", mean=(0.5,), deviation=(0.25,))
    states = [grow(initial_state(config, 1, seed), 2, seed) for seed in (1, 2)]
    net = Trainer(config, TrainConfig()).net(states[0])
    assert states[0].keys() == {parameter for parameter, _ in net.named_parameters()}
    mean = RunningMean()
    for state in states:
        mean.add(state)
    averaged = mean.result()
    for key, value in averaged.items():
        torch.testing.assert_close(value, (states[0][key] + states[1][key]) / 2)
    assert bool(torch.isfinite(Trainer(config, TrainConfig()).net(averaged)(torch.rand(1, 1, 8, 8))).all())


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model.name=resnet19", "model.name: found 'resnet19', should be one of: cnn, cnn1d, efficientnet-lite0, "),
        ("model.name=3", "model.name: found 3, should be text"),
        ("model.norm=layer", "model.norm: found 'layer', should be 'batch' or 'group'"),
        ("model.freeze=1", "model.freeze: found 1, should be true, false or stages:N, the number"),
        ("model.freeze=stages:0", "model.freeze: found 'stages:0', should be true, false or stages:N, the number"),
        ("model.freeze=stages:2 model.name=cnn", "model.freeze: found 'stages:2', should be true or false: "),
        ("model.weights=imagenet", "model.weights: found 'imagenet', should be the name of a file: only efficient"),
        ('model.weights=""', "model.weights: found '', should be the name of a file"),
        ("model.weights_digest=abc", "model.weights_digest: found 'abc', should be 64 hexadecimal digits"),
        ("model.head=proxies", "model.head: found proxies, should be linear for method.name glfc"),
        ("model.head_scale=3", "model.head_scale: found 3, should be 8, its default for method.name glfc"),
        ("model.head=proxies method.name=mosaic", "model.head: found proxies, should be cosine for method.name mosaic"),
        ("model.head=cosine method.name=podnet", "model.head: found cosine, should be proxies for method.name podnet"),
        (
            "model.head_scale=3 method.name=podnet",
            "model.head_scale: found 3, should be 8, its default for method.name podnet",
        ),
        ("model.head_scale=0", "model.head_scale: found 0, should be above 0"),
    ],
)
def test_what_is_not_right_is_said_of_its_key(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("digits", setting.split())
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("setting", "default"), [("stem='imagenet'", "cifar"), ("last_relu=false", "true")])
def test_a_setting_that_a_network_does_not_have_is_refused(setting: str, default: str) -> None:
    with pytest.raises(ConfigError, match=rf"should be {default}, its default: model\.name cnn has no such setting"):
        load_config("digits", ["model.name=cnn", f"model.{setting}"])


def test_the_command_line_lists_networks_and_refuses_with_two() -> None:
    listed = fcil("list", "networks")
    assert listed.returncode == 0
    assert "resnet18" in listed.stdout
    assert "cnn" in listed.stdout
    refused = fcil("run", "digits", "--method", "podnet", "--set", "model.name=cnn")
    assert refused.returncode == 2
    (sentence,) = refused.stderr.splitlines()
    assert sentence.startswith("error: model.name: found cnn, which has no stages to look at, should be one of: ")
    assert sentence.endswith("resnet18 for method.name podnet")


# --- networks of others -----------------------------------------------------------------------------------------------


def test_a_network_of_another_package_is_used_like_ours(tmp_path: Path) -> None:
    install(tmp_path, "my-package", "[fcil.models]\nmine = my_patches\n", my_patches=MODULE.format(name="patches"))
    with fresh_registry(tmp_path):
        config = load_config("digits", ["model.name=patches", "model.width=3"])
        assert parse_config(config.document()) == config
        contract = type("Contract", (NetworkContract,), {"network": "patches", "settings": {"width": 3}})()
        for name in (name for name in dir(contract) if name.startswith("test_")):
            getattr(contract, name)()
        method, setting = get_method("finetune"), Setting(0, SHAPE, None)
        recipe = Recipe("finetune", method.config(), setting, config.model, TrainConfig(), FederationConfig())
        text = recipe.text()
        assert '"my_patches"' in text
        with pytest.raises(ConfigError, match=r"no stages to look at, .* resnet18 for method\.name podnet"):
            load_config("digits", ["model.name=patches", "method.name=podnet"])
    assert "patches" not in networks()
    with pytest.raises(ValueError, match="the network patches is not installed here"):
        Recipe.read(text, import_modules=False)


@pytest.mark.parametrize("method", ["glfc", "ewc"])
def test_a_network_of_another_package_plays_and_its_buffers_do_not_disturb(tmp_path: Path, method: str) -> None:
    install(
        tmp_path, "my-package", "[fcil.models]\nmine = my_patches\n", my_patches=MODULE.format(name=f"for-{method}")
    )
    with fresh_registry(tmp_path):
        _, records = trial(method, scenario=SHORT, model={"name": f"for-{method}"}).run()
        assert [record.failures for record in records] == [[]] * len(records)
        assert sum(record.reports for record in records) > 0


def test_a_worker_imports_the_module_of_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_network.py").write_text(MODULE.format(name="theirs"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    with fresh_registry(tmp_path):
        import their_network  # type: ignore[import-not-found]  # noqa: F401

        plain = trial("finetune", scenario=SHORT, model={"name": "theirs"})
        ours = trial("finetune", engine="processes", workers=1, scenario=SHORT, model={"name": "theirs"})
        try:
            state, records = ours.run()
        finally:
            ours.simulation.engine.close()
        assert [record.failures for record in records] == [[]] * len(records)
        assert snapshot(ours, state) == snapshot(plain, plain.run()[0])


def test_a_package_whose_network_cannot_be_imported_is_named_once(tmp_path: Path) -> None:
    install(tmp_path, "bad-package", "[fcil.models]\nbroken = broken_network\n", broken_network="1 / 0\n")
    with fresh_registry(tmp_path), pytest.warns(PluginWarning) as caught:
        assert {name for name in networks() if not name.startswith("efficientnet")} == {
            "cnn",
            "cnn1d",
            "mlp",
            "resnet18",
        }
    (warning,) = caught
    assert "the networks of the package bad-package, entry point broken = broken_network" in str(warning.message)


@pytest.fixture
def registered() -> Iterator[None]:
    with fresh_registry():
        yield


class Flat(nn.Module):
    """A body that can be bent out of shape."""

    def __init__(self, plan: Blueprint, features: Any = 4, given: int = 4) -> None:
        super().__init__()
        self.features = features
        self.layer = nn.Linear(plan.channels, given)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(images.mean((2, 3)))
        return features


class Hidden(Flat):
    """A body that keeps a tensor to itself."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__(plan)
        self.register_buffer("secret", torch.ones(3), persistent=False)


class Shared(Flat):
    """A body in which one tensor has two names."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__(plan)
        self.again = self.layer


class Picky(Flat):
    """A body for images of 32 pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.view(-1, 3, 32, 32))


FLAWED = {
    "another size of features": (
        lambda plan: Flat(plan, given=5),
        False,
        r"it gives \(2, 5\) for 2 images, should be \(2, 4\)",
    ),
    "no size of features": (lambda plan: Flat(plan, features="many"), False, "has 'many' as features"),
    "a hidden buffer": (Hidden, False, "its buffers secret are not in its state dict"),
    "a shared tensor": (Shared, False, "two of its parameters are one tensor"),
    "images of one size": (Picky, False, "cannot be used with images of 3 x 8 x 8: RuntimeError: shape"),
    "stages only declared": (Flat, True, "should be a torch.nn.Module with features, maps and last_map"),
    "no module": (lambda plan: 3, False, "is a int, should be"),
    "an error": (lambda plan: 1 / 0, False, "cannot be built: ZeroDivisionError"),
}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("flaw", FLAWED)
def test_a_network_that_breaks_the_contract_is_refused_by_name(flaw: str) -> None:
    build, stages, sentence = FLAWED[flaw]
    name = flaw.replace(" ", "-")
    register_network(Network(name, flaw, build, stages))
    with pytest.raises(ConfigError, match=rf"model\.name: {name} .*{sentence}"):
        cost_of(ModelConfig(name=name), SHAPE)


@pytest.mark.usefixtures("registered")
def test_a_network_too_wide_to_be_described_costs_more_than_any_memory() -> None:
    register_network(Network("wide", "", lambda plan: Flat(plan, plan.width, plan.width)))
    assert parameter_bytes(ModelConfig(name="wide", width=5), 3) == 4 * 5 * (3 + 1)
    assert parameter_bytes(ModelConfig(name="wide", width=2**62), 3) > 1 << 60
    assert cost_of(ModelConfig(name="wide", width=2**62), SHAPE).largest > 1 << 60


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Network("a b", "", Flat), "'a b' is no name of a network"),
        (Network("cnn", "", Flat), "two networks are called cnn"),
        (Network("new", "", Flat, reads=frozenset({"depth", "channels"})), "new reads channels, depth; there are"),
    ],
)
def test_a_registration_that_cannot_be_is_refused(wrong: Network, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        register_network(wrong)


def test_a_network_of_a_script_cannot_go_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.Network, "module", "__main__")
    method, setting = get_method("finetune"), Setting(0, SHAPE, None)
    recipe = Recipe("finetune", method.config(), setting, ModelConfig(), TrainConfig(), FederationConfig())
    with pytest.raises(ConfigError, match=r"model\.name: resnet18 is defined in a script, which workers cannot import"):
        recipe.text()


def test_the_example_in_the_documentation_keeps_the_contract_and_serves_podnet(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text("utf-8")
    example = next(part.partition("```")[0] for part in page.split("```python\n")[1:] if "register_network(" in part)
    install(tmp_path, "my-package", "[fcil.models]\nmine = separable\n", separable=example)
    with fresh_registry(tmp_path):
        contract = type("Contract", (NetworkContract,), {"network": "separable", "settings": {"width": 4}})()
        for name in (name for name in dir(contract) if name.startswith("test_")):
            getattr(contract, name)()
        for method in ("podnet", "geodl"):
            state, records = trial(method, scenario=SHORT, model={"name": "separable"}).run()
            assert [record.failures for record in records] == [[]] * len(records)
            assert all(bool(torch.isfinite(tensor).all()) for tensor in state.model.values())
