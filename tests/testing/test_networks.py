"""Every registered network is held to the contract of networks, and methods to theirs on other networks."""

from __future__ import annotations

import math

import pytest

from fcil.core.errors import ConfigError
from fcil.core.messages import model_digest
from fcil.experiment.config import load_config
from fcil.methods import get_method, methods
from fcil.models import networks
from fcil.testing import MethodContract, NetworkContract, trial
from fcil.testing.learning import FIRST, NEW, OLD, learn
from fcil.testing.recorded import SHORT, snapshot
from fcil.testing.robustness import is_finite

OTHERS = {  # the small one with channels enough to learn what the contract asks for, whatever the seed
    "cnn": {"name": "cnn", "width": 32},
    "group": {"norm": "group"},
    "cnn_group": {"name": "cnn", "norm": "group", "width": 32},
}
NEED_STAGES = {"geodl", "podnet"}
NEED_BATCH_NORM = ("target", "lander", "mfcl")
METHODS = [name for name, method in methods().items() if method.variant_of is None]

for name, network in networks().items():
    for norm in ("batch", "group") if "norm" in network.reads else ("batch",):
        settings = {**({"width": 4} if "width" in network.reads else {}), "norm": norm}
        title = f"Test_{name.replace('-', '_')}_{norm}"
        globals()[title] = type(title, (NetworkContract,), {"network": name, "settings": settings})

for name in ("glfc", "icarl"):
    for other, chosen in OTHERS.items():
        title = f"Test_{name}_on_{other}"
        globals()[title] = pytest.mark.soak(type(title, (MethodContract,), {"method": name, "network": chosen}))


@pytest.mark.parametrize("other", ["cnn", "group"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_plays_on_other_networks_or_is_refused_by_both_names(method: str, other: str) -> None:
    if other == "cnn" and method in NEED_STAGES:
        sentence = f"model.name: found cnn, which has no stages.* resnet18 for method.name {method}"
        with pytest.raises(ConfigError, match=sentence):
            load_config("digits", [f"method.name={method}", "model.name=cnn"])
        return
    if other == "group" and method in NEED_BATCH_NORM:
        unless = ", or method.statistics_weight 0" if method == "target" else ""
        sentence = f"model.norm: found group, should be batch{unless}, for method.name {method}"
        with pytest.raises(ConfigError, match=sentence):
            load_config("digits", [f"method.name={method}", "model.norm=group"])
        return
    state, records = trial(method, scenario=SHORT, model=OTHERS[other]).run()
    assert is_finite(state)
    assert [record.failures for record in records] == [[]] * len(records)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_trains_a_frozen_backbone(method: str) -> None:
    made = trial(method, scenario=SHORT, model={"freeze": True})
    start = made.simulation.start()
    state, records = made.run(start)
    assert [record.failures for record in records] == [[]] * len(records)
    changed = [
        name
        for name, tensor in start.model.items()
        if name.startswith("backbone.") and not tensor.equal(state.model[name])
    ]
    assert not changed
    trains = "optimiser" in get_method(method).config.model_fields
    losses = [record.loss for record in records]
    assert all(loss is not None and math.isfinite(loss) for loss in losses) if trains else not any(losses)


@pytest.mark.numeric
@pytest.mark.parametrize(("method", "other"), [("icarl", "cnn"), ("glfc", "group"), ("icarl", "cnn_group")])
def test_a_method_learns_on_other_networks_what_the_contract_asks_for(method: str, other: str) -> None:
    learned = learn(method, model=OTHERS[other])
    assert learned.first > FIRST
    assert learned.new > NEW
    assert learned.old > OLD


def test_a_worker_plays_another_network_to_the_same_bits() -> None:
    chosen = {"name": "cnn", "norm": "group", "freeze": True}
    plain = trial("glfc", scenario=SHORT, model=chosen)
    ours = trial("glfc", engine="processes", workers=1, scenario=SHORT, model=chosen)
    try:
        state, _ = ours.run()
    finally:
        ours.simulation.engine.close()
    expected, _ = plain.run()
    assert model_digest(state.model) == model_digest(expected.model)
    assert snapshot(ours, state) == snapshot(plain, expected)
