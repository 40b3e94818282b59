"""First-block adaptation: the last stage is trained, then frozen, and all sums are those of the adapted features."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.objectives import Workshop

from fcil.core.messages import ModelState, Report
from fcil.federation.round_record import RoundRecord
from fcil.federation.simulation import SimulationState
from fcil.maths.analytic import feature_sums
from fcil.maths.owned import counted_cross_entropy
from fcil.methods import get_method
from fcil.methods.adaptation import SCALE, Adaptation, AdaptationConfig
from fcil.methods.local_objective import Problem
from fcil.models import ModelConfig, head_width
from fcil.testing import Trial, trial

ADAPT: dict[str, Any] = {"adapt": "last-stage", "adapt_rounds": 2}
SMALL: dict[str, Any] = {"tasks": 2, "rounds_per_task": 4, "initial_clients": 3, "joiners": 0, "participants": 3}
LAST = "backbone.stages.3."  # of ResNet-18


def federation(scenario: dict[str, Any] | None = None, **fields: Any) -> Trial:
    return trial("analytic", scenario={**SMALL, **(scenario or {})}, fields={**ADAPT, **fields})


def played(made: Trial) -> list[tuple[SimulationState, RoundRecord]]:
    with closing(made.simulation.engine):
        return list(made.simulation.rounds(made.simulation.start()))


def changed(before: ModelState, after: ModelState) -> set[str]:
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def test_the_last_stage_is_trained_in_the_first_rounds_and_never_again() -> None:
    made = federation()
    start, rounds = made.simulation.start(), played(made)
    models = [state.model for state, _ in rounds]
    backbone = {name for name in start.model if name.startswith("backbone.")}
    backbone = {name for name in backbone if not torch.equal(start.model[name], models[1][name])}
    assert backbone
    assert all(name.startswith(LAST) for name in backbone)
    assert [head_width(model) for model in models] == [3, *[0] * 7]
    assert all(changed(models[1], model) == set() for model in models[2:])
    assert not any(record.failures for _, record in rounds)
    assert [record.loss is not None for _, record in rounds] == [True] * 2 + [False] * 6


@pytest.mark.parametrize("projection", [0, 24])
def test_the_sums_are_those_of_all_samples_under_the_adapted_network(projection: int) -> None:
    made = federation({"split": "disjoint"}, projection=projection)
    state, _ = played(made)[-1]
    kept: Any = state.server.role_state
    samples, catalogue = made.clients.samples, state.server.catalogue.classes
    outputs = torch.tensor([catalogue.index(str(label)) for label in samples.split.labels.tolist()])
    net = made.local.machine.net(state.model)
    features = made.local.features(net, torch.arange(len(outputs)))
    if projection:
        normal = F.layer_norm(features.double(), features.shape[-1:], eps=1e-12)
        features = F.relu(normal @ state.model["head.projection"].double())
    expected = feature_sums(features, outputs, len(catalogue))
    assert kept.counts.tolist() == expected.counts.tolist()
    torch.testing.assert_close(kept.gram, expected.gram, rtol=1e-4, atol=1e-6)


def test_it_ends_with_the_first_block_at_the_latest() -> None:
    models = [state.model for state, _ in played(federation(adapt_rounds=99))]
    assert [head_width(model) for model in models] == [3] * 4 + [0] * 4
    assert changed(models[2], models[3])
    assert all(changed(models[4], model) == set() for model in models[4:])


def test_the_trained_outputs_predict_until_there_are_sums() -> None:
    made = federation()
    for number, (state, _) in enumerate(played(made)):
        found = made.simulation.server.predictor(state.server)
        assert head_width(found) == len(state.server.catalogue.classes)
        lengths = found["head.weight"].norm(dim=1)
        torch.testing.assert_close(lengths[lengths > 0], torch.ones(int((lengths > 0).sum())))
        kept: Any = state.server.role_state
        assert (kept.sums is None) == (number < 2)


def test_the_loss_is_the_counted_cross_entropy_of_cosines_over_own_classes() -> None:
    shop = Workshop("analytic", 0, 4, **ADAPT)
    samples = torch.cat([shop.of_classes(0, each=6), shop.of_classes(2, each=2)])
    targets = shop.local.samples.outputs(samples, shop.context)
    net = shop.local.machine.net(shop.model)
    problem = Problem(net=net, teacher=None, targets=targets, old=targets < 0, has_history=False, context=shop.context)
    objective = Adaptation(AdaptationConfig(rounds=1), problem, shop.local)
    inputs, rows = shop.local.inputs(net, samples), torch.arange(len(samples))
    cosines = F.normalize(net.extract(inputs)) @ F.normalize(shop.model["head.weight"]).T
    counts = torch.tensor([6, 0, 2, 0])
    expected = counted_cross_entropy(SCALE * cosines, targets, counts).mean()
    torch.testing.assert_close(objective.loss(inputs, rows), expected)
    assert objective.row_weights()["head.weight"].tolist() == [6, 0, 2, 0]


def test_a_server_that_trains_refuses_sums_and_one_that_sums_refuses_models() -> None:
    shop = Workshop("analytic", 0, 4, **ADAPT)
    server, counts = shop.roles.server, torch.tensor([20.0, 20, 0, 0]).double()
    sent = shop.network.trained(shop.model)
    honest = Report(sent, 40, {"head.weight": counts})
    assert server.expected(sent).keys() == sent.keys()
    assert server.refusal(honest, sent, shop.context) is None
    uncounted = server.refusal(replace(honest, rows={}), sent, shop.context)
    assert "row weights must be given" in str(uncounted)
    after = {**sent, "head.weight": sent["head.weight"][:0], "head.bias": sent["head.bias"][:0]}
    assert server.expected(after) == {}
    assert "unasked" in str(server.refusal(replace(honest, model={}), after, shop.context))


def test_the_network_is_frozen_but_for_its_last_stage() -> None:
    config = get_method("analytic").config
    for name, stages in (("resnet18", 3), ("efficientnet-lite0", 4)):
        assert config(**ADAPT).network(ModelConfig(name=name)).freeze == f"stages:{stages}"
    assert config().network(ModelConfig()).freeze is True
    with pytest.raises(ValueError, match=r"model\.name: found cnn, which has no stages"):
        config(**ADAPT).network(ModelConfig(name="cnn"))
    assert "head.weight" in config(**ADAPT).sends()
