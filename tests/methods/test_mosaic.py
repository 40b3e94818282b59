"""Mosaic: the loss over a client's own classes, the head joined by rows, and exemplars at random."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.objectives import Workshop, gathered
from torch import Tensor

from fcil.core.messages import Report, RoundContext
from fcil.maths.distillation import distillation
from fcil.maths.owned import counted_cross_entropy
from fcil.methods import get_method
from fcil.methods.base import Current, Setting
from fcil.methods.mosaic import ROWS, MosaicConfig, at_random
from fcil.models import ModelConfig, head_width
from fcil.models.classifier import SHORTEST, Classifier, CosineHead

pytestmark = pytest.mark.numeric
SETTING = Setting(24, (3, 8, 8), 11)


def test_the_loss_is_counted_and_distilled_with_the_square_of_the_temperature() -> None:
    shop = Workshop("mosaic", 2, 5, distillation_weight=0.7, temperature=3.0)
    samples = torch.cat([shop.of_classes(0, each=2), shop.of_classes(2, 3, each=4)])
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found = objective.loss(images, torch.arange(10))
        logits, teacher = objective.problem.net(images), objective.problem.teacher(images)
    counts = torch.tensor([2, 0, 4, 4, 0])
    distilled = 9 * distillation(logits, teacher, 3.0).mean()
    assert distilled > 1e-4
    expected = counted_cross_entropy(logits, objective.problem.targets, counts).mean() + 0.7 * distilled
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_client_has_a_say_in_a_row_by_its_samples_of_the_class() -> None:
    shop = Workshop("mosaic", 2, 4)
    objective = shop.objective(torch.cat([shop.of_classes(2, each=3), shop.of_classes(3, each=5)]))
    assert objective.row_weights()[ROWS].tolist() == [0, 0, 3, 5]


def test_rows_are_averaged_over_the_holders_of_their_class_and_stay_where_there_is_none() -> None:
    sent = {ROWS: torch.zeros(3, 2), "backbone": torch.zeros(1)}
    reports = [
        Report({ROWS: torch.full((3, 2), value), "backbone": torch.tensor([value])}, 4, {ROWS: torch.tensor(rows)})
        for value, rows in ((1.0, [1.0, 0.0, 3.0]), (5.0, [3.0, 0.0, 1.0]))
    ]
    aggregate = gathered(sent, [Report(one.model, 4, {ROWS: one.rows[ROWS].double()}, {}) for one in reports])
    assert aggregate.model[ROWS].tolist() == [[4.0, 4.0], [0.0, 0.0], [2.0, 2.0]]
    assert aggregate.model["backbone"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("rows", "samples"),
    [
        ({}, 4),
        ({"head.bias": [4.0, 0.0]}, 4),
        ({ROWS: [4.0]}, 4),
        ({ROWS: [2.5, 1.5]}, 4),
        ({ROWS: [5.0, -1.0]}, 4),
        ({ROWS: [float("nan"), 4.0]}, 4),
        ({ROWS: [9e9, 0.0]}, 4),
    ],
)
def test_counts_that_cannot_be_are_refused(rows: dict[str, list[float]], samples: int) -> None:
    server, context = get_method("mosaic").build(MosaicConfig(), SETTING).server, RoundContext(0, ("0", "1"), (2,), 0)
    report = Report({}, samples, {name: torch.tensor(value).double() for name, value in rows.items()}, {})
    assert "row weights" in str(server.refusal(report, {}, context))
    honest = Report({}, samples, {ROWS: torch.tensor([3.0, 1.0]).double()}, {})
    assert server.refusal(honest, {}, context) is None


def drawn(seed: int, share: int = 5) -> Tensor:
    nothing: Any = None
    current = Current(samples=torch.arange(0), models={}, seed=seed)
    return at_random(torch.arange(100, 120), 3, share, nothing, current, nothing)


def test_exemplars_are_drawn_by_the_clients_own_seed() -> None:
    assert torch.equal(drawn(1), drawn(1))
    assert drawn(1).tolist() != drawn(2).tolist()
    assert len(drawn(1).unique()) == 5
    assert sorted(drawn(1, 50).tolist()) == list(range(100, 120))


def test_the_head_gives_cosines_times_the_scale() -> None:
    head = CosineHead(2, 2, scale=5.0)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 0.0], [2.0, 2.0]]))
        found = head(torch.tensor([[0.5, 0.0], [0.0, 7.0]]))
    torch.testing.assert_close(found, 5.0 * torch.tensor([[1.0, 0.5**0.5], [0.0, 0.5**0.5]]))


def test_features_of_no_length_have_no_direction_and_a_bounded_slope() -> None:
    features = torch.zeros(1, 4, requires_grad=True)
    head = CosineHead(4, 2, scale=5.0)
    head(features)[0, 0].backward()
    assert head(features).tolist() == [[0.0, 0.0]]
    assert features.grad is not None
    assert float(features.grad.norm()) == pytest.approx(5.0 / SHORTEST)


def test_it_trains_a_head_of_cosines() -> None:
    assert MosaicConfig().network(ModelConfig(width=2)).head == "cosine"
    scaled = MosaicConfig().network(ModelConfig(width=2, head_scale=3.0))
    assert Classifier(scaled, [0.5], [0.2], classes=4).head.scale == 3.0
    shop = Workshop("mosaic", 2, 4)
    assert head_width(shop.model) == 4
    assert "head.bias" not in shop.model


def test_there_is_no_proxy_and_the_exemplars_are_a_setting() -> None:
    method = get_method("mosaic")
    random, herded = (method.build(MosaicConfig(exemplars=kind), SETTING) for kind in ("random", "herding"))
    assert random.proxy is None
    assert random.client.ranker is at_random
    assert herded.client.ranker is not at_random
