from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.blobs import blobs, trial
from torch import Tensor, nn

from fcil.local import Local, TrainConfig
from fcil.maths.inversion import wrap_to_pixels
from fcil.maths.prototypes import encoder_gradients
from fcil.methods import Setting
from fcil.methods.glfc import (
    GLFC,
    GLFCConfig,
    KeptModel,
    Probes,
    PrototypeGradient,
    Proxy,
    ProxyState,
    shared_encoder,
    teacher_by_alarm,
)
from fcil.methods.lesson import Problem
from fcil.methods.server import Teachers
from fcil.models import ModelConfig, grow, initial_state
from fcil.wire import Broadcast, ModelState, Moment, model_digest

GOLDEN = np.load(__import__("pathlib").Path(__file__).parents[1] / "golden" / "a_b_loss.npz")
SOURCE = blobs(per_class=8)
MODEL = ModelConfig(width=2)
SETTING = Setting(10, SOURCE.image_shape, "uniform", secret=11)
MOMENT = Moment(0, tuple(range(4)), (4,), 0)
CHEAP = {"perturb_steps": 3, "rebuild_evaluations": 300, "rebuild_restarts": 1}


def local() -> Local:
    return Local(SOURCE, MODEL, TrainConfig(epochs=1, batch_size=8, learning_rate=0.1))


def model_with(classes: int, seed: int = 0) -> ModelState:
    return grow(initial_state(MODEL, 1, seed), classes, 1)


class Fixed(nn.Module):
    """A network that answers with given logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def golden_loss(case: str, **fields: Any) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with the released code's behaviour on a golden case."""
    logits = torch.tensor(GOLDEN["logits"], requires_grad=True)
    labels = torch.tensor(GOLDEN[f"{case}__labels"])
    teacher = Fixed(torch.tensor(GOLDEN["old_logits"])) if case.endswith("_old") else None
    learned = torch.tensor(GOLDEN[f"{case}__learned"])
    problem = Problem(
        net=Fixed(logits),  # type: ignore[arg-type]
        teacher=teacher,  # type: ignore[arg-type]
        targets=labels,
        old=torch.isin(labels, learned),
        has_history=len(learned) > 0,
        moment=MOMENT,
    )
    config = GLFCConfig(**{**GLFCConfig.presets["official"], **fields})
    loss = GLFC(config, problem, local(), SETTING).loss(torch.empty(24), torch.arange(24))
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


@pytest.mark.parametrize(
    "case", ["nolearned", "mixed", "dup_learned", "mixed_old", "nolearned_old", "onlynew_old", "onlyold_old"]
)
def test_the_official_loss_and_its_gradient_are_those_of_the_released_code(case: str) -> None:
    loss, gradient = golden_loss(case)
    assert loss.item() == pytest.approx(float(GOLDEN[f"{case}__loss"]), rel=1e-6)
    expected = GOLDEN[f"{case}__grad"]
    assert np.abs(gradient.numpy() - expected).max() <= 1e-6 * np.abs(expected).max()


def problem_with(teacher: bool, old: bool = True) -> Problem:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 5, generator=draw)
    labels = torch.tensor([0, 1, 2, 3, 4, 0, 3, 4])
    taught = Fixed(torch.randn(8, 3, generator=draw)) if teacher else None
    mask = labels < 3 if old else torch.zeros(8, dtype=torch.bool)
    return Problem(
        net=Fixed(logits),  # type: ignore[arg-type]
        teacher=taught,  # type: ignore[arg-type]
        targets=labels,
        old=mask,
        has_history=old,
        moment=MOMENT,
    )


def loss_with(problem: Problem, **fields: Any) -> float:
    return float(GLFC(GLFCConfig(**fields), problem, local(), SETTING).loss(torch.empty(8), torch.arange(8)))


def by_hand(problem: Problem) -> dict[str, float]:
    """Return every term in plain numpy."""
    logits = problem.net.logits.numpy().astype(np.float64)  # type: ignore[union-attr]
    labels = problem.targets.numpy()
    p = 1 / (1 + np.exp(-logits))
    hot = np.eye(5)[labels]

    def bce(target: np.ndarray, columns: int = 5) -> np.ndarray:
        q = p[:, :columns]
        return -(target * np.log(q) + (1 - target) * np.log(1 - q)).mean(1)

    g = np.abs(p[np.arange(8), labels] - 1)
    old = problem.old.numpy()
    mean = np.where(old, g[old].mean() if old.any() else 1.0, g[~old].mean())
    found = {"ce": bce(hot).mean(), "gc": (g / mean * bce(hot)).mean()}
    if problem.teacher is not None:
        soft = 1 / (1 + np.exp(-problem.teacher.logits.numpy().astype(np.float64)))  # type: ignore[union-attr]
        target = np.concatenate([soft, hot[:, 3:]], 1)
        y = target.clip(1e-4, 1 - 1e-4)
        found["rd"] = bce(target).mean()
        found["kl"] = (p * np.log(p / y) + (1 - p) * np.log((1 - p) / (1 - y))).sum(1).mean()
        found["icarl"] = bce(soft, 3).mean()
    return found


def test_without_a_teacher_the_loss_is_the_compensated_one_alone() -> None:
    problem = problem_with(teacher=False)
    assert loss_with(problem) == pytest.approx(by_hand(problem)["gc"], rel=1e-6)


def test_with_a_teacher_both_terms_count_half() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    assert loss_with(problem) == pytest.approx(0.5 * terms["gc"] + 0.5 * terms["rd"], rel=1e-6)
    assert loss_with(problem, divergence="kl") == pytest.approx(0.5 * terms["gc"] + 0.5 * terms["kl"], rel=1e-5)


def test_each_term_has_a_weight_of_its_own() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    found = loss_with(problem, compensation_weight=0.3, relation_weight=0.9)
    assert found == pytest.approx(0.3 * terms["gc"] + 0.9 * terms["rd"], rel=1e-6)


def test_without_compensation_only_the_weights_go() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    assert loss_with(problem, compensation=False) == pytest.approx(0.5 * terms["ce"] + 0.5 * terms["rd"], rel=1e-6)


def test_without_relation_the_old_outputs_alone_are_distilled() -> None:
    problem = problem_with(teacher=True)
    terms = by_hand(problem)
    assert loss_with(problem, relation=False) == pytest.approx(0.5 * terms["gc"] + 0.5 * terms["icarl"], rel=1e-6)


def test_weights_without_a_history_follow_the_field() -> None:
    problem = problem_with(teacher=False, old=False)
    terms = by_hand(problem)
    assert loss_with(problem) == pytest.approx(terms["gc"], rel=1e-6)
    assert loss_with(problem, compensation_without_history="one") == pytest.approx(terms["ce"], rel=1e-6)


def test_without_the_proxy_the_server_teaches_and_nothing_is_uploaded() -> None:
    full, ablated = trial("glfc"), trial("glfc", fields={"proxy": False})
    assert full.roles.proxy is not None
    assert ablated.roles.proxy is None
    moment = Moment(2, (0, 1, 2, 3), (2, 4), 0)
    state, _ = full.play()
    assert full.roles.server.extra(state.server, moment) == (None, {})
    state, records = ablated.play()
    teachers, _ = ablated.roles.server.extra(state.server, moment)
    assert isinstance(teachers, Teachers)
    assert all(record.proxy == {} for record in records)


def test_the_paper_chooses_its_teacher_by_the_alarm() -> None:
    models = {"a": model_with(2), "b": model_with(1)}
    sent = Broadcast(Moment(3, (0, 1), (1, 2), 0), "a", models, None, Teachers(current="a", last="b"))
    assert teacher_by_alarm(sent, alarm=True) == "a"
    assert teacher_by_alarm(sent, alarm=False) == "b"
    assert teacher_by_alarm(replace(sent, proxy=None), alarm=True) is None


def uploads_of(classes: tuple[int, ...], alarm: bool = True, moment: Moment = MOMENT, **fields: Any) -> list[Any]:
    samples = torch.isin(SOURCE.train.labels, torch.tensor(classes)).nonzero().squeeze(1)
    machine = local()
    problem = Problem(
        net=machine.net(model_with(moment.classes)),
        teacher=None,
        targets=machine.labels(samples),
        old=torch.zeros(len(samples), dtype=torch.bool),
        has_history=False,
        moment=moment,
        latest=samples,
        new_classes=classes if alarm else (),
        seed=3,
    )
    return list(GLFC(GLFCConfig(**{**CHEAP, **fields}), problem, machine, SETTING).uploads())


def test_one_gradient_travels_for_each_new_class_and_only_after_an_alarm() -> None:
    assert len(uploads_of((0, 2, 3))) == 3
    assert uploads_of((0, 2, 3), alarm=False) == []


def test_an_uploaded_gradient_is_that_of_the_prototype_when_nothing_is_perturbed() -> None:
    (upload,) = uploads_of((2,), perturb_steps=0)
    machine = local()
    samples = (SOURCE.train.labels == 2).nonzero().squeeze(1)
    net = machine.net(model_with(4))
    with torch.no_grad():
        features = net.extract(machine.images(samples))
    nearest = samples[(features - features.mean(0)).norm(dim=1).argmin()]
    encoder = shared_encoder(SETTING, 4, torch.device("cpu"))
    expected = encoder_gradients(encoder, machine.images(nearest[None]), torch.tensor([2]))
    for name, value in upload.gradient.items():
        assert torch.allclose(value, expected[name][0], rtol=1e-5, atol=1e-7)


def test_what_travels_is_the_gradient_of_the_perturbed_prototype() -> None:
    plain, perturbed = (uploads_of((2,), perturb_steps=steps)[0].gradient["fc.0.weight"] for steps in (0, 3))
    assert not torch.allclose(plain, perturbed)


def test_the_encoder_follows_from_the_secret() -> None:
    weights = [
        shared_encoder(replace(SETTING, secret=secret), 4, torch.device("cpu")).state_dict() for secret in (11, 11, 12)
    ]
    assert model_digest(weights[0]) == model_digest(weights[1]) != model_digest(weights[2])


def proxy(**fields: Any) -> Proxy:
    return Proxy(GLFCConfig(**{**CHEAP, **fields}), SETTING)


def advance(role: Proxy, state: ProxyState, moment: Moment, uploads: list[Any], averaged: ModelState) -> ProxyState:
    return role.round(state, uploads, model_with(moment.classes), averaged, moment, seed=5, local=local())


def test_the_proxy_rebuilds_what_was_uploaded_with_its_labels() -> None:
    uploads = uploads_of((0, 1, 3), perturb_steps=0)
    state = advance(proxy(), ProxyState(), MOMENT, uploads, model_with(4, seed=2))
    assert state.probes is not None
    assert sorted(state.probes.labels.tolist()) == [0, 1, 3]
    net = local().net(model_with(4))
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
        state = advance(proxy(pool=pool, rebuild_evaluations=1), ProxyState(), MOMENT, uploads, model_with(4))
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
    state = advance(proxy(rebuild_evaluations=1), ProxyState(), MOMENT, [broken, short, good[1]], model_with(4))
    assert state.probes is not None
    assert state.probes.labels.tolist() == [1]


def test_a_gradient_too_large_to_be_matched_does_not_become_a_probe() -> None:
    good, spare = uploads_of((0, 1))
    huge = PrototypeGradient({name: torch.full_like(value, -1e25) for name, value in spare.gradient.items()})
    role = proxy(rebuild_evaluations=1)
    state = advance(role, ProxyState(), MOMENT, [good, huge], model_with(4))
    assert state.probes is not None
    assert state.probes.labels.tolist() == [0]
    assert all(np.isfinite(value) for value in role.measures(state).values())
    assert advance(role, ProxyState(), MOMENT, [huge], model_with(4)).probes is None


def test_a_model_without_outputs_is_never_kept() -> None:
    nothing = Moment(0, (), (), 0)
    assert proxy().round(ProxyState(), [], model_with(0), model_with(0), nothing, 0, local()) == ProxyState()


def perfect_on(labels: list[int]) -> Probes:
    """Return probes, images of the blobs, with these labels."""
    images = torch.stack([SOURCE.test.images[SOURCE.test.labels == label][0].float() / 255 for label in labels])
    return Probes(images, torch.tensor(labels), torch.zeros(len(labels)))


def constant(classes: int, output: int) -> ModelState:
    """Return a model that always answers with one output."""
    model = model_with(classes)
    bias = torch.full((classes,), -50.0)
    bias[output] = 50.0
    return {**model, "head.weight": torch.zeros_like(model["head.weight"]), "head.bias": bias}


def test_the_best_model_on_the_probes_is_kept_and_ties_go_to_the_later() -> None:
    role, machine = proxy(), local()
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
        state = proxy().round(before, [], sent, averaged, MOMENT, seed=5, local=local())
        assert state.current is not None
        assert (state.current.digest, state.score) == (model_digest(better), 1.0)


def test_without_probes_the_latest_model_is_kept() -> None:
    later = constant(4, 2)
    state = advance(proxy(), ProxyState(), MOMENT, [], later)
    assert state.probes is None
    assert state.current is not None
    assert state.current.digest == model_digest(later)


def test_a_new_block_rolls_the_best_models_and_starts_afresh() -> None:
    best, older = KeptModel("best", constant(4, 0)), KeptModel("older", constant(2, 0))
    before = ProxyState(blocks=(2, 4), probes=perfect_on([0]), current=best, last=older, score=1.0)
    moment = Moment(9, tuple(range(6)), (2, 4, 6), 0)
    state = advance(proxy(), before, moment, [], constant(6, 1))
    assert state.last == best
    assert state.probes is None
    assert state.current is not None
    assert state.current.digest == model_digest(constant(6, 1))
    stale = advance(proxy(best="forever"), before, moment, [], constant(6, 1))
    assert stale.score == 1.0
    assert stale.current == best


def test_gradients_of_older_classes_do_not_become_probes() -> None:
    moment = Moment(9, tuple(range(4)), (2, 4), 1)
    uploads = uploads_of((0, 1, 3), moment=moment)
    state = advance(proxy(rebuild_evaluations=1), ProxyState(blocks=(2, 4)), moment, uploads, model_with(4))
    assert state.probes is not None
    assert state.probes.labels.tolist() == [3]
    only_old = advance(proxy(rebuild_evaluations=1), ProxyState(blocks=(2, 4)), moment, uploads[:2], model_with(4))
    assert only_old.probes is None


def test_late_gradients_join_the_probes_and_the_kept_model_is_scored_again() -> None:
    first = constant(4, 0)
    state = ProxyState(blocks=(4,), probes=perfect_on([0]), current=KeptModel(model_digest(first), first), score=1.0)
    role, worst = proxy(rebuild_evaluations=1), constant(4, 3)
    state = role.round(state, uploads_of((1, 2)), worst, worst, MOMENT, seed=5, local=local())
    assert state.probes is not None
    assert sorted(state.probes.labels.tolist()) == [0, 1, 2]
    assert state.score == pytest.approx(1 / 3)
    assert state.current is not None
    assert state.current.digest == model_digest(first)


def test_keeping_the_last_iterates_multiplies_the_probes_as_pixels() -> None:
    role = proxy(rebuild_keep=3, rebuild_evaluations=80, rebuild_restarts=0)
    state = advance(role, ProxyState(), MOMENT, uploads_of((0, 1)), model_with(4))
    assert state.probes is not None
    assert len(state.probes.labels) == 6
    pixels = state.probes.images * 255
    assert torch.allclose(pixels, pixels.round(), atol=1e-3)
    assert torch.allclose(wrap_to_pixels(state.probes.images + 1e-4), state.probes.images, atol=1e-4)


def test_augmented_scoring_drops_the_last_incomplete_batch() -> None:
    role, machine = proxy(scoring="augmented"), local()
    probes = perfect_on([0] * 64 + [1] * 32)
    assert role._score(constant(4, 0), probes, 0, machine) == 1.0
    assert proxy()._score(constant(4, 0), probes, 0, machine) == pytest.approx(64 / 96)


def test_teachers_travel_from_the_second_block_on() -> None:
    role = proxy()
    state = ProxyState(blocks=(4,), current=KeptModel("c", constant(4, 0)), last=None)
    assert role.extra(state, MOMENT) == (None, {})
    teachers, models = role.extra(state, Moment(4, tuple(range(6)), (4, 6), 0))
    assert teachers == Teachers(current="c", last=None)
    assert list(models) == ["c"]


def test_presets_change_what_they_name() -> None:
    paper, official = (GLFCConfig(**GLFCConfig.presets[name]) for name in ("paper", "official"))
    assert (paper.divergence, paper.teacher, paper.detector) == ("kl", "alarm", "entropy")
    assert paper.rebuild_restarts == 0
    assert (paper.perturb_steps, paper.perturb_learning_rate, paper.perturb_noise) == (100, 0.1, 0.1)
    assert (official.perturb_steps, official.perturb_learning_rate, official.perturb_noise) == (50, 0.2, 0.0)
    assert (official.rebuild_evaluations, official.rebuild_learning_rate, official.rebuild_keep) == (5000, 0.1, 20)
    assert (official.pool, official.scoring, official.best) == ("by-label", "augmented", "forever")
    assert (official.divergence, official.compensation_without_history) == ("bce", "one")
