"""What each baseline does that no other method does."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from support.blobs import blobs, trial
from support.lessons import Workshop
from torch import Tensor

from fcil.maths.bias import Correction, correct
from fcil.maths.causal import new_neighbours, remove_effect
from fcil.maths.geodesic import geodesic_loss, geodesic_weight, pooled_features
from fcil.maths.losses import cross_entropy, labelled_bce
from fcil.maths.nearest_mean import nearest_mean_scores
from fcil.maths.penalties import ewc_penalty, fisher_diagonal, softened_divergence
from fcil.maths.pooled import pooled_map
from fcil.maths.relation import distilled_bce
from fcil.methods.bic import Bias, BiasServer, BiasState, CorrectedTeachers
from fcil.methods.dde import DDE, EffectState, Momentum
from fcil.methods.ewc import EWC, Importance, ImportanceState, ImportantTeachers
from fcil.methods.icarl import ClassMeans, MeansState
from fcil.methods.podnet import OwnedClasses, PODNet, ProxyOwners, ProxyTeachers
from fcil.models import grow, initial_state
from fcil.wire import Message, ModelState, Moment, Report, model_digest

SOURCE = blobs(per_class=20)
IMAGES = SOURCE.test.images.float() / 255


def report(model: ModelState, extra: Message | None, samples: int = 1) -> Report:
    return Report(model, samples, extra)


def logits_of(shop: Workshop, model: ModelState) -> Tensor:
    with torch.no_grad():
        logits: Tensor = shop.local.net(model)(IMAGES)
    return logits


def pretrained(shop: Workshop, old: tuple[int, ...], epochs: int = 8) -> Workshop:
    """Teach the old classes to the old model, then let its head grow again."""
    first = Workshop(shop_name(shop), SOURCE, 0, len(old))
    lesson = first.fit(first.lesson(first.of_classes(*old)), epochs)
    shop.before = {name: value.detach().clone() for name, value in lesson.problem.net.state_dict().items()}
    shop.model = grow(shop.before, shop.moment.classes, 2)
    return shop


def shop_name(shop: Workshop) -> str:
    from fcil.methods import methods

    return next(name for name, method in methods().items() if type(shop.config) is method.config)


# --- iCaRL --------------------------------------------------------------------------------------------------------


def test_icarl_replaces_the_old_entries_of_the_label_by_the_teachers_sigmoids() -> None:
    shop = Workshop("icarl", SOURCE, 2, 4)
    samples = shop.of_classes(0, 3, each=4)
    lesson = shop.lesson(samples)
    images, rows = shop.local.images(samples), torch.arange(8)
    with torch.no_grad():
        logits, teacher = lesson.problem.net(images), lesson.problem.teacher(images)
        found = lesson.loss(images, rows)
    assert found.item() == pytest.approx(distilled_bce(logits, lesson.problem.targets, teacher).mean().item(), rel=1e-6)
    target = torch.zeros(8, 4)
    target[torch.arange(8), lesson.problem.targets] = 1
    target[:, :2] = torch.sigmoid(teacher)
    by_hand = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-6)
    for output, matters in ((1, False), (2, True)):  # an exemplar's own label plays no part, a new sample's does
        row = 0 if output == 1 else 7
        labels = lesson.problem.targets.clone()
        labels[row] = output
        changed = distilled_bce(logits, labels, teacher).mean().item()
        assert (changed != pytest.approx(found.item(), rel=1e-6)) == matters


def test_icarl_predicts_by_the_nearest_mean_of_what_clients_sent() -> None:
    shop = Workshop("icarl", SOURCE, 0, 4, predict="nme")
    lesson = shop.fit(shop.lesson(shop.of_classes(0, 1, 2)))
    sent = lesson.extra()
    assert isinstance(sent, ClassMeans)
    assert sent.outputs.tolist() == [0, 1, 2]
    model = {name: value.detach() for name, value in lesson.problem.net.state_dict().items()}
    state, averaged = shop.roles.server.round(MeansState(), shop.model, [report(model, sent)], shop.moment)
    folded = shop.roles.server.predictor(state, averaged)
    with torch.no_grad():
        features = shop.local.net(averaged).extract(IMAGES)
    scores = nearest_mean_scores(features, *sent.spread(4))
    assert torch.equal(logits_of(shop, folded).argmax(1), scores.argmax(1))
    assert not (logits_of(shop, folded).argmax(1) == 3).any()  # nobody has sent its mean


def test_icarl_averages_means_by_count_and_keeps_the_last_of_an_absent_class() -> None:
    shop = Workshop("icarl", SOURCE, 0, 3, predict="nme")
    size = shop.model["head.weight"].shape[1]

    def means(output: int, value: float, count: int) -> ClassMeans:
        return ClassMeans(torch.tensor([output]), torch.full((1, size), value / 16), torch.tensor([count]))

    first = [report(shop.model, means(0, 1.0, 1)), report(shop.model, means(0, 4.0, 3)), report(shop.model, None)]
    state, _ = shop.roles.server.round(MeansState(), shop.model, first, shop.moment)
    ignored, _ = Workshop("icarl", SOURCE, 0, 3).roles.server.round(MeansState(), shop.model, first, shop.moment)
    assert ignored.known is None  # nobody asked for them
    broken = means(1, math.nan, 2)
    unsound = [broken, means(7, 1.0, 2), means(1, 99.0, 2), means(1, 1.0, 2**62)]
    later = [report(shop.model, means(1, 2.0, 5)), *(report(shop.model, sent) for sent in unsound)]
    state, _ = shop.roles.server.round(state, shop.model, later, shop.moment)
    assert state.known.outputs.tolist() == [0, 1]
    assert (16 * state.known.means[:, 0]).tolist() == [3.25, 2.0]
    assert state.known.counts.tolist() == [4, 5]


def test_icarl_uploads_nothing_more_unless_asked_for_means() -> None:
    sizes = {}
    for predict in ("fc", "nme"):
        _, records = trial("icarl", fields={"predict": predict}, train={"epochs": 1}).play()
        sizes[predict] = [record.bytes_up for record in records]
    shop = Workshop("icarl", SOURCE, 2, 4)
    assert shop.lesson(shop.of_classes(0, 3)).extra() is None
    assert all(with_means > without for with_means, without in zip(sizes["nme"], sizes["fc"], strict=True))


# --- BiC ----------------------------------------------------------------------------------------------------------


def imbalanced(shop: Workshop) -> Tensor:
    """Return few samples of the old classes and many of the new ones."""
    return torch.cat([shop.of_classes(0, 1, 2, each=4), shop.of_classes(3, 4, 5)])


def test_bic_lowers_the_share_of_new_predictions_on_an_imbalanced_client() -> None:
    shop = pretrained(Workshop("bic", SOURCE, 3, 6), (0, 1, 2))
    lesson = shop.fit(shop.lesson(imbalanced(shop)), epochs=6)
    bias = lesson.extra()
    assert isinstance(bias, Bias)
    model = {name: value.detach() for name, value in lesson.problem.net.state_dict().items()}
    server = shop.roles.server
    state, grown = server.grow(BiasState(), shop.before, 6, True, 2)
    state, averaged = server.round(state, grown, [report(model, bias)], shop.moment)
    plain, corrected = (logits_of(shop, chosen) for chosen in (averaged, server.predictor(state, averaged)))
    shares = [float((logits.argmax(1) >= 3).float().mean()) for logits in (plain, corrected)]
    assert shares[1] < shares[0]
    assert abs(shares[1] - 0.5) < abs(shares[0] - 0.5)  # half of the test images are new
    torch.testing.assert_close(corrected, correct(plain, 3, Correction(bias.alpha, bias.beta)))


def test_bic_trains_on_none_of_the_samples_it_corrects_with() -> None:
    shop = Workshop("bic", SOURCE, 3, 6)
    lesson = shop.lesson(imbalanced(shop))
    seen = torch.cat(lesson.epoch(torch.Generator().manual_seed(1)))
    held = lesson.held_out  # type: ignore[attr-defined]
    assert Counter(lesson.problem.targets[held].tolist()) == dict.fromkeys(range(6), 1)  # a tenth of four, at least one
    assert sorted([*seen.tolist(), *held.tolist()]) == list(range(len(lesson.problem.targets)))


def test_bic_holds_the_same_samples_out_for_a_whole_block() -> None:
    shop = Workshop("bic", SOURCE, 3, 6)
    samples = imbalanced(shop)
    held = [shop.lesson(samples, seed=seed).held_out.tolist() for seed in (1, 2)]  # type: ignore[attr-defined]
    assert held[0] == held[1]
    fewer = shop.lesson(samples[samples != samples[held[0][0]]]).held_out  # type: ignore[attr-defined]
    kept = set(samples[held[0][1:]].tolist())
    assert kept < set(samples[samples != samples[held[0][0]]][fewer].tolist())
    shop.moment = Moment(9, tuple(range(6)), (1, 3, 6), 0)
    assert shop.lesson(samples).held_out.tolist() != held[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("classes", [(0, 1, 2), (3, 4, 5)], ids=["S_o", "S_n"])
def test_bic_corrects_nothing_without_both_old_and_new_samples(classes: tuple[int, ...]) -> None:
    shop = Workshop("bic", SOURCE, 3, 6)
    assert shop.fit(shop.lesson(shop.of_classes(*classes)), epochs=1).extra() is None


def test_bic_teaches_with_the_former_blocks_correction() -> None:
    server = Workshop("bic", SOURCE, 2, 4).roles.server
    assert isinstance(server, BiasServer)
    shop = Workshop("bic", SOURCE, 2, 4)
    state, model = server.grow(BiasState(), shop.before, 4, True, 1)
    assert state.begins == 2
    found = [report(model, Bias(0.5, -1.0)), report(model, Bias(0.7, -2.0)), report(model, None)]
    unsound = [report(model, bias) for bias in (Bias(math.inf, 0.0), Bias(1e30, 0.0), Bias(0.5, math.nan))]
    state, model = server.round(state, model, [*found, *unsound], Moment(1, (0, 1, 2, 3), (2, 4), 0))
    assert (state.bias.alpha, state.bias.beta) == (pytest.approx(0.6), -1.5)
    state, grown = server.grow(state, model, 6, True, 1)
    teachers, _ = server.extra(state, Moment(2, tuple(range(6)), (2, 4, 6), 0))
    assert isinstance(teachers, CorrectedTeachers)
    assert (teachers.begins, teachers.alpha, teachers.beta) == (2, pytest.approx(0.6), -1.5)
    assert server.predictor(state, grown) is grown  # the new block has no correction yet

    student = Workshop("bic", SOURCE, 4, 6)
    samples = student.of_classes(0, 5, each=4)
    images, rows = student.local.images(samples), torch.arange(8)
    with torch.no_grad():
        plain, taught = (student.lesson(samples, server=sent).loss(images, rows) for sent in (None, teachers))
        same = student.lesson(samples, server=CorrectedTeachers(None, "x", 2, 1.0, 0.0)).loss(images, rows)
    assert taught != plain
    assert same == plain


# --- PODNet -------------------------------------------------------------------------------------------------------


def test_podnet_keeps_pooled_maps_nearer_to_the_teachers_than_training_without_it() -> None:
    distances = {}
    for weight in (1.0, 0.0):
        weights = {"spatial_weight": 9 * weight, "flat_weight": 3 * weight}  # strong, as the rate is small
        shop = pretrained(Workshop("podnet", SOURCE, 3, 6, **weights), (0, 1, 2))
        lesson = shop.fit(shop.lesson(shop.of_classes(3, 4, 5)), epochs=4, rate=0.005)
        images = shop.local.images(lesson.problem.samples)
        with torch.no_grad():
            pairs = zip(lesson.problem.net.maps(images), lesson.problem.teacher.maps(images), strict=True)
            distances[weight] = sum(float((pooled_map(a) - pooled_map(b)).norm(dim=1).mean()) for a, b in pairs)
    assert distances[1.0] < 0.8 * distances[0.0]


def test_podnet_rests_the_old_proxies_until_the_fine_tune() -> None:
    shop = Workshop("podnet", SOURCE, 3, 6)
    lesson = shop.lesson(shop.of_classes(0, 3, 4))
    assert isinstance(lesson, PODNet)
    rates, samples = [0.1, 0.1], lesson.problem.samples
    shop.local.fit(lesson.problem.net, samples, lesson.loss, rates, 1, shop.local.train.optimiser(), lesson.epoch)
    head = lesson.problem.net.head.weight.detach()
    turned = torch.nn.functional.cosine_similarity(head[:3], shop.model["head.weight"][:3], dim=2)
    torch.testing.assert_close(turned, torch.ones(3, 10))  # weight decay may shorten them
    assert not torch.equal(head[3], shop.model["head.weight"][3])
    before = head.clone()
    lesson.finish()
    tuned = lesson.problem.net.head.weight.detach()[:3]
    assert not torch.equal(tuned, before[:3])
    moved = torch.nn.functional.cosine_similarity(tuned, shop.model["head.weight"][:3], dim=2)
    assert float(moved.min()) < 1 - 1e-6  # the fine-tune turns them; putting them back alone would not


def test_podnet_imprints_the_new_classes_that_nobody_has_trained() -> None:
    shop = Workshop("podnet", SOURCE, 3, 6)
    samples = shop.of_classes(0, 3, 4)
    lesson = shop.lesson(samples, server=ProxyTeachers(None, "x", taught=(0, 1, 2, 4)))
    changed = (lesson.problem.net.head.weight.detach() != shop.model["head.weight"]).flatten(1).any(1)
    assert changed.nonzero().squeeze(1).tolist() == [3]
    with torch.no_grad():
        own = shop.local.net(shop.model).extract(shop.local.images(shop.of_classes(3)))
    unit = torch.nn.functional.normalize(own, dim=1)
    proxies = torch.nn.functional.normalize(lesson.problem.net.head.weight.detach()[3], dim=1)
    nearest = (unit @ proxies.T).max(1).values
    random = torch.nn.functional.normalize(shop.model["head.weight"][3], dim=1)
    assert nearest.mean() > (unit @ random.T).max(1).values.mean()


def test_podnet_averages_a_classs_proxies_over_its_owners() -> None:
    shop = Workshop("podnet", SOURCE, 0, 3)
    ones, threes = ({**shop.model, "head.weight": torch.full_like(shop.model["head.weight"], v)} for v in (1.0, 3.0))
    reports = [report(ones, OwnedClasses(torch.tensor([0, 1]))), report(threes, OwnedClasses(torch.tensor([1])))]
    state, model = shop.roles.server.round(ProxyOwners(), shop.model, reports, shop.moment)
    assert [float(model["head.weight"][label].mean()) for label in (0, 1)] == [1.0, 2.0]
    assert torch.equal(model["head.weight"][2], shop.model["head.weight"][2])
    assert state.taught == (0, 1)


def test_podnet_takes_a_head_of_proxies_and_no_last_activation() -> None:
    shop = Workshop("podnet", SOURCE, 0, 3)
    assert (shop.network.head, shop.network.last_relu) == ("proxies", False)
    assert shop.model["head.weight"].shape == (3, 10, 16)
    with torch.no_grad():
        net = shop.local.net(shop.model)
        maps = net.maps(IMAGES)
        torch.testing.assert_close(net.pool(maps), net.extract(IMAGES))
    assert (maps[-1] < 0).any()


# --- DDE ----------------------------------------------------------------------------------------------------------


def test_dde_adds_neighbours_of_new_classes_to_a_labels_likelihood() -> None:
    shop = Workshop("dde", SOURCE, 2, 4)
    shop.before = grow(initial_state(shop.network, 1, 7), 2, 8)  # a teacher that the network differs from
    samples = shop.of_classes(0, 3, each=6)
    lesson = shop.lesson(samples)
    assert isinstance(lesson, DDE)
    images, rows = shop.local.images(samples), torch.arange(12)
    net, labels = lesson.problem.net, lesson.problem.targets
    with torch.no_grad():
        found = lesson.loss(images, rows)
        logits, teacher = net(images), lesson.problem.teacher(images)
        near = new_neighbours(lesson.problem.teacher.extract(images), labels >= 2, 10)
    assert near.shape == (12, 5)  # six new samples, one of which may be the sample itself
    p = logits.softmax(1)
    joint = (p + p[near].mean(1)) / 2
    expected = -joint[rows, labels].log().mean() + softened_divergence(logits, teacher).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_dde_without_new_samples_or_teacher_is_plain_cross_entropy() -> None:
    for old in (0, 2):
        shop = Workshop("dde", SOURCE, old, 4)
        samples = shop.of_classes(0, 1, each=4)
        lesson = shop.lesson(samples)
        images = shop.local.images(samples)
        with torch.no_grad():
            found = lesson.loss(images, torch.arange(8))
            logits = lesson.problem.net(images)
            host = cross_entropy(logits, lesson.problem.targets).mean()
            if old:
                host = host + softened_divergence(logits, lesson.problem.teacher(images)).mean()
        assert found.item() == pytest.approx(host.item(), rel=1e-6)


def test_dde_removes_the_effect_of_the_averaged_momentum() -> None:
    shop = Workshop("dde", SOURCE, 2, 4)
    sent = [shop.fit(shop.lesson(shop.of_classes(*classes)), epochs=1).extra() for classes in ((0, 2), (1, 3))]
    assert all(isinstance(momentum, Momentum) for momentum in sent)
    broken = Momentum(torch.full_like(sent[0].features, math.nan))  # type: ignore[union-attr]
    reports = [report(shop.model, extra) for extra in (*sent, broken)]
    state, model = shop.roles.server.round(EffectState(), shop.model, reports, shop.moment)
    mean = (sent[0].features + sent[1].features) / 2  # type: ignore[union-attr]
    torch.testing.assert_close(state.direction, mean / mean.norm())
    with torch.no_grad():
        features = shop.local.net(model).extract(IMAGES)
    expected = remove_effect(logits_of(shop, model), features, model["head.weight"], state.direction)
    found = logits_of(shop, shop.roles.server.predictor(state, model))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, logits_of(shop, model))


# --- GeoDL --------------------------------------------------------------------------------------------------------


def test_geodl_adds_the_geodesic_term_to_icarls_loss() -> None:
    shop = Workshop("geodl", SOURCE, 2, 6)
    shop.before = grow(initial_state(shop.network, 1, 7), 2, 8)  # a teacher that the network differs from
    samples = shop.of_classes(0, 3, each=4)
    lesson = shop.lesson(samples)
    images, problem = shop.local.images(samples), lesson.problem
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        host = distilled_bce(problem.net(images), problem.targets, problem.teacher(images)).mean()
        now, then = (pooled_features(net.backbone.last_map(net.maps(images))) for net in (problem.net, problem.teacher))
        term = geodesic_weight(2, 4) * geodesic_loss(now, then).mean()
        few = lesson.loss(images[:3], torch.arange(3))
        few_host = distilled_bce(problem.net(images[:3]), problem.targets[:3], problem.teacher(images[:3])).mean()
    assert found.item() == pytest.approx((host + term).item(), rel=1e-5)
    assert few.item() == pytest.approx(few_host.item(), rel=1e-5)  # three samples span no subspace


def test_geodl_pulls_features_towards_the_teachers_along_the_geodesic() -> None:
    shop = pretrained(Workshop("geodl", SOURCE, 3, 6, geodesic_weight=0.0), (0, 1, 2), epochs=2)
    pulling = Workshop("geodl", SOURCE, 3, 6)
    pulling.before = shop.before
    drifted = shop.fit(shop.lesson(shop.of_classes(3, 4, 5)), epochs=1).problem.net.state_dict()
    samples = shop.of_classes(0, 3, 4, 5, each=2)
    images, rows = shop.local.images(samples), torch.arange(8)
    plain, pulled = (which.lesson(samples, model=drifted) for which in (shop, pulling))
    for lesson in (plain, pulled):
        lesson.loss(images, rows).backward()  # type: ignore[no-untyped-call]

    def distance() -> float:
        nets = pulled.problem.net, pulled.problem.teacher
        with torch.no_grad():
            now, then = (pooled_features(net.backbone.last_map(net.maps(images))) for net in nets)
            return float(geodesic_loss(now, then).mean())

    pairs = list(zip(pulled.problem.net.parameters(), plain.problem.net.parameters(), strict=True))
    pulls = [(own, own.grad - other.grad) for own, other in pairs]  # the term's part of the gradient
    steepness = float(sum(pull.square().sum() for _, pull in pulls)) / geodesic_weight(3, 3)
    before = distance()
    with torch.no_grad():
        for parameter, pull in pulls:
            parameter.sub_(0.01 * before / steepness * pull)  # one hundredth less, were the distance linear
    assert distance() < 0.995 * before


# --- SS-IL --------------------------------------------------------------------------------------------------------


def test_ssil_gives_old_logits_no_gradient_from_new_samples() -> None:
    shop = Workshop("ssil", SOURCE, 0, 6)
    shop.moment = Moment(3, tuple(range(6)), (3, 6), 0)  # old classes, but nobody to distil them
    for classes, silent in (((3, 4, 5), slice(0, 3)), ((0, 1, 2), slice(3, 6))):
        samples = shop.of_classes(*classes, each=4)
        lesson = shop.lesson(samples)
        lesson.loss(shop.local.images(samples), torch.arange(12)).backward()  # type: ignore[no-untyped-call]
        gradient = lesson.problem.net.head.weight.grad
        assert gradient is not None
        assert (gradient[silent] == 0).all()
        assert (gradient != 0).any()


def test_ssil_puts_a_quarter_of_exemplars_into_every_batch() -> None:
    shop = Workshop("ssil", SOURCE, 3, 6)
    lesson = shop.lesson(torch.cat([shop.of_classes(0, each=3), shop.of_classes(3, 4)]))
    batches = lesson.epoch(torch.Generator().manual_seed(1))
    newest = lesson.problem.newest
    assert [int((~newest[batch]).sum()) for batch in batches] == [2] * 5  # a quarter of eight
    fresh = torch.cat([batch[newest[batch]] for batch in batches])
    assert sorted(fresh.tolist()) == list(range(3, 43))  # each new sample once
    again = Counter(torch.cat([batch[~newest[batch]] for batch in batches]).tolist())
    assert set(again) == {0, 1, 2}
    assert max(again.values()) - min(again.values()) <= 1  # exemplars come round in turn


def test_ssil_keeps_the_first_samples_as_exemplars() -> None:
    made = trial("ssil", train={"epochs": 1})
    made.play()
    memories = [state.memory for state in made.store.states.values() if len(state.memory)]  # type: ignore[attr-defined]
    assert memories
    for memory in memories:
        assert all(torch.equal(ranked, ranked.sort().values) for ranked in memory.ranked)


# --- FedProx, LwF, EWC --------------------------------------------------------------------------------------------


def distance(lesson: Any, model: ModelState) -> float:
    moved = [(value.detach() - model[name]).square().sum() for name, value in lesson.problem.net.named_parameters()]
    return float(torch.stack(moved).sum())


def test_fedprox_stays_nearer_to_the_received_model() -> None:
    moved = {}
    for mu in (1.0, 0.0):
        shop = Workshop("fedprox", SOURCE, 0, 3, mu=mu)
        moved[mu] = distance(shop.fit(shop.lesson(shop.of_classes(0, 1, 2))), shop.model)
    assert moved[1.0] < 0.8 * moved[0.0]


def test_fedprox_pulls_nothing_at_the_received_model() -> None:
    shop = Workshop("fedprox", SOURCE, 0, 3, mu=1.0)
    samples = shop.of_classes(0, 1, each=4)
    lesson = shop.lesson(samples)
    images = shop.local.images(samples)
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        expected = labelled_bce(lesson.problem.net(images), lesson.problem.targets).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_lwf_is_cross_entropy_and_the_divergence_from_the_teacher() -> None:
    shop = Workshop("lwf", SOURCE, 2, 4, distillation_weight=0.7)
    shop.before = grow(initial_state(shop.network, 1, 7), 2, 8)  # a teacher that the network differs from
    samples = shop.of_classes(2, 3, each=4)
    lesson = shop.lesson(samples)
    images = shop.local.images(samples)
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        logits, teacher = lesson.problem.net(images), lesson.problem.teacher(images)
    expected = cross_entropy(logits, lesson.problem.targets).mean() + 0.7 * softened_divergence(logits, teacher).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_ewc_measures_what_mattered_to_finished_data_and_holds_it() -> None:
    shop = pretrained(Workshop("ewc", SOURCE, 3, 6), (0, 1, 2), epochs=2)  # what is certain has no Fisher information
    finished = shop.of_classes(0, 1)
    lesson = shop.lesson(shop.of_classes(3, 4), finished=finished)
    assert isinstance(lesson, EWC)
    sent = lesson.extra()
    assert isinstance(sent, Importance)
    teacher = shop.local.net(shop.before)
    expected = fisher_diagonal(teacher, shop.local.images(finished), shop.local.labels(finished))
    assert sent.samples == len(finished)
    for name, value in expected.items():
        torch.testing.assert_close(sent.fisher[name], value)
    moved = {}
    for strength in (1000.0, 0.0):
        held = Workshop("ewc", SOURCE, 3, 6, strength=strength)
        held.before, held.model = shop.before, shop.model
        fitted = held.fit(held.lesson(held.of_classes(3, 4), finished=finished))
        weights = {name: value.detach() for name, value in fitted.problem.net.named_parameters()}
        moved[strength] = float(ewc_penalty(weights, shop.before, expected, 1.0))
    assert moved[1000.0] < 0.5 * moved[0.0]


def test_ewc_caps_what_would_overshoot_the_old_weights() -> None:
    shop = Workshop("ewc", SOURCE, 2, 4, strength=1000.0)
    fisher = {name: torch.full_like(value, 5.0) for name, value in shop.local.net(shop.before).named_parameters()}
    lesson = shop.lesson(shop.of_classes(2, 3), server=ImportantTeachers(None, "x", fisher))
    assert isinstance(lesson, EWC)
    assert all(value.max().item() == pytest.approx(1 / (1000 * 0.05)) for value in lesson.fisher.values())
    shop.fit(lesson)
    assert all(bool(torch.isfinite(value).all()) for value in lesson.problem.net.state_dict().values())


def test_ewc_adds_up_the_blocks_and_averages_within_one() -> None:
    shop = Workshop("ewc", SOURCE, 2, 4)
    server = shop.roles.server

    def importance(model: ModelState, value: float, samples: int) -> Importance:
        names = [name for name in model if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
        return Importance({name: torch.full_like(model[name], value) for name in names}, samples)

    state, model = server.grow(ImportanceState(), shop.before, 4, True, 1)
    parts = [importance(shop.before, 1.0, 1), importance(shop.before, 3.0, 3), importance(shop.before, -1.0, 3)]
    state, _ = server.round(state, model, [report(model, part) for part in parts], shop.moment)
    state, grown = server.grow(state, model, 6, True, 1)
    later = Moment(9, tuple(range(6)), (2, 4, 6), 0)
    state, _ = server.round(state, grown, [report(grown, importance(model, 1.0, 5))], later)
    teachers, models = server.extra(state, later)
    assert isinstance(teachers, ImportantTeachers)
    assert teachers.fisher is not None
    assert teachers.fisher["head.bias"].tolist() == [3.5, 3.5, 1.0, 1.0]
    assert list(models) == [teachers.last]


# --- GLFC's ablations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ablation", "switch"), [("glfc-wo-cgc", "compensation"), ("glfc-wo-crd", "relation"), ("glfc-wo-prs", "proxy")]
)
def test_an_ablation_is_glfc_with_one_switch_off(ablation: str, switch: str) -> None:
    scenario = {"tasks": 2}
    full, ablated = trial("glfc", scenario=scenario), trial(ablation, scenario=scenario)
    by_switch = trial("glfc", scenario=scenario, fields={switch: False})
    digest = model_digest(ablated.play()[0].model)
    assert digest == model_digest(by_switch.play()[0].model)
    if ablation != "glfc-wo-prs":  # without a proxy the teacher may still be the same model
        assert digest != model_digest(full.play()[0].model)
    settings = [
        made.roles.client.config.model_dump()  # type: ignore[attr-defined]
        for made in (full, ablated)
    ]
    differing = {key for key in settings[0] if settings[0][key] != settings[1][key]}
    assert differing == {switch}
