from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fcil.experiment.config import load_config
from fcil.methods import methods
from fcil.models.optimiser import COSINE, GENTLE, NATIVE, PAPER, Adam, Clock, Descent, Optimiser, limit_norm, milestones
from fcil.models.trainer import TrainConfig


def test_the_published_learning_rate_falls_for_good() -> None:
    rates = [rate for number in range(10) for rate in PAPER.rates(20, number)]
    assert rates == pytest.approx([2.0] * 100 + [0.4] * 50 + [0.08] * 30 + [0.016] * 20)
    assert PAPER.rates(20, 50) == pytest.approx([0.016] * 20)


def test_the_released_codes_learning_rate_restarts_each_round() -> None:
    rounds = [PAPER.rates(20, number, clock="round") for number in range(10)]
    expected = [[2.0] * 20] * 5 + [[0.4] * 20, [2.0] * 20, [2.0] * 10 + [0.08] * 10, [2.0] * 20, [0.016] * 20]
    for found, wanted in zip(rounds, expected, strict=True):
        assert found == pytest.approx(wanted)


def test_the_gentle_learning_rate_is_a_tenth_of_the_published_one() -> None:
    assert GENTLE.rates(200, 0) == pytest.approx([rate / 10 for rate in PAPER.rates(200, 0)])
    assert (GENTLE.momentum, GENTLE.weight_decay) == (PAPER.momentum, PAPER.weight_decay)


def test_mosaics_learning_rate_falls_to_almost_nothing_over_a_block_of_any_length() -> None:
    for epochs in (8, 20):
        rates = COSINE.over(epochs).rates(epochs, 0)
        assert rates == pytest.approx([0.025 * (1 + math.cos(math.pi * epoch / epochs)) for epoch in range(epochs)])
    assert (COSINE.momentum, COSINE.weight_decay) == (0.9, 5e-4)


def test_the_reduced_cifar100_trains_gently_unless_a_method_says_otherwise() -> None:
    train, gentle = load_config("cifar100-lite").train, GENTLE.over(20)
    assert train.optimiser().rates(train.epochs * 5, 0) == gentle.rates(20, 0)
    assert train.weight_decay == gentle.weight_decay


@pytest.mark.parametrize("clock", ["growth", "round"])
def test_without_milestones_the_learning_rate_stays(clock: Clock) -> None:
    assert Optimiser(0.5).rates(3, 40, clock=clock) == [0.5, 0.5, 0.5]


def test_milestones_may_be_given_in_any_order() -> None:
    optimiser = Optimiser(1.0, milestones=milestones((4, 10), (2, 2)))
    assert optimiser.rates(6, 0) == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.1, 0.1])


def test_the_settings_of_a_run_describe_its_optimiser() -> None:
    assert TrainConfig().optimiser() == Optimiser(2.0, 0.0, 1e-5, PAPER.milestones)


@pytest.mark.parametrize("epochs", [20, 25, 200, 1000])
def test_a_schedule_falls_at_the_same_parts_of_blocks_of_any_length(epochs: int) -> None:
    rates = PAPER.over(epochs).rates(epochs, 0)
    parts = [rates.count(rate) / epochs for rate in (2.0, 0.4, 0.08, 0.016)]
    assert parts == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=1 / epochs)


def test_the_settings_of_a_run_are_not_scaled() -> None:
    optimiser = TrainConfig().optimiser()
    assert optimiser.over(20) == optimiser


def test_a_cosine_runs_from_the_learning_rate_to_almost_nothing_and_stays() -> None:
    optimiser = Optimiser(0.1, epochs=160, cosine=True).over(8)
    rates = [rate for number in range(2) for rate in optimiser.rates(4, number)]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * epoch / 8)) for epoch in range(8)])
    assert optimiser.rates(4, 2) == pytest.approx([rates[-1]] * 4)


def test_a_rate_by_block_is_divided_by_the_number_of_blocks() -> None:
    optimiser = Optimiser(0.6, by_block=True)
    assert [optimiser.rates(1, 0, blocks) for blocks in (1, 2, 3)] == [[0.6], [0.3], pytest.approx([0.2])]


def test_every_method_has_the_optimiser_of_its_source() -> None:
    natives = {name: method.config.native for name, method in methods().items()}
    assert natives["glfc"] == natives["glfc-wo-prs"] == PAPER
    assert natives["lwf"] == NATIVE
    assert natives["mosaic"] == COSINE
    found = {name: (o.learning_rate, o.momentum, o.weight_decay, o.epochs) for name, o in natives.items()}
    assert found["icarl"] == (2.0, 0.9, 2e-5, 70)
    assert found["bic"] == (0.1, 0.9, 2e-4, 250)
    assert found["podnet"] == (0.1, 0.9, 5e-4, 160)
    assert found["dde"] == (0.1, 0.9, 5e-4, 160)
    assert found["geodl"] == (0.1, 0.9, 1e-4, 90)
    assert found["ssil"] == (0.1, 0.9, 1e-4, 100)
    assert found["fedcbdr"] == (0.01, 0.0, 1e-5, None)
    assert natives["target"] == Optimiser(0.01, 0.9, 5e-4)  # constant
    assert found["mfcl"] == (0.1, 0.0, 1e-5, 1000)
    assert found["lander"] == (0.04, 0.9, 5e-4, 200)
    assert natives["podnet"].cosine
    assert natives["podnet"].clamp == 5.0
    assert natives["ssil"].by_block


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_steps_are_those_of_torch_to_the_bit(momentum: float, weight_decay: float) -> None:
    def parameters() -> list[nn.Parameter]:
        draw = torch.Generator().manual_seed(3)
        return [nn.Parameter(torch.randn(5, 7, generator=draw)) for _ in range(3)]

    ours, theirs = parameters(), parameters()
    descent = Descent(ours, momentum, weight_decay)
    judge = torch.optim.SGD(theirs, 1.0, momentum, weight_decay=weight_decay)
    draw = torch.Generator().manual_seed(4)
    for number, rate in enumerate((0.5, 0.5, 0.1, 0.02)):
        descent.zero_grad()
        judge.zero_grad()
        for mine, other in list(zip(ours, theirs, strict=True))[number == 1 :]:  # once, one has no gradient
            mine.grad = torch.randn(5, 7, generator=draw)
            other.grad = mine.grad.clone()
        descent.step(rate)
        judge.param_groups[0]["lr"] = rate
        judge.step()
        assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("length", [0.1, 1.0, 1e30, math.nan])
def test_gradients_are_limited_as_torch_does_to_the_bit(length: float) -> None:
    def parameters() -> list[nn.Parameter]:
        draw = torch.Generator().manual_seed(3)
        found = [nn.Parameter(torch.zeros(5, 7)) for _ in range(3)]
        for one in found[1:]:
            one.grad = length * torch.randn(5, 7, generator=draw)
        return found

    ours, theirs = parameters(), parameters()
    limit_norm(ours, 5.0)
    torch.nn.utils.clip_grad_norm_(theirs, 5.0)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad.nan_to_num(7.0), other.grad.nan_to_num(7.0))
    limit_norm(ours[:1], 5.0)  # there is nothing to limit


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.999)])
def test_steps_of_adam_are_those_of_torch_to_the_bit(betas: tuple[float, float]) -> None:
    draw = torch.Generator().manual_seed(3)
    ours = [nn.Parameter(torch.randn(5, 7, generator=draw)) for _ in range(2)]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    adam, judge = Adam(ours, betas), torch.optim.Adam(theirs, 1.0, betas, foreach=False)
    for rate in (0.5, 0.5, 0.1, 0.02, 0.1):
        adam.zero_grad()
        assert all(parameter.grad is None for parameter in ours)
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(5, 7, generator=draw)
            other.grad = mine.grad.clone()
        adam.step(rate)
        judge.param_groups[0]["lr"] = rate
        judge.step()
        assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
