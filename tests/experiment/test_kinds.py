"""Rows of tables and series in a run: what fits them, and how they are standardised."""

from __future__ import annotations

import pytest
import torch

from fcil.core.errors import ConfigError
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.build import make_recipe
from fcil.experiment.config import parse_config
from fcil.experiment.kinds import check_kind, prepared
from fcil.methods import methods
from fcil.testing import blobs, trial
from fcil.testing.recorded import SHORT
from fcil.testing.robustness import is_finite
from fcil.testing.trial import waves

WITHOUT_IMAGES = [name for name, method in methods().items() if not method.variant_of and not method.config.images_only]


@pytest.mark.parametrize("method", WITHOUT_IMAGES)
def test_every_method_plays_rows_and_series_or_is_refused(method: str) -> None:
    for kind in ("vector", "series"):
        state, records = trial(method, kind=kind, scenario=SHORT).run()
        assert is_finite(state)
        assert [record.failures for record in records] == [[]] * len(records)


def test_a_method_that_makes_images_is_refused_for_rows() -> None:
    with pytest.raises(ConfigError, match=r"method.name: target makes images, and cannot be used with rows"):
        trial("target", kind="vector")


def test_the_encoding_follows_from_the_first_holders_alone() -> None:
    source, config = waves("vector", per_class=10), parse_config({"model": {"name": "mlp"}, "scenario": SHORT})
    world = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    held = [world.holding(0, client) for client in world.clients(0)]
    assert source.raw is not None
    values = torch.cat([torch.from_numpy(source.raw.train.columns[0].values[rows]) for rows in held])
    every = torch.cat([torch.from_numpy(part.columns[0].values) for part in (source.raw.train, source.raw.test)])
    found = prepared(config, source, world)
    assert found.columns is not None
    assert found.columns.each[0].mean == pytest.approx(float(values.mean()))
    assert found.columns.each[0].deviation == pytest.approx(float(values.std(correction=0)))
    assert abs(found.columns.each[0].mean - float(every.mean())) > 0.01
    assert prepared(config, found, world) is found


@pytest.mark.parametrize(
    ("kind", "document", "sentence"),
    [
        ("vector", {}, "model.name: found resnet18, which takes images, should be mlp for rows"),
        ("series", {"model": {"name": "mlp"}}, "model.name: found mlp, which takes rows, should be cnn1d for series"),
        ("image", {"model": {"name": "mlp"}}, "should be cnn or efficientnet-lite0 or .* for images"),
        (
            "vector",
            {"model": {"name": "mlp", "image_size": 8}, "train": {"augment": {"flip": True}}},
            "train.augment: it changes images.*; model.image_size: it is for images",
        ),
        (
            "vector",
            {"model": {"name": "mlp"}, "attack": {"name": "backdoor"}},
            "attack.name: backdoor changes images",
        ),
    ],
)
def test_settings_that_do_not_fit_the_samples_are_refused(
    kind: str, document: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_kind(parse_config(document), kind)  # type: ignore[arg-type]


def test_mirror_images_are_of_images_alone() -> None:
    made = trial("icarl", kind="series", scenario=SHORT)
    machine, samples = made.local.machine, made.local.samples
    net = machine.net(made.simulation.start().model)
    rows = torch.arange(3)
    assert torch.equal(machine.inputs(net, samples, rows, flipped=True), machine.inputs(net, samples, rows))


def test_rows_are_no_pictures_for_the_report() -> None:
    config = parse_config({"model": {"name": "mlp"}, "scenario": SHORT})
    source = waves("vector", per_class=4)
    world = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    assert make_recipe(config, prepared(config, source, world)).setting.shown == 0
    assert make_recipe(config, blobs()).setting.shown > 0
