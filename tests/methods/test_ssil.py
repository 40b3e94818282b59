"""SS-IL: softmaxes of their own for old and new classes, and a share of exemplars in every batch."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from support.objectives import Workshop, catalogue

from fcil.core.messages import RoundContext
from fcil.testing import trial
from fcil.testing.recorded import SHORT


def test_ssil_adds_the_divergences_of_the_old_blocks() -> None:
    shop = Workshop("ssil", 3, 5)
    samples = shop.of_classes(0, 4, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        logits, teacher, labels = (
            objective.problem.net(images),
            objective.problem.teacher(images),
            objective.problem.targets,
        )
    separated = (F.cross_entropy(logits[:4, :3], labels[:4]) + F.cross_entropy(logits[4:, 3:], labels[4:] - 3)) / 2
    soft, target = F.log_softmax(logits[:, :3] / 2, 1), F.log_softmax(teacher / 2, 1)
    distilled = 4 * (target.exp() * (target - soft)).sum(1).mean()
    assert distilled > 1e-3
    assert found.item() == pytest.approx((separated + distilled).item(), rel=1e-5)


def test_ssil_gives_old_logits_no_gradient_from_new_samples() -> None:
    shop = Workshop("ssil", 0, 6)
    shop.context = RoundContext(3, catalogue(6), (3, 6), 0)  # old classes, but nobody to distil them
    for classes, silent in (((3, 4, 5), slice(0, 3)), ((0, 1, 2), slice(3, 6))):
        samples = shop.of_classes(*classes, each=4)
        objective = shop.objective(samples)
        objective.loss(shop.local.images(samples), torch.arange(12)).backward()
        gradient = objective.problem.net.head.weight.grad
        assert gradient is not None
        assert (gradient[silent] == 0).all()
        assert (gradient != 0).any()


def test_ssil_puts_a_quarter_of_exemplars_into_every_batch() -> None:
    shop = Workshop("ssil", 3, 6)
    objective = shop.objective(torch.cat([shop.of_classes(0, each=3), shop.of_classes(3, 4)]))
    batches = objective.epoch(torch.Generator().manual_seed(1))
    newest = objective.problem.newest
    assert [int((~newest[batch]).sum()) for batch in batches] == [2] * 5  # a quarter of eight
    fresh = torch.cat([batch[newest[batch]] for batch in batches])
    assert sorted(fresh.tolist()) == list(range(3, 43))  # each new sample once
    again = Counter(torch.cat([batch[~newest[batch]] for batch in batches]).tolist())
    assert set(again) == {0, 1, 2}
    assert max(again.values()) - min(again.values()) <= 1  # exemplars come round in turn


def test_ssil_keeps_the_first_samples_as_exemplars() -> None:
    made = trial("ssil", scenario=SHORT)
    made.run()
    memories = [state.memory for state in made.clients.states().values() if len(state.memory)]  # type: ignore[attr-defined]
    assert memories
    for memory in memories:
        assert all(torch.equal(ranked, ranked.sort().values) for ranked in memory.ranked)
