"""Methods that train with differential privacy: the ledger, the budget, what leaves a client, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Report, RoundContext, decode, encode
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.experiment.config import parse_config
from fcil.experiment.summary import privacy_in_words, summarise
from fcil.federation.client import Job, run_job
from fcil.maths.accountant import NoisySteps, noise_for, spent
from fcil.methods import noisy_training
from fcil.methods.local_objective import Problem
from fcil.methods.mosaic import Mosaic, MosaicConfig
from fcil.methods.noisy_training import Fits, NoisyState, allowed
from fcil.methods.privacy import PrivacyConfig
from fcil.models.noisy_trainer import NoisyFit, NoisyTrainer
from fcil.models.trainer import TrainConfig
from fcil.testing import Trial, trial

DELTA = 1e-5
TRAIN = {"epochs": 1, "batch_size": 512, "learning_rate": 0.5, "block_epochs": 2}
SITES: dict[str, Any] = {
    "tasks": 2,
    "rounds_per_task": 2,
    "initial_clients": 3,
    "joiners": 0,
    "both_share": 1.0,
    "participants": 3,
    "class_fraction": 1.0,
    "split": "disjoint",
    "memory": 0,
}


@cache
def digits() -> Source:
    return load_source(DataConfig(source="digits", samples_per_class=12))


def federation(method: str = "mosaic", **parts: Any) -> Trial:
    privacy = {"epsilon": 8.0, **parts.pop("privacy", {})}
    scenario, train = {**SITES, **parts.pop("scenario", {})}, {**TRAIN, **parts.pop("train", {})}
    model = parts.pop("model", {"freeze": True})
    return trial(method, source=digits(), scenario=scenario, train=train, model=model, privacy=privacy, **parts)


def images(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


# --- the ledger ---------------------------------------------------------------------------------------------------


def test_a_ledger_knows_the_fits_that_an_image_may_have_been_in() -> None:
    fits = Fits().after(NoisyFit(images(4, 2), 3.0, 1), 2).after(NoisyFit(images(2, 7), 3.0, 1), 1)
    fits = fits.after(NoisyFit(images(7), 2.0, 2), 1)
    assert fits.images.tolist() == [2, 4, 7]
    assert list(zip(fits.first.tolist(), fits.last.tolist(), strict=True)) == [(0, 1), (0, 0), (1, 2)]
    assert fits.uses(0, 1) == (NoisySteps(3.0, 1.0, 3),)
    assert fits.uses(1, 2) == (NoisySteps(3.0, 1.0, 1), NoisySteps(2.0, 0.5, 2))
    found = {tuple(group.tolist()): uses for group, uses in fits.histories(images(9, 7, 2))}
    assert found == {(9,): (), (2,): fits.uses(0, 2), (7,): fits.uses(1, 2)}  # an image that was away counts as there
    state = NoisyState(Fits(), fits)
    assert encode(decode(encode(state), NoisyState)) == encode(state)


def test_images_whose_budget_is_spent_are_not_trained_on() -> None:
    privacy, train = PrivacyConfig(epsilon=4.0), TrainConfig(block_epochs=4, batch_size=8)
    noise = noise_for(4.0, DELTA, (NoisySteps(1.0, 1.0, 4),))
    fits = Fits().after(NoisyFit(images(0, 1, 2), noise, 1), 4)
    assert spent(fits.uses(0, 0), DELTA) <= 4.0
    mixed = allowed(privacy, fits, images(1, 2, 3, 4), 2, train)
    assert mixed.samples.tolist() == [3, 4]
    assert (mixed.noise, mixed.steps) == (noise, 1)
    with pytest.raises(
        FederationError, match=r"training on 3 images once more would spend epsilon 4\.\d+ of each; pri"
    ):
        allowed(privacy, fits, images(0, 1, 2), 1, train)
    more = PrivacyConfig(epsilon=4.0, budget=8.0)
    assert len(allowed(more, fits, images(0, 1, 2), 1, train).samples) == 3


def test_noise_is_the_one_of_the_planned_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(noisy_training, "noise_for", lambda *plan: asked.append(plan) or 1000.0)
    train = TrainConfig(block_epochs=3, batch_size=8)
    fit = allowed(PrivacyConfig(epsilon=4.0, delta=1e-6), Fits(), torch.arange(20), 1, train)
    assert (fit.steps, fit.noise) == (3, 1000.0)  # of an epoch: 20 images in batches of at most 8
    assert asked == [(4.0, 1e-6, (NoisySteps(1.0, 1 / 3, 9),))]


# --- a run --------------------------------------------------------------------------------------------------------


def test_a_run_spends_its_epsilon_in_each_block_and_no_more() -> None:
    """Images of a task are in use for a block, so the next block spends on others."""
    made = federation()
    _, records = made.run()
    one = spent((NoisySteps(noise_for(8.0, DELTA, (NoisySteps(1.0, 1.0, 2),)), 1.0, 1),), DELTA)
    found = [record.privacy["epsilon"] for record in records if record.privacy]
    assert found[0] == pytest.approx(one, abs=1e-3)
    assert 7.9 < found[1] <= 8.0
    assert found[1:] == [found[1]] * 3
    told = privacy_in_words(summarise(records, "mosaic", "fcil", 1))
    assert told is not None
    assert "for each image of a client; not covered: ids of new classes" in told
    assert "the classes of a client" in told
    for kept in made.clients.kept.values():
        assert made.roles.client.spent(kept.state) <= 8.0


def test_a_run_stops_before_it_exceeds_its_budget() -> None:
    made = federation(train={"block_epochs": 1}, scenario={"tasks": 1})
    with pytest.raises(FederationError, match=r"round 2: 0 participants answered.*privacy\.budget allows 8"):
        made.run()


def reports(made: Trial, **changed: Any) -> tuple[Any, list[Report]]:
    """Return the broadcast of the first round, and the reports of the first client for some jobs."""
    simulation = made.simulation
    state = simulation.start()
    opened, _ = simulation._open(state)
    found = []
    for nonce in (0, 0, 7):
        order = simulation.server.orders([0], [0])[0]
        samples = simulation.scenario.holding(0, 0)
        job = Job(order, 5, made.roles.client.init(), samples, None, None, nonce)
        done = run_job(
            made.roles.client, simulation.server.aggregator, job, opened.broadcast, opened.models, made.local
        )
        assert done.failure is None, done.failure
        assert done.reply is not None
        assert done.reply.report is not None
        found.append(done.reply.report)
    return opened, found


def test_a_report_tells_no_numbers_and_every_answer_has_noise_of_its_own() -> None:
    for method, samples in (("mosaic", 5), ("finetune", 1)):
        _, (first, again, other) = reports(federation(method))
        assert first.samples == samples  # of mosaic, one for each of the five classes
        assert all(set(rows.tolist()) <= {0.0, 1.0} for rows in first.rows.values())
        name = "head.weight"
        assert torch.equal(first.model[name], again.model[name])
        assert not torch.equal(first.model[name], other.model[name])


def test_a_private_loss_knows_classes_and_no_counts() -> None:
    for noisy, wanted in ((False, [3, 0, 2]), (True, [1, 0, 1])):
        made = federation()
        context = RoundContext(0, ("a", "b", "c"), (3,), 0)
        targets = torch.tensor([0, 0, 0, 2, 2])
        net = made.local.machine.net(made.simulation.start().model)
        problem = Problem(net=net, teacher=None, targets=targets, old=targets < 0, has_history=False, context=context)
        machine = NoisyTrainer(made.local.machine, 1.0, bytes(32), lambda images, _: NoisyFit(images, 1.0, 1))
        local = replace(made.local, machine=machine) if noisy else made.local
        assert Mosaic(MosaicConfig(), problem, local).counts.tolist() == wanted


@pytest.mark.parametrize("method", ["finetune", "lwf", "fedprox", "mosaic"])
def test_methods_train_whole_networks_with_group_norm(method: str) -> None:
    made = federation(method, model={"norm": "group"}, scenario={"initial_clients": 1, "participants": 1})
    _, records = made.run()
    assert [record.reports for record in records] == [1] * 4  # with a teacher from the second block on
    assert not [record.failures for record in records if record.failures]


# --- settings -----------------------------------------------------------------------------------------------------

PRIVATE = {"privacy": {"epsilon": 8.0}, "scenario": {"memory": 0}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"model": {"norm": "batch"}},
            r"model\.norm: found batch, should be group \(or model\.freeze true\), with pri",
        ),
        (
            {"method": {"name": "glfc"}},
            r"method\.name: found glfc, should be analytic or fedprox or finetune or lwf or",
        ),
        ({"scenario": {"memory": 60}}, r"scenario\.memory: found 60, should be 0, with privacy\.epsilon: which images"),
        (
            {"method": {"name": "mosaic", "warm_start": True}},
            r"method\.warm_start: found true, should be false, with p",
        ),
        ({"method": {"name": "mosaic", "detector": "entropy"}}, r"method\.detector: found entropy, should be labels"),
        (
            {"federation": {"averaging": "samples"}},
            r"federation\.averaging: found samples, should be uniform, with pri",
        ),
        (
            {"train": {"mixed_precision": True}},
            r"train\.mixed_precision: found true, should be false, with privacy\.ep",
        ),
        ({"privacy": {"epsilon": 8.0, "releases": 2}}, r"privacy\.releases: found 2, should be 1, with privacy\.epsil"),
        ({"privacy": {"epsilon": 8.0, "unit": "client"}}, r"method\.name: found mosaic, should be a method whose repo"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_private_is_refused_by_both_keys(change: dict[str, Any], sentence: str) -> None:
    document = {"method": {"name": "mosaic"}, "model": {"norm": "group"}, **PRIVATE}
    with pytest.raises(ConfigError, match=sentence) as refused:
        parse_config({**document, **change})
    assert "privacy.epsilon" in str(refused.value)


def test_a_frozen_backbone_may_have_batch_norm() -> None:
    for model in ({"freeze": True}, {"norm": "group"}):
        parse_config({"method": {"name": "mosaic"}, "model": model, **PRIVATE})
    with pytest.raises(ConfigError, match=r"model\.norm"):
        parse_config({"method": {"name": "mosaic"}, "model": {"freeze": "stages:3"}, **PRIVATE})
