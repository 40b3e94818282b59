"""Re-Fed: the samples with the largest gradients stay, under a model between the client's past and the global one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.clients import run_client
from support.objectives import Workshop, make_local
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Broadcast, model_digest
from fcil.data.datasets.dataset import Source, Split
from fcil.data.exemplar_memory import Memory
from fcil.experiment.config import parse_config
from fcil.maths.herding import herd
from fcil.maths.importance import head_gradient_norms, network_gradient_norms
from fcil.methods.base import Current
from fcil.methods.re_fed import Informative, ReFedConfig
from fcil.testing import blobs

NOTHING = torch.empty(0, dtype=torch.int64)
CLEAN = blobs(per_class=20)


def with_a_wrong_label(source: Source = CLEAN) -> tuple[Source, int]:
    """Return a data set in which one sample of class 1 is labelled 0, and that sample."""
    labels = source.train.labels.clone()
    wrong = int((labels == 1).nonzero()[0])
    labels[wrong] = 0
    return replace(source, train=Split(source.train.images, labels)), wrong


class Case:
    """A client with samples of a trained model of two classes."""

    def __init__(self, source: Source = CLEAN, **fields: Any) -> None:
        taught = Workshop("re-fed", 2, 2).pretrained()  # on clean labels
        self.shop = Workshop("re-fed", 0, 2, source)
        self.model, self.local = taught.teacher, make_local(source)
        self.curator = Informative(ReFedConfig(**fields))
        self.broadcast = Broadcast(self.shop.context, model_digest(self.model))

    def current(self, seed: int = 1) -> Current:
        return Current(NOTHING, {self.broadcast.model: self.model}, seed)

    def importance(self, past: Tensor, seed: int = 1) -> Tensor:
        return self.curator.importance(past, self.broadcast, self.current(seed), self.local)

    def keep(self, memory: Memory, finished: Tensor, budget: int) -> Memory:
        return self.curator(memory, finished, budget, self.broadcast, self.current(), self.local)

    def outputs(self, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, logits and labels under the global model."""
        net, images = self.local.machine.net(self.model), self.local.images(past)
        with torch.no_grad():
            features = net.extract(images)
            return features, net.head(features), self.local.samples.labels(past)


def test_the_loss_is_the_cross_entropy_on_old_and_new_samples_alike() -> None:
    shop = Workshop("re-fed", 2, 4)
    samples = shop.of_classes(0, 3, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found, logits = objective.loss(images, torch.arange(8)), objective.problem.net(images)
    assert found.item() == pytest.approx(F.cross_entropy(logits, objective.problem.targets).item(), rel=1e-6)
    assert objective.parts() == {}


@pytest.mark.parametrize("gradient", ["head", "network"])
def test_a_sample_with_a_wrong_label_ranks_first_where_herding_begins_with_others(gradient: str) -> None:
    source, wrong = with_a_wrong_label()
    case = Case(source, gradient=gradient)
    own = case.shop.of_classes(0)
    kept = case.keep(Memory(), case.shop.of_classes(0, 1), 100)
    assert kept.classes == (0, 1)
    assert kept.ranked[0][0] == wrong
    features, _, _ = case.outputs(own)
    assert wrong not in own[herd(features, 4)]


@pytest.mark.parametrize("gradient", ["head", "network"])
def test_as_lambda_goes_to_zero_the_global_model_judges(gradient: str) -> None:
    case = Case(personalisation=1e-12, gradient=gradient)
    past = case.shop.of_classes(0, 1)
    features, logits, labels = case.outputs(past)
    wanted = head_gradient_norms(features, logits, labels)
    if gradient == "network":
        net = case.local.machine.net(case.model)
        net.layout = torch.contiguous_format
        wanted = network_gradient_norms(net, case.local.images(past), labels)
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5
    torch.testing.assert_close(case.importance(past), harmonic * wanted, rtol=1e-3, atol=1e-5)


def test_with_a_large_lambda_the_model_learns_the_past_and_its_samples_count_less() -> None:
    labels = CLEAN.train.labels
    swapped = torch.where(labels < 2, 1 - labels, labels)  # this client's past contradicts the global model
    source = replace(CLEAN, train=Split(CLEAN.train.images, swapped))
    held, free = (Case(source, personalisation=share, informative_rate=0.1) for share in (1e-12, 1.0))
    past = held.shop.of_classes(0, 1)
    assert free.importance(past).mean() < 0.5 * held.importance(past).mean()


def test_one_pass_is_a_step_of_gradient_descent_per_batch_and_the_norms_after_it() -> None:
    """By hand, on a batch of all samples, without any pull."""
    case = Case(passes=1, personalisation=1.0, informative_rate=0.3)
    past = case.shop.of_classes(0, 1)
    net, images, labels = case.local.machine.net(case.model), case.local.images(past), case.local.samples.labels(past)
    F.cross_entropy(net(images), labels).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(0.3 * parameter.grad)
        features = net.extract(images)
        wanted = head_gradient_norms(features, net.head(features), labels)
    torch.testing.assert_close(case.importance(past), wanted, rtol=1e-3, atol=1e-5)


def test_the_order_of_the_steps_is_the_client_s_own_and_comes_from_its_seed() -> None:
    case = Case(informative_batch=8, informative_rate=0.1)
    past = case.shop.of_classes(0, 1)
    assert torch.equal(case.importance(past), case.importance(past))
    assert not torch.equal(case.importance(past), case.importance(past, seed=2))


def test_exemplars_are_judged_again_beside_what_is_finished() -> None:
    case = Case()
    first, second = case.shop.of_classes(0), case.shop.of_classes(1)
    memory = Memory((0,), (first[:6],))
    kept = case.keep(memory, second, 8)
    past = torch.cat([first[:6], second]).sort().values
    order = past[case.importance(past).argsort(descending=True)]
    labels = case.local.samples.labels(order)
    assert [ranked.tolist() for ranked in kept.ranked] == [order[labels == label][:4].tolist() for label in (0, 1)]


def test_without_quotas_those_stay_that_count_most_and_every_class_stays_known() -> None:
    case = Case(quota="none")
    past = case.shop.of_classes(0, 1)
    order = past[case.importance(past).argsort(descending=True)]
    labels = case.local.samples.labels(order)
    for budget in (1, 7, 100):
        kept = case.keep(Memory((0, 5), (past[:2], NOTHING)), past, budget)
        assert kept.classes == (0, 1, 5)
        wanted = [order[:budget][labels[:budget] == label].tolist() for label in (0, 1, 5)]
        assert [ranked.tolist() for ranked in kept.ranked] == wanted
        assert len(kept) == min(budget, len(past))


def test_a_client_without_room_for_exemplars_trains_no_informative_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> Tensor:
        raise AssertionError("there is nothing to keep")

    monkeypatch.setattr(Informative, "importance", never)
    case = Case()
    role = case.shop.roles.client
    role.memory = 0
    state = role.init()
    for arrival in (case.shop.of_classes(0), NOTHING):
        state, _, _ = run_client(role, state, arrival, case.local, case.shop.context, case.model)
    assert (state.memory.classes, len(state.memory)) == ((0,), 0)


def test_an_explicit_pull_that_would_diverge_is_refused() -> None:
    strong = {"name": "re-fed", "edition": "released", "personalisation": 0.001}
    with pytest.raises(ConfigError) as refused:
        parse_config({"method": strong})
    assert str(refused.value) == (
        "method.pull: found 'explicit', should be 'implicit' where method.informative_rate is 0.01 and "
        "method.personalisation 0.001: an explicit pull that strong diverges; take another edition"
    )
    weaker: Any = parse_config({"method": {**strong, "personalisation": 0.5}}).method
    assert (weaker.pull, weaker.gradient, weaker.quota) == ("explicit", "network", "none")
