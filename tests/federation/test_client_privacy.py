"""Differential privacy of whole clients: bounded updates, noise in their sum, and clients drawn one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fcil.core.aggregate import Aggregate
from fcil.core.errors import ConfigError
from fcil.core.keystream import Keystream
from fcil.deployment.server.run import deployment_config
from fcil.experiment.config import parse_config
from fcil.experiment.cost_estimate import make_plan
from fcil.experiment.summary import privacy_in_words, summarise
from fcil.federation import client_privacy
from fcil.federation.client_privacy import ClientPrivacy, clipped, with_noise
from fcil.maths.accountant import NoisySteps
from fcil.methods.privacy import PrivacyConfig
from fcil.testing import Trial, trial

CONFIG = PrivacyConfig(epsilon=8.0, unit="client", clip=0.5)
SITES: dict[str, Any] = {"tasks": 1, "rounds_per_task": 2, "initial_clients": 40, "joiners": 0, "participants": 4}


def hidden(*clients: int, expected: int = 5, config: PrivacyConfig = CONFIG) -> ClientPrivacy:
    return ClientPrivacy(config, expected, clients)


def test_noise_follows_from_all_rounds_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hidden(20, 20, 50, 4)
    asked: list[Any] = []
    monkeypatch.setattr(client_privacy, "noise_for", lambda *plan: asked.append(plan) or 1.0)
    monkeypatch.setattr(client_privacy, "spent", lambda uses, delta: uses)
    assert found.noise == 1.0
    plan = (NoisySteps(1.0, 0.25, 2), NoisySteps(1.0, 0.1, 1), NoisySteps(1.0, 1.0, 1))
    assert asked == [(8.0, 1e-5, plan)]
    assert (found.spent(2), found.spent(4)) == (plan[:1], plan)


def test_updates_are_at_most_so_long() -> None:
    sent = {"a": torch.zeros(3), "b": torch.ones(2, 2)}
    long = {"a": torch.tensor([3.0, 0.0, 0.0]), "b": torch.ones(2, 2) + 2.0}  # 5 long
    short = clipped(long, sent, 0.5)
    torch.testing.assert_close(short["a"], torch.tensor([0.3, 0.0, 0.0]))
    torch.testing.assert_close(short["b"], torch.full((2, 2), 1.2))
    assert torch.equal(clipped(long, sent, 6.0)["b"], long["b"])
    assert torch.equal(clipped({**long, "a": torch.full((3,), math.nan)}, sent, 1.0)["b"], sent["b"])
    assert torch.equal(clipped(sent, sent, 1.0)["a"], sent["a"])


def test_a_sum_is_divided_by_the_clients_that_are_expected() -> None:
    """Six came where five were expected; the noise has the length of the longest update times the multiplier."""
    found, sent = hidden(4, 4), {"a": torch.zeros(20_000)}
    aggregate = Aggregate({"a": torch.full((20_000,), 0.25), "frozen": torch.ones(1)}, 6)
    plain = found.applied(sent, aggregate, None).model
    torch.testing.assert_close(plain["a"], torch.full((20_000,), 0.25 * 6 / 5))
    noisy = found.applied(sent, aggregate, 3).model
    assert float((noisy["a"] - plain["a"]).std()) == pytest.approx(found.noise * 0.5 / 5, rel=0.03)
    assert torch.equal(noisy["frozen"], torch.ones(1))
    assert not torch.equal(noisy["a"], found.applied(sent, aggregate, 4).model["a"])


def test_clients_are_drawn_by_themselves() -> None:
    found, present = hidden(20), [*range(100, 120)]
    sizes = torch.tensor([len(found.drawn(present, 0, seed)) for seed in range(400)], dtype=torch.float64)
    assert float(sizes.mean()) == pytest.approx(5, abs=4 * (20 * 0.25 * 0.75 / 400) ** 0.5)
    assert float(sizes.var()) == pytest.approx(20 * 0.25 * 0.75, rel=0.3)
    assert found.drawn(present, 0, 7) == found.drawn(present, 0, 7)
    assert hidden(4).drawn([1, 2, 3, 4], 0, 1) == [1, 2, 3, 4]


def federation(aggregator: str, **parts: Any) -> Trial:
    privacy = {"epsilon": 8.0, "unit": "client", "clip": 0.5, **parts.pop("privacy", {})}
    scenario = {**SITES, **parts.pop("scenario", {})}
    model = {"freeze": True}
    federation = {"aggregator": aggregator, "max_update": 1000.0}
    return trial("finetune", scenario=scenario, model=model, federation=federation, privacy=privacy, **parts)


@pytest.mark.parametrize("aggregator", ["mean", "masked"])
def test_a_run_hides_its_clients(aggregator: str) -> None:
    made = federation(aggregator)
    _, records = made.run()
    found = [record.privacy for record in records]
    assert [one["unit"] for one in found if one] == ["client"] * 2
    assert found[-1] is not None
    assert 7.5 < found[-1]["epsilon"] <= 8.0
    told = privacy_in_words(summarise(records, "finetune", "fcil", 1))
    assert told is not None
    assert "for each client; not covered" in told
    assert "updates, which the server sees" in told


def test_noise_in_masked_sums_is_what_those_who_may_be_silent_leave() -> None:
    """All four take part; with half of them silent, the two others' noise would be enough, so there is sqrt 2 of it."""
    steps = []
    for clip in (1e-6, 1.0):
        made = federation("masked", scenario={"initial_clients": 4, "rounds_per_task": 1}, privacy={"clip": clip})
        before, _ = made.simulation._open(made.simulation.start())
        after, _ = made.run()
        names = [name for name in after.model if name.startswith("head.")]
        steps.append(torch.cat([(after.model[n] - before.state.model[n]).flatten() for n in names]).double())
    hidden = made.simulation.server.hidden
    assert hidden is not None
    wanted = hidden.noise * math.sqrt(2) / 4
    assert float((steps[1] - steps[0]).std()) == pytest.approx(wanted, rel=0.25)  # of some 200 numbers


def test_noise_is_the_sum_of_independent_numbers() -> None:
    found = with_noise(torch.zeros(30_000), 2.0, Keystream(bytes(32)))
    assert float(found.std()) == pytest.approx(2.0, rel=0.02)
    assert abs(float(found.mean())) < 0.05
    assert float((found.abs() < 2.0).double().mean()) == pytest.approx(0.6827, abs=0.012)


def test_a_plan_says_that_ten_clients_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_privacy, "noise_for", lambda *plan: 1.0)
    base: dict[str, Any] = {
        "data": {"source": "digits", "samples_per_class": 4},
        "model": {"width": 8, "norm": "group"},
        "method": {"name": "finetune"},
        "privacy": {"epsilon": 8.0, "unit": "client"},
    }
    for clients, useless in ((10, True), (2000, False)):
        scenario = {"tasks": 2, "rounds_per_task": 5, "initial_clients": clients, "joiners": 0}
        scenario |= {"participants": clients // 10 if clients > 10 else 10, "memory": 0}
        notes = make_plan(parse_config({**base, "scenario": scenario}), seconds=0.01).notes
        (told,) = [note for note in notes if "times as long as the mean update of a round" in note]
        assert ("leaves nothing to learn" in told) is useless


def test_real_sites_hide_images_alone() -> None:
    document = {"method": {"name": "finetune"}, "model": {"freeze": True}}
    with pytest.raises(ConfigError, match=r"privacy\.unit: found 'client', should be 'image'"):
        deployment_config(parse_config({**document, "privacy": {"epsilon": 8.0, "unit": "client"}}))
