"""FedCBDR: second moments that add up, a ranking by the federation's leverage, and a loss with two temperatures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.clients import run_client
from support.objectives import Workshop, catalogue, make_local, state_of, weighted
from torch import Tensor

from fcil.core.messages import Broadcast, Report, RoundContext, Weighted, model_digest
from fcil.maths.leverage import leverage
from fcil.methods.base import Current
from fcil.methods.fedcbdr import LARGEST, MOMENTS, FedCBDRConfig, InverseGram, Leverage, LeverageState
from fcil.methods.local_objective import News
from fcil.testing import trial
from fcil.testing.recorded import LONGER, Listener

SIZE = 16  # features of the workshop's network


def moments_of(shop: Workshop, latest: Tensor) -> Weighted:
    """Return what a participant with that arrival sends."""
    sent = shop.objective(latest, news=News(latest)).parts()
    assert set(sent) == {MOMENTS}
    part: Weighted = sent[MOMENTS]
    return part


def report_of(shop: Workshop, latest: Tensor) -> Report:
    """Return a report of a participant with that arrival alone."""
    return Report(shop.model, len(latest), parts={MOMENTS: moments_of(shop, latest)})


def features_of(shop: Workshop, samples: Tensor) -> Tensor:
    return shop.local.features(shop.local.machine.net(shop.model), samples).double()


def scores_of(shop: Workshop, arrivals: list[Tensor], samples: Tensor) -> Tensor:
    """Return the scores of samples after a round in which participants had these arrivals."""
    state, _ = shop.round(LeverageState(), [report_of(shop, arrival) for arrival in arrivals])
    return leverage(features_of(shop, samples), state.known.inverse)


def test_the_loss_has_a_mean_and_a_temperature_for_old_and_for_new_samples() -> None:
    shop = Workshop("fedcbdr", 2, 4)
    samples = shop.of_classes(0, 3, each=4)[:6]  # four old ones and two new
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found, logits = objective.loss(images, torch.arange(6)), objective.problem.net(images)
    tempered = torch.cat([logits[:, :2] / 0.9, logits[:, 2:] / 1.1], 1)
    losses = F.cross_entropy(tempered, objective.problem.targets, reduction="none")
    assert found.item() == pytest.approx((1.1 * losses[:4].mean() + 0.9 * losses[4:].mean()).item(), rel=1e-6)


def test_in_the_first_block_the_loss_is_the_cross_entropy() -> None:
    shop = Workshop("fedcbdr", 0, 4)
    samples = shop.of_classes(0, 3, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found, logits = objective.loss(images, torch.arange(8)), objective.problem.net(images)
    assert found.item() == pytest.approx(F.cross_entropy(logits, objective.problem.targets).item(), rel=1e-6)


def test_a_participant_sends_the_moments_of_its_newest_arrival_under_the_model_as_received() -> None:
    shop = Workshop("fedcbdr", 2, 4)
    latest, memory = shop.of_classes(3, each=10), shop.of_classes(0, each=5)
    objective = shop.fit(shop.objective(torch.cat([memory, latest]), news=News(latest)))
    sent, features = objective.parts()[MOMENTS], features_of(shop, latest)
    assert (sent.weight.item(), sent.value.dtype) == (10.0, torch.float32)
    torch.testing.assert_close(sent.value.double(), features.T @ features / 10, rtol=1e-5, atol=1e-6)
    assert not torch.equal(state_of(objective)["head.weight"], shop.model["head.weight"])  # it was fitted meanwhile


def test_who_has_no_newest_data_and_whose_network_diverged_sends_nothing() -> None:
    shop = Workshop("fedcbdr", 2, 4)
    assert shop.objective(shop.of_classes(0, each=5)).parts() == {}
    last = max(name for name in shop.model if name.endswith("bn2.weight"))
    shop.model = {**shop.model, last: shop.model[last] + LARGEST}
    latest = shop.of_classes(3, each=5)
    assert shop.objective(latest, news=News(latest)).parts() == {}


def test_scores_do_not_depend_on_how_the_samples_are_split_among_clients() -> None:
    shop = Workshop("fedcbdr", 0, 6)
    everything = shop.of_classes(*range(6))
    features = features_of(shop, everything)
    alone = leverage(features, torch.linalg.pinv(features.T @ features, rtol=1e-5, hermitian=True))
    by_class = [shop.of_classes(label) for label in range(6)]
    for arrivals in ([everything], by_class, list(everything.split([7, 50, 63]))):
        torch.testing.assert_close(scores_of(shop, arrivals, everything), alone, rtol=1e-2, atol=1e-3)


def test_a_sample_that_clients_have_ten_times_has_a_lower_score() -> None:
    shop = Workshop("fedcbdr", 0, 6)
    everything = shop.of_classes(*range(6))
    once = scores_of(shop, [everything], everything[:1]).item()
    often = scores_of(shop, [everything, everything[:1].repeat(9)], everything[:1]).item()
    assert often < 0.9 * once


def test_the_server_keeps_the_sum_of_the_latest_round_that_brought_any() -> None:
    shop = Workshop("fedcbdr", 0, 6)
    one, two = (report_of(shop, shop.of_classes(label)) for label in (1, 2))
    latest, _ = shop.round(LeverageState(), [two])
    first, _ = shop.round(LeverageState(), [one])
    then, _ = shop.round(first, [two])
    assert torch.equal(then.known.inverse, latest.known.inverse)
    assert not torch.equal(then.known.inverse, first.known.inverse)
    silent, _ = shop.round(then, [shop.report()])
    assert silent is then
    assert shop.roles.server.extra(then, shop.context).message is then.known
    assert shop.roles.server.extra(LeverageState(), shop.context).message is None


# --- the ranking --------------------------------------------------------------------------------------------------


def rank(config: FedCBDRConfig, extra: InverseGram | None, seed: int = 1, share: int = 20, output: int = 2) -> Tensor:
    """Return how a client ranks the samples of a class."""
    shop = Workshop("fedcbdr", 0, 6)
    broadcast = Broadcast(shop.context, model_digest(shop.model), extra=extra)
    samples = shop.of_classes(2)
    current = Current(samples, {broadcast.model: shop.model}, seed)
    return Leverage(config)(samples, output, share, broadcast, current, shop.local)


def notice(*groups: Tensor) -> tuple[Workshop, InverseGram]:
    shop = Workshop("fedcbdr", 0, 6)
    state, _ = shop.round(LeverageState(), [report_of(shop, group) for group in groups])
    return shop, state.known


def test_the_highest_scores_come_first_when_asked_to() -> None:
    shop, known = notice(Workshop("fedcbdr", 0, 6).of_classes(*range(6)))
    samples = shop.of_classes(2)
    wanted = samples[leverage(features_of(shop, samples), known.inverse).argsort(descending=True)]
    assert rank(FedCBDRConfig(pick="top"), known).tolist() == wanted.tolist()
    assert rank(FedCBDRConfig(pick="top"), known, share=3).tolist() == wanted[:3].tolist()


def test_exemplars_are_drawn_by_seed_and_class_and_more_often_where_the_score_is_high() -> None:
    shop, known = notice(Workshop("fedcbdr", 0, 6).of_classes(*range(6)))
    config, samples = FedCBDRConfig(), shop.of_classes(2)
    assert torch.equal(rank(config, known), rank(config, known))
    assert not torch.equal(rank(config, known), rank(config, known, seed=2))
    assert not torch.equal(rank(config, known), rank(config, known, output=3))
    assert torch.equal(rank(config, known, share=5), rank(config, known)[:5])  # so that a memory shrinks by truncation
    biased = replace(known, inverse=torch.zeros(SIZE, SIZE))
    biased.inverse[0, 0] = 1.0
    scores = leverage(features_of(shop, samples), biased.inverse)
    firsts = torch.stack([rank(config, biased, seed=seed, share=1)[0] for seed in range(60)])
    drawn = scores[(firsts[:, None] == samples).int().argmax(1)]
    assert drawn.mean() > scores.mean()


def test_as_printed_rows_are_mixed_before_they_are_scored() -> None:
    _, known = notice(Workshop("fedcbdr", 0, 6).of_classes(*range(6)))
    released = FedCBDRConfig(**FedCBDRConfig.editions["released"], pick="top")
    own, mixed = rank(FedCBDRConfig(pick="top"), known), rank(released, known)
    assert own.tolist() != mixed.tolist()
    assert sorted(own.tolist()) == sorted(mixed.tolist())
    assert rank(released, known, seed=2).tolist() != mixed.tolist()  # which is up to the mixture alone


def test_where_nothing_is_known_of_others_a_class_is_ranked_by_its_own_features() -> None:
    shop, known = notice(Workshop("fedcbdr", 0, 6).of_classes(2))
    assert torch.equal(rank(FedCBDRConfig(pick="top"), None), rank(FedCBDRConfig(pick="top"), known))
    assert sorted(rank(FedCBDRConfig(), None).tolist()) == sorted(shop.of_classes(2).tolist())


def test_a_client_fills_its_memory_by_what_it_is_told() -> None:
    """Also one that does not train: the ranking is a bystander's business too."""
    shop = Workshop("fedcbdr", 0, 6, pick="top")
    local, context = make_local(), RoundContext(0, catalogue(6), (6,), 0)
    state, role = shop.roles.client.init(), shop.roles.client
    for arrival in (shop.of_classes(2), shop.of_classes(2)[:0]):
        state, _, _ = run_client(role, state, arrival, local, context, shop.model)
    assert state.memory.indices.tolist() == rank(FedCBDRConfig(pick="top"), None).tolist()


def test_bystanders_are_told_in_a_run_and_rank_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial("fedcbdr", scenario=LONGER)
    listener = Listener(made.simulation.engine)
    made.simulation = replace(made.simulation, engine=listener)
    asked: list[tuple[bool, bool]] = []  # whether it trains in this round, whether it was told
    play = made.roles.client.round

    def noting(state: Any, broadcast: Any, order: Any, current: Any, local: Any) -> Any:
        after = play(state, broadcast, order, current, local)
        if len(after[0].memory) > len(state.memory):
            asked.append((order.participate, isinstance(broadcast.extra, InverseGram)))
        return after

    monkeypatch.setattr(made.roles.client, "round", noting)
    made.run()
    assert (False, True) in asked
    assert all(told for _, told in asked)
    assert listener.heard[0].broadcast.extra is None
    assert all(isinstance(heard.broadcast.extra, InverseGram) for heard in listener.heard[1:])


# --- what the server refuses --------------------------------------------------------------------------------------

EYE = torch.eye(SIZE)
NOT_SYMMETRIC, INDEFINITE = EYE.clone(), EYE.clone()
NOT_SYMMETRIC[0, 1] = 0.5
INDEFINITE[0, 1] = INDEFINITE[1, 0] = 1.5
BAD_MOMENTS: list[tuple[Any, Any, str]] = [
    (torch.eye(SIZE - 1), 1.0, "has the shape (15, 15) with weights ()"),
    (EYE, [1.0] * SIZE, "with weights (16,)"),
    (EYE * math.nan, 1.0, "contains NaN, infinity or values above "),
    (EYE * 2 * LARGEST, 1.0, "contains NaN, infinity or values above "),
    (EYE.bool(), 1.0, "should be floats"),
    (EYE, 0.0, "weights that are not believed"),
    (EYE, -1.0, "weights that are not believed"),
    (EYE, 41.0, "weights that are not believed"),  # more than the report's samples
    (NOT_SYMMETRIC, 1.0, "its moments are not symmetric"),
    (INDEFINITE, 1.0, "its moments have negative eigenvalues"),
    (-EYE, 1.0, "its moments have negative eigenvalues"),
]


@pytest.mark.parametrize(("value", "weight", "reason"), BAD_MOMENTS)
def test_moments_that_cannot_be_are_refused(value: Any, weight: Any, reason: str) -> None:
    shop = Workshop("fedcbdr", 0, 3)
    found = shop.objection(shop.report(moments=weighted(value, weight)))
    assert found is not None
    assert reason in found


def test_sound_moments_are_accepted_and_nothing_else_is() -> None:
    shop = Workshop("fedcbdr", 0, 3)
    sound = weighted(EYE, 40.0)
    assert shop.objection(shop.report(moments=sound)) is None
    assert shop.objection(shop.report(moments=sound, bias=weighted([1.0]))) == "it sends bias unasked"
    assert shop.objection(shop.report(bias=weighted([1.0]))) == "it sends bias unasked"
    assert shop.objection(Report(shop.model, 40)) is None
