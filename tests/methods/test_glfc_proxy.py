"""GLFC's proxy server: what it rebuilds, and which model it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.objectives import catalogue
from support.prototypes import CONTEXT, SOURCE, advance, constant, local, model_with, perfect_on, proxy, uploads_of

from fcil.core.messages import RoundContext, Teacher, Teachers, model_digest
from fcil.maths.inversion import wrap_to_pixels
from fcil.methods.base import Choice
from fcil.methods.prototypes import PrototypeGradient
from fcil.methods.proxy_role import ProxyState
from fcil.methods.teachers import KeptModel


def test_the_proxy_rebuilds_what_was_uploaded_with_its_labels() -> None:
    uploads = uploads_of((0, 1, 3), perturb_steps=0)
    state = advance(proxy(), ProxyState(), CONTEXT, uploads, model_with(4, seed=2))
    assert state.probes is not None
    assert sorted(state.probes.labels.tolist()) == [0, 1, 3]
    net = local().machine.net(model_with(4))
    for image, label in zip(state.probes.images, state.probes.labels.tolist(), strict=True):
        members = SOURCE.train.images[SOURCE.train.labels == label].float() / 255
        with torch.no_grad():
            features = net.extract(members)
        original = members[(features - features.mean(0)).norm(dim=1).argmin()]
        assert -10 * torch.log10((image - original).square().mean()) > 25  # dB


def test_the_pool_is_shuffled_or_grouped_by_label() -> None:
    uploads = uploads_of((0, 1, 2, 3)) * 3
    labels = {}
    for pool in ("shuffled", "by-label"):
        state = advance(proxy(pool=pool, rebuild_evaluations=1), ProxyState(), CONTEXT, uploads, model_with(4))
        assert state.probes is not None
        labels[pool] = state.probes.labels.tolist()
    assert labels["by-label"] == sorted(labels["by-label"])
    assert labels["shuffled"] not in (labels["by-label"], [0, 1, 2, 3] * 3)  # nor in the order of the senders
    assert sorted(labels["shuffled"]) == labels["by-label"]


def test_unsound_gradients_are_left_out() -> None:
    good = uploads_of((0, 1))
    names = list(good[0].gradient)
    broken = PrototypeGradient({**good[0].gradient, names[0]: good[0].gradient[names[0]] * float("nan")})
    short = PrototypeGradient({names[0]: good[0].gradient[names[0]]})
    state = advance(proxy(rebuild_evaluations=1), ProxyState(), CONTEXT, [broken, short, good[1]], model_with(4))
    assert state.probes is not None
    assert state.probes.labels.tolist() == [1]


def test_a_gradient_too_large_to_be_matched_does_not_become_a_probe() -> None:
    good, spare = uploads_of((0, 1))
    huge = PrototypeGradient({name: torch.full_like(value, -1e25) for name, value in spare.gradient.items()})
    role = proxy(rebuild_evaluations=1)
    state = advance(role, ProxyState(), CONTEXT, [good, huge], model_with(4))
    assert state.probes is not None
    assert state.probes.labels.tolist() == [0]
    assert all(np.isfinite(value) for value in role.measures(state).values())
    assert advance(role, ProxyState(), CONTEXT, [huge], model_with(4)).probes is None


def test_a_model_without_outputs_is_never_kept() -> None:
    nothing = RoundContext(0, (), (), 0)
    assert proxy().round(ProxyState(), [], model_with(0), model_with(0), nothing, 0, local().machine) == ProxyState()


def test_the_best_model_on_the_probes_is_kept_and_ties_go_to_the_later() -> None:
    role, machine = proxy(), local().machine
    state = ProxyState(blocks=(4,), probes=perfect_on([0, 0, 1]))
    scores = []
    kept = []
    variants = [
        constant(4, 1),
        constant(4, 0),
        constant(4, 3),
        {**constant(4, 0), "head.bias": constant(4, 0)["head.bias"] * 2},
    ]
    for model in variants:
        state = role._consider(state, model, 0, machine)
        scores.append(round(state.score, 3))
        assert state.current is not None
        kept.append(state.current.digest)
    assert scores == [0.333, 0.667, 0.667, 0.667]
    assert kept == [model_digest(variants[index]) for index in (0, 1, 1, 3)]


def test_both_the_sent_and_the_averaged_model_are_considered() -> None:
    better, worse = constant(4, 0), constant(4, 1)
    before = ProxyState(blocks=(4,), probes=perfect_on([0]))
    for sent, averaged in ((better, worse), (worse, better)):
        state = proxy().round(before, [], sent, averaged, CONTEXT, seed=5, machine=local().machine)
        assert state.current is not None
        assert (state.current.digest, state.score) == (model_digest(better), 1.0)


def test_without_probes_the_latest_model_is_kept() -> None:
    later = constant(4, 2)
    state = advance(proxy(), ProxyState(), CONTEXT, [], later)
    assert state.probes is None
    assert state.current is not None
    assert state.current.digest == model_digest(later)


def test_a_new_block_rolls_the_best_models_and_starts_afresh() -> None:
    best, older = KeptModel("best", constant(4, 0)), KeptModel("older", constant(2, 0))
    before = ProxyState(blocks=(2, 4), probes=perfect_on([0]), current=best, last=older, score=1.0)
    context = RoundContext(9, catalogue(6), (2, 4, 6), 0)
    state = advance(proxy(), before, context, [], constant(6, 1))
    assert state.last == best
    assert state.probes is None
    assert state.current is not None
    assert state.current.digest == model_digest(constant(6, 1))
    stale = advance(proxy(best="forever"), before, context, [], constant(6, 1))
    assert stale.score == 1.0
    assert stale.current == best


def test_gradients_of_older_classes_do_not_become_probes() -> None:
    context = RoundContext(9, catalogue(4), (2, 4), 1)
    uploads = uploads_of((0, 1, 3), context=context)
    state = advance(proxy(rebuild_evaluations=1), ProxyState(blocks=(2, 4)), context, uploads, model_with(4))
    assert state.probes is not None
    assert state.probes.labels.tolist() == [3]
    only_old = advance(proxy(rebuild_evaluations=1), ProxyState(blocks=(2, 4)), context, uploads[:2], model_with(4))
    assert only_old.probes is None


def test_late_gradients_join_the_probes_and_the_kept_model_is_scored_again() -> None:
    first = constant(4, 0)
    state = ProxyState(blocks=(4,), probes=perfect_on([0]), current=KeptModel(model_digest(first), first), score=1.0)
    role, worst = proxy(rebuild_evaluations=1), constant(4, 3)
    state = role.round(state, uploads_of((1, 2)), worst, worst, CONTEXT, seed=5, machine=local().machine)
    assert state.probes is not None
    assert sorted(state.probes.labels.tolist()) == [0, 1, 2]
    assert state.score == pytest.approx(1 / 3)
    assert state.current is not None
    assert state.current.digest == model_digest(first)


def test_keeping_the_last_iterates_multiplies_the_probes_as_pixels() -> None:
    role = proxy(rebuild_keep=3, rebuild_evaluations=80, rebuild_restarts=0)
    state = advance(role, ProxyState(), CONTEXT, uploads_of((0, 1)), model_with(4))
    assert state.probes is not None
    assert len(state.probes.labels) == 6
    pixels = state.probes.images * 255
    assert torch.allclose(pixels, pixels.round(), atol=1e-3)
    assert torch.allclose(wrap_to_pixels(state.probes.images + 1e-4), state.probes.images, atol=1e-4)


def test_augmented_scoring_drops_the_last_incomplete_batch() -> None:
    role, machine = proxy(scoring="augmented"), local().machine
    probes = perfect_on([0] * 64 + [1] * 32)
    assert role._score(constant(4, 0), probes, 0, machine) == 1.0
    assert proxy()._score(constant(4, 0), probes, 0, machine) == pytest.approx(64 / 96)


def test_teachers_travel_from_the_second_block_on() -> None:
    role, best = proxy(), KeptModel("c", constant(4, 0))
    state = ProxyState(blocks=(4,), current=best, last=None)
    assert role.choice(state, CONTEXT) == Choice()
    choice = role.choice(state, RoundContext(4, catalogue(6), (4, 6), 0))
    assert choice.teachers == Teachers(current=Teacher("c", 4))
    assert list(choice.models) == ["c"]
    both = role.choice(replace(state, last=KeptModel("l", constant(2, 0))), RoundContext(4, catalogue(6), (4, 6), 0))
    assert both.teachers.last == Teacher("l", 2)
    assert list(both.models) == ["c", "l"]
