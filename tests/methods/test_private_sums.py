"""Differential privacy of the analytic method: what leaves a client, how much noise is in it, and what is refused."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.parties import Losing
from torch import Tensor

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Order, Reply, Report, RoundContext
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.experiment.config import parse_config
from fcil.experiment.summary import privacy_in_words, summarise
from fcil.federation.client import Job
from fcil.federation.masking.messages import Masks
from fcil.maths.analytic import Sums, symmetric, triangle
from fcil.maths.gaussian_mechanism import epsilon_of, noise_of, repeated
from fcil.methods.analytic import SumsState
from fcil.methods.ledger import Batch, SampleLedger
from fcil.methods.privacy import PrivacyConfig
from fcil.methods.private_sums import FINEST, NoisyRelease, private_head
from fcil.methods.sums_client import CLASSES, GRAM, NOISE
from fcil.testing import Trial, trial

DELTA = 1e-5
SITES: dict[str, Any] = {
    "tasks": 5,
    "rounds_per_task": 2,
    "initial_clients": 4,
    "joiners": 0,
    "both_share": 1.0,
    "participants": 4,
    "class_fraction": 1.0,
    "split": "disjoint",
}


@cache
def digits(each: int | None = 12) -> Source:
    return load_source(DataConfig(source="digits", samples_per_class=each))


def release(epsilon: float = 2.0, **settings: Any) -> NoisyRelease:
    return NoisyRelease(PrivacyConfig(epsilon=epsilon, **settings))


def context(classes: int, old: int = 0, since: int = 0) -> RoundContext:
    return RoundContext(0, tuple(map(str, range(classes))), (old, classes) if old else (classes,), since)


def federation(epsilon: float = 8.0, aggregator: str = "mean", **parts: Any) -> Trial:
    privacy = {"epsilon": epsilon, **parts.pop("privacy", {})}
    scenario = {**SITES, **parts.pop("scenario", {})}
    source, sums = digits(parts.pop("each", 12)), {"aggregator": aggregator}
    return trial("analytic", source=source, scenario=scenario, width=16, federation=sums, privacy=privacy)


# --- noise --------------------------------------------------------------------------------------------------------


def noise_alone(
    participants: int, features: int = 150, classes: int = 40, old: int = 10
) -> tuple[Tensor, Tensor, float]:
    """Return what a client sends that has samples of older classes alone."""
    empty = torch.zeros(features * (features + 1) // 2, dtype=torch.float64)
    columns = torch.zeros(classes, features, dtype=torch.float64)
    columns[:old] = 1.0
    return release().noised(empty, columns, context(classes, old), participants, bytes(32))


def test_the_noise_of_a_report_is_the_one_of_the_mechanism() -> None:
    """One sample changes G and C by sqrt(2); one off its diagonal counts twice, so half the variance is enough."""
    wanted = math.sqrt(2) * noise_of(2.0, DELTA)
    packed, classes, variance = noise_alone(1)
    gram = symmetric(packed)
    rows, columns = torch.triu_indices(150, 150, offset=1)
    assert float(gram[rows, columns].std()) == pytest.approx(wanted / math.sqrt(2), rel=0.02)
    assert float(gram.diagonal().std()) == pytest.approx(wanted, rel=0.2)  # of 150 numbers
    assert float(classes[10:].std()) == pytest.approx(wanted, rel=0.04)
    assert variance == pytest.approx(wanted**2 / 2, rel=0.01)
    assert not classes[:10].any()  # classes of older blocks are in no report


@pytest.mark.parametrize("noiseless", [0.0, 0.34, 0.5, 0.9])
def test_a_sum_without_the_noise_of_those_who_may_be_silent_has_enough_of_it(noiseless: float) -> None:
    full, rest = (math.sqrt(part) * noise_of(2.0, DELTA) for part in (2, 1))
    for participants in range(1, 12):
        noise = release(noiseless=noiseless).noise(5000, participants)
        silent = math.floor(noiseless * participants)
        left = math.sqrt(participants - silent)
        assert full <= left * noise.full * noise.quantum <= full * 1.01
        assert rest <= left * noise.half * noise.quantum <= rest * 1.01


def test_reports_are_whole_numbers_of_a_quantum_that_masked_sums_keep() -> None:
    for participants in (1, 7, 200):
        noise = release(8.0).noise(5000, participants)
        assert noise.quantum >= FINEST
        assert noise.half > 1 << 15  # fine enough to be as good as continuous
    value = 0.1 + torch.rand(6, dtype=torch.float64)
    packed, classes, _ = release().noised(value, value.view(2, 3), context(2), 1, bytes(32))
    quantum = release().noise(12, 1).quantum
    assert torch.equal(packed / quantum, (packed / quantum).round())
    assert torch.equal(classes / quantum, (classes / quantum).round())


def test_noise_that_is_too_coarse_for_so_many_numbers_is_refused() -> None:
    with pytest.raises(FederationError, match="cannot be kept for reports of 200000000 numbers"):
        release(9.0).noise(200_000_000, 1)


def test_noise_of_two_answers_differs_and_an_answer_sent_again_is_the_same() -> None:
    """At a real site an answer has a nonce from the system's source of randomness; a simulation has none."""
    job = Job(Order(0, True), 7, SampleLedger(), torch.empty(0), None, None)
    keys = [replace(job, nonce=nonce).noise_key for nonce in (0, 1, 2)] + [replace(job, seed=8).noise_key]
    assert len({*keys}) == 4
    assert replace(job, nonce=2).noise_key == keys[2]
    packed = torch.zeros(6, dtype=torch.float64)
    noise = [release().noised(packed, packed.view(2, 3), context(2), 1, key)[0] for key in keys]
    assert len({tuple(one.tolist()) for one in noise}) == 4


def test_a_client_knows_its_partners_by_its_masks() -> None:
    """A mask of its own and one per partner."""
    job = Job(Order(0, True), 7, SampleLedger(), torch.empty(0), None, None)
    assert job.participants == 1
    assert replace(job, masks=Masks.of([bytes(32)] * 3, [bytes(32)] * 2)).participants == 5


# --- what leaves a client -----------------------------------------------------------------------------------------


def reports_of(made: Trial) -> list[list[Report]]:
    """Return all reports of each round."""
    heard: list[list[Report]] = []
    engine = made.simulation.engine

    class Listening:
        def run(self, traffic: Any, orders: Any) -> Any:
            heard.append([])
            for answer in engine.run(traffic, orders):
                if isinstance(answer, Reply) and answer.report is not None:
                    heard[-1].append(answer.report)
                yield answer

        def close(self) -> None:
            engine.close()

    made.simulation = replace(made.simulation, engine=Listening())
    with closing(made.simulation.engine):
        made.run()
    return heard


def test_reports_of_one_form_leave_everybody_in_releases_and_nobody_in_other_rounds() -> None:
    """Half of the clients have no sample of a later task."""
    heard = reports_of(federation(scenario={"both_share": 0.5}))
    assert [len(reports) for reports in heard] == [4, 0] * 5
    forms = {
        (report.samples, tuple((name, tuple(part.value.shape)) for name, part in report.parts.items()))
        for report in heard[4]
    }
    assert forms == {(1, ((GRAM, (64 * 65 // 2,)), (CLASSES, (6, 64)), (NOISE, ())))}
    assert not any(report.parts[CLASSES].value[:4].any() for report in heard[4])


def test_a_sample_of_an_older_class_is_in_no_release() -> None:
    """Its batch was lost, and another block began: the columns of its class have no noise now."""
    made, engine = lossy(9.0, releases=1)
    heard = reports_of(made)
    assert engine.lost == 1
    assert [len(reports) for reports in heard] == [3, 0] + [4, 0] * 4
    for block, reports in enumerate(heard[::2]):
        assert not any(report.parts[CLASSES].value[: 2 * block].any() for report in reports)


def test_features_have_length_one() -> None:
    """Without noise, the trace of G is the number of samples."""
    made = federation(10.0, privacy={"delta": 1e-2}, scenario={"initial_clients": 1, "participants": 1})
    total = sum(float(symmetric(reports[0].parts[GRAM].value).trace()) for reports in reports_of(made) if reports)
    assert total == pytest.approx(120, abs=40)  # the noise of five traces has a deviation of about 10


@pytest.mark.numeric
@pytest.mark.parametrize("aggregator", ["mean", "masked"])
def test_a_private_head_learns(aggregator: str) -> None:
    made = federation(aggregator=aggregator, each=None)
    state, records = made.run()
    correct, images = made.simulation.evaluate(state)
    assert sum(correct) > 0.3 * sum(images)  # of ten classes, on random features of a tiny network
    assert [record.privacy for record in records] == [{"epsilon": 8.0, "delta": DELTA}] * 10
    assert not any(record.failures for record in records)
    kept = state.server.role_state
    assert isinstance(kept, SumsState)
    each = release(8.0).noise(64 * 65 // 2 + 2 * 64, 1 if aggregator == "mean" else 4)
    assert kept.noise == pytest.approx(5 * 4 * each.variance, rel=1e-6)


def test_the_summary_has_the_guarantee_and_what_it_does_not_cover() -> None:
    _, records = federation(2.0, scenario={"tasks": 2, "rounds_per_task": 1}).run()
    words = privacy_in_words(summarise(records, "analytic", "fcil", 5))
    assert words is not None
    assert words.startswith("epsilon 2 at delta 1e-05 for each image of a client; not covered: ids of new classes")
    assert privacy_in_words(summarise([], "analytic", "fcil", 5)) is None


# --- what is refused ----------------------------------------------------------------------------------------------


def lossy(budget: float | None, releases: int = 2) -> tuple[Trial, Any]:
    """Return a federation in which one client's first report is lost."""
    made = federation(2.0, privacy={"releases": releases, "budget": budget})
    engine = Losing(made.simulation.engine, {(0, 1)})
    made.simulation = replace(made.simulation, engine=engine)
    return made, engine


def test_sums_are_not_sent_again_beyond_the_budget() -> None:
    made, engine = lossy(None)
    _, records = made.run()
    assert engine.lost == 1
    reasons = {failure["reason"] for record in records[1:] for failure in record.failures}
    (reason,) = reasons
    assert "would be sent 2 times, with epsilon 2.95 in all; privacy.budget allows 2" in reason
    assert records[-1].privacy == {"epsilon": 2.0, "delta": DELTA}


def test_within_the_budget_they_are_and_the_epsilon_of_both_is_told() -> None:
    made, _ = lossy(3.5)
    _, records = made.run()
    assert [len(record.failures) for record in records] == [1] + [0] * 9
    assert records[0].privacy == {"epsilon": 2.0, "delta": DELTA}
    twice = epsilon_of(repeated(noise_of(2.0, DELTA), 2), DELTA)
    assert records[-1].privacy == {"epsilon": round(twice, 4), "delta": DELTA}


def test_samples_are_not_withdrawn() -> None:
    with pytest.raises(FederationError, match=r"with privacy\.epsilon samples are not withdrawn"):
        release().check(Batch(torch.arange(2), (3,), withdrawn=True))


def test_sums_of_liars_have_a_head_all_the_same() -> None:
    """G is not positive definite, whatever the noise is said to be."""
    gram = -1e9 * torch.eye(5, dtype=torch.float64)
    sums = Sums(gram, torch.ones(2, 5, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    weight, bias = private_head(sums, 0.0, unit=True)
    assert bool(weight.isfinite().all())
    assert not bias.any()


def test_the_penalty_keeps_the_solution_above_the_noise() -> None:
    """With a quarter of it the noise of G would have negative eigenvalues left."""
    packed, columns, variance = noise_alone(1, features=80, classes=3, old=0)
    ones = torch.ones(3, dtype=torch.float64)
    sums = Sums(symmetric(packed), columns, ones)
    least = float(torch.linalg.eigvalsh(sums.gram)[0])
    penalty = 4 * math.sqrt(variance * 80)
    assert -penalty < least < -penalty / 4
    found, _ = private_head(sums, variance, unit=False)
    torch.testing.assert_close(found @ (sums.gram + penalty * torch.eye(80, dtype=torch.float64)), columns)
    assert torch.equal(triangle(sums.gram), packed)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"epsilon": 101.0}, "less than or equal to 100"),
        ({"budget": 2.0}, "at least privacy.epsilon, and absent without it"),
        ({"epsilon": 2.0, "budget": 1.0}, "at least privacy.epsilon"),
        ({"epsilon": 2.0, "noiseless": 1.0}, "less than 1"),
    ],
)
def test_settings_that_promise_nothing_are_refused(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        PrivacyConfig(**table)


def test_methods_and_solvers_without_a_guarantee_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: found 11, should be at most 10, with privacy\.epsilon"):
        parse_config({"method": {"name": "analytic"}, "privacy": {"epsilon": 11.0}})
    with pytest.raises(ConfigError, match=r"method.solver: found 'gaussian', should be 'ridge'"):
        trial("analytic", fields={"solver": "gaussian"}, privacy={"epsilon": 2.0})


def test_a_run_without_privacy_has_no_such_table_in_its_document() -> None:
    assert "privacy" not in parse_config({"method": {"name": "analytic"}}).document()
    document = parse_config({"method": {"name": "analytic"}, "privacy": {"epsilon": 2.0}}).document()
    assert parse_config(document).privacy == PrivacyConfig(epsilon=2.0)
