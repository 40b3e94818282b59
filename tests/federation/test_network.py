"""The agreed network: all parties normalise alike, whatever data each of them has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.parties import patterns

from fcil.core.errors import ConfigError
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.experiment.build import agreed_model, assemble, make_recipe
from fcil.experiment.config import Config, load_config
from fcil.federation.engines import Recipe
from fcil.federation.engines.base import Worker
from fcil.models import ModelConfig, grow
from fcil.models.trainer import Trainer


def config(*settings: str) -> Config:
    return load_config("digits", ["method.name=finetune", "scenario.tasks=2", "model.width=2", *settings])


def darker() -> Source:
    """Return the same patterns in a dim light, as another site may see them."""
    train = patterns().train
    return Source("dim", Split(train.images // 4, train.labels), patterns().test, patterns().class_names)


def logits(machine: Trainer, model: dict[str, Any]) -> torch.Tensor:
    with torch.inference_mode():
        return machine.net(model)(patterns().test.images[:6].float() / 255)


def test_sites_with_different_data_build_the_same_network() -> None:
    made = assemble(config(), patterns())
    model = grow(made.simulation.start().model, 4, 0)
    expected = logits(made.local.machine, model)
    for source in (patterns(), darker()):
        worker = Worker(Recipe.read(made.recipe.text()), Samples.of(source), 0)
        assert torch.equal(logits(worker.local.machine, model), expected)
    for machine in (made.simulation.server.machine, made.recipe.machine()):
        assert torch.equal(logits(machine, model), expected)
    alone = make_recipe(config(), darker()).machine()
    assert not torch.equal(logits(alone, model), expected), "measured on its own data, a site's network is another"


def test_a_normalisation_that_is_given_is_honoured() -> None:
    given = config("model.mean=[0.25]", "model.deviation=[0.5]")
    machines = [assemble(given, source).local.machine for source in (patterns(), darker())]
    assert [(machine.mean, machine.deviation) for machine in machines] == [((0.25,), (0.5,))] * 2
    images = torch.rand(2, 1, 8, 8)
    net = machines[0].net(grow(assemble(given, patterns()).simulation.start().model, 4, 0))
    assert torch.equal(net.mean.flatten(), torch.tensor([0.25]))
    assert torch.allclose(net._normalised(images), (images - 0.25) / 0.5)


def test_what_is_not_given_is_measured() -> None:
    source = patterns()
    found = agreed_model(ModelConfig(mean=(0.25,)), source)
    assert (found.mean, found.deviation) == ((0.25,), source.deviation)
    assert agreed_model(ModelConfig(), source).mean == source.mean


@pytest.mark.parametrize(
    ("setting", "found"), [("model.mean=[0.5, 0.5]", 2), ("model.mean=[]", 0), ("model.deviation=[1.0, 1.0, 1.0]", 3)]
)
def test_a_normalisation_for_other_images_is_refused(setting: str, found: int) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{key}: found {found} values, should be 1, one per channel of the images$"):
        assemble(config(setting), patterns())
