"""LGA's proxy: how it scores a model, what scales the noise, and what it keeps."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.objectives import catalogue
from support.prototypes import CHEAP, CONTEXT, SETTING, constant, local, model_with, perfect_on, uploads_of
from torch import Tensor, nn

from fcil.core.messages import Message, ModelState, RoundContext, derive_seed, generator, model_digest
from fcil.maths.feature_noise import bounded_noise
from fcil.methods.lga import LARGEST_SPREAD, FeatureJudge, LGAConfig, MeasuredGradient, SpreadProxy, SpreadState
from fcil.methods.proxy_role import PrototypeProxy, ProxyState, share_right
from fcil.methods.teachers import KeptModel
from fcil.testing import MethodContract

SECOND = RoundContext(9, catalogue(6), (4, 6), 0)


class Plane(nn.Module):
    """A network whose features are the pixels, and a linear head for two classes."""

    def __init__(self, slope: Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(slope.shape[0], 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.stack([-slope, slope]))
            self.head.bias.zero_()

    def extract(self, images: Tensor) -> Tensor:
        return images.flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extract(images))
        return logits


def two_classes(width: int = 8) -> tuple[Tensor, Tensor]:
    """Return images of which the first pixel tells the class by far, and the second one, in half of them, only just."""
    draw = generator(3)
    labels = torch.arange(2).repeat(20)
    images = torch.randn(40, width, generator=draw)
    side = 2.0 * labels - 1
    images[:, 0] = side * 9 + images[:, 0]
    images[:, 1] = side * torch.tensor([0.01, 2.0]).repeat_interleave(20)
    return images, labels


def judged(slope: Tensor, radius: float | None, **fields: Any) -> float:
    images, labels = two_classes(len(slope))
    with torch.inference_mode():
        return FeatureJudge(LGAConfig(**fields), radius)(Plane(slope), images, labels, 5)  # type: ignore[arg-type]


def test_of_two_models_that_are_right_the_one_with_more_room_scores_higher() -> None:
    images, labels = two_classes()
    clear, close = torch.eye(8)[0], torch.eye(8)[1]
    with torch.no_grad():
        plain = [share_right(Plane(slope), images, labels, 5) for slope in (clear, close)]  # type: ignore[arg-type]
    assert plain == [1.0, 1.0], "GLFC's proxy cannot tell them apart"
    assert judged(clear, 0.3) == 1.0
    assert judged(close, 0.3) < 0.9
    assert judged(close, 0.0) == 1.0


@pytest.mark.parametrize("kind", ["deviation", "square"])
@pytest.mark.parametrize("radius", [0.2, None])
def test_the_score_is_that_of_a_slow_computation(kind: str, radius: float | None) -> None:
    images, labels = two_classes()
    covariances = [np.cov(images[labels == label].double().numpy().T) for label in (0, 1)]
    wanted = radius or math.sqrt(np.mean([np.trace(covariance) / 8 for covariance in covariances]))
    rows, limits = [], []
    for label in labels.repeat(3).tolist():
        variance = np.diag(covariances[label])
        rows.append(wanted * (np.sqrt(variance) if kind == "deviation" else variance**2))
        limits.append(0.1 * (variance if kind == "deviation" else variance**2).sum())
    draw = generator(derive_seed(5, "feature noise"))
    deviation = torch.tensor(np.array(rows), dtype=torch.float32)
    noise = bounded_noise(deviation, torch.tensor(limits, dtype=torch.float32), draw)
    right = [
        bool((feature + error)[1] > 0) == bool(label)
        for feature, error, label in zip(images.repeat(3, 1), noise, labels.repeat(3), strict=True)
    ]
    found = judged(torch.eye(8)[1], radius, feature_noise=kind, noise_draws=3)
    assert found == pytest.approx(np.mean(right), abs=1.5 / 120)  # a draw next to the boundary may fall either way
    assert found < 1


def test_probes_without_spread_are_scored_as_by_glfc() -> None:
    probes, machine = perfect_on([0, 1, 2, 3]), local().machine
    for seed in range(3):
        net = machine.net(model_with(4, seed))
        with torch.inference_mode():
            plain = share_right(net, probes.images, probes.labels, 5)
            assert FeatureJudge(LGAConfig(), 0.15)(net, probes.images, probes.labels, 5) == plain


def proxy(**fields: Any) -> SpreadProxy:
    return SpreadProxy(LGAConfig(**{**CHEAP, "rebuild_evaluations": 1, **fields}), SETTING)


def advance(
    role: SpreadProxy, state: SpreadState, context: RoundContext, uploads: list[Message], averaged: ModelState
) -> SpreadState:
    return role.round(state, uploads, averaged, averaged, context, seed=5, machine=local().machine)


def test_the_proxy_rebuilds_scores_and_offers_as_glfc_s_does() -> None:
    role = proxy()
    state = advance(role, role.init(), CONTEXT, uploads_of((0, 1, 3), method="lga"), constant(4, 1))
    assert role.measures(state)["probes"] == 3
    assert role.measures(state)["score"] == pytest.approx(1 / 3)
    rebuilt = role.rebuilt(state)
    assert rebuilt is not None
    assert sorted(rebuilt[1].tolist()) == [0, 1, 3]
    choice = role.choice(state, SECOND)
    assert list(choice.models) == [model_digest(constant(4, 1))]


def test_while_a_block_is_young_every_model_scores_zero_and_the_latest_is_kept() -> None:
    role, state = proxy(score_after=2), SpreadState(ProxyState(blocks=(4,), probes=perfect_on([0])))
    kept = []
    for number, output in enumerate((0, 1, 0, 1)):  # only the first output is right
        context = RoundContext(number, catalogue(4), (4,), number)
        state = advance(role, state, context, [], constant(4, output))
        assert state.kept.current is not None
        kept.append((state.kept.current.digest, state.kept.score))
    right, wrong = (model_digest(constant(4, output)) for output in (0, 1))
    assert kept == [(right, 0.0), (wrong, 0.0), (right, 1.0), (right, 1.0)]


def radius_of(role: SpreadProxy, state: SpreadState, context: RoundContext) -> float | None:
    judge = role._judge(state, context)
    assert isinstance(judge, FeatureJudge)
    return judge.radius


def test_participants_set_the_radius_in_the_first_block() -> None:
    role = proxy(radius="participants")
    first, late = uploads_of((0, 1, 2), method="lga", radius="participants"), uploads_of((3,), method="lga")
    state = advance(role, role.init(), CONTEXT, [*first[:2], *late], model_with(4))
    assert radius_of(role, state, CONTEXT) == 0.15, "until the block is over"
    state = advance(role, state, CONTEXT, first[2:], model_with(4))
    wanted = math.sqrt(np.mean([upload.spread for upload in first]))
    assert radius_of(role, state, SECOND) == pytest.approx(wanted)
    state = advance(role, state, SECOND, [MeasuredGradient(late[0].gradient, 99.0)], model_with(6))
    assert radius_of(role, state, SECOND) == pytest.approx(wanted), "later blocks do not change it"
    assert radius_of(proxy(radius="participants"), SpreadState(), SECOND) == 0.15, "nobody uploaded any"
    assert radius_of(proxy(), state, SECOND) is None


@pytest.mark.parametrize("spread", [-1e-9, math.nan, math.inf, -math.inf, 2 * LARGEST_SPREAD])
def test_a_spread_that_cannot_be_is_not_counted(spread: float) -> None:
    role = proxy(radius="participants")
    good = MeasuredGradient(uploads_of((0,))[0].gradient, 0.25)
    state = advance(role, role.init(), CONTEXT, [good, MeasuredGradient(good.gradient, spread)], model_with(4))
    assert radius_of(role, state, SECOND) == 0.5


def test_the_released_best_score_starts_afresh_in_the_second_block_alone() -> None:
    role = PrototypeProxy(LGAConfig(best="once"), SETTING)
    best = KeptModel("best", constant(4, 0))
    state = ProxyState(blocks=(4,), probes=perfect_on([0]), current=best, score=0.9)
    second = role._roll(state, SECOND)
    assert (second.last, second.current, second.score) == (best, None, -1.0)
    better = KeptModel("better", constant(6, 0))
    scored = ProxyState(blocks=(4, 6), probes=perfect_on([4]), current=better, last=best, score=0.8)
    third = role._roll(scored, RoundContext(12, catalogue(8), (4, 6, 8), 0))
    assert (third.last, third.current, third.score) == (better, better, 0.8)


class Released(MethodContract):
    """What the released edition sends and keeps in addition, in runs in which alarms are raised and models scored."""

    method = "lga"
    variant: ClassVar[dict[str, Any]] = {
        "radius": "participants",
        "grouping": "cumulative",
        "feature_noise": "square",
        "best": "once",
    }


def test_what_participants_upload_is_counted_and_survives_a_cut() -> None:
    Released().test_counts_the_bytes_of_what_is_sent()
    Released().test_is_cut_after_every_round_and_resumed_to_the_same_bits("fcil", "start")
    state = Released().recorded().state.proxy
    assert isinstance(state, SpreadState)
    assert state.count > 0
    assert state.total > 0
