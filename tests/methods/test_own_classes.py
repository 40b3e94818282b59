"""The ingredients of Mosaic as settings of other methods: own classes in the loss, rows averaged over holders."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.objectives import Workshop, gathered, weighted
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Report, RoundContext
from fcil.experiment.config import load_config
from fcil.maths.bias import softened_cross_entropy
from fcil.maths.distillation import distillation
from fcil.methods import Setting, get_method
from fcil.methods.icarl import MeansState
from fcil.methods.own_classes import averaged_over_holders
from fcil.methods.server import plain_server
from fcil.models import HEAD_ROWS
from fcil.testing.recorded import Listener
from fcil.testing.trial import trial

pytestmark = pytest.mark.numeric
OFFERED = ("bic", "dde", "icarl", "glfc", "glfc-wo-cgc", "glfc-wo-crd", "glfc-wo-prs")
HELD = [2, 0, 4, 3, 0]  # samples per class: an old class and a new one are absent


class Case:
    """A client of a method that holds three of five classes, of which two are old, and what its networks say."""

    def __init__(self, method: str, old: int = 2, **fields: Any) -> None:
        self.shop = Workshop(method, old, 5, own_classes=True, **fields)
        samples = torch.cat([self.shop.of_classes(label, each=count) for label, count in enumerate(HELD) if count])
        self.objective = self.shop.objective(samples)
        self.rows = self.objective.rows()
        images = self.shop.local.images(samples[self.rows])
        with torch.no_grad():
            self.found = float(self.objective.loss(images, self.rows))
            self.logits = self.objective.problem.net(images)
            self.teacher = self.objective.problem.teacher(images) if old else None
            self.everything = self.objective.problem.net(self.shop.local.images(samples))
        self.labels = self.objective.problem.targets[self.rows].tolist()


def own_share(logits: Tensor, label: int, counts: list[int]) -> float:
    """Return the label's share of n_c exp(z_c), summed class by class over those that the client holds."""
    terms = [count * math.exp(float(z)) for z, count in zip(logits, counts, strict=True)]
    return terms[label] / sum(term for term, count in zip(terms, counts, strict=True) if count)


def bce_loop(logits: Tensor, targets: list[float], kept: list[int]) -> float:
    """Return the mean of the binary cross-entropies of some outputs."""
    total = 0.0
    for output in kept:
        p = 1 / (1 + math.exp(-float(logits[output])))
        total -= targets[output] * math.log(p) + (1 - targets[output]) * math.log(1 - p)
    return total / len(kept)


def mixed_target(case: Case, row: int) -> list[float]:
    """Return a sample's one-hot label, with the teacher's sigmoids for the outputs that it has."""
    hot = [float(case.labels[row] == output) for output in range(5)]
    soft = torch.sigmoid(case.teacher[row]).tolist() if case.teacher is not None else []
    return soft + hot[len(soft) :]


def test_bic_classifies_by_counts_of_what_it_fits_and_distils_as_before() -> None:
    case = Case("bic")
    fitted = [1, 0, 3, 2, 0]  # one sample of each class is held out for the second stage
    classified = [-math.log(own_share(z, y, fitted)) for z, y in zip(case.logits, case.labels, strict=True)]
    distilled = float(softened_cross_entropy(case.logits, case.teacher).mean())
    assert case.found == pytest.approx(2 / 5 * distilled + 3 / 5 * sum(classified) / 6, rel=1e-5)


def test_dde_counts_the_outputs_of_neighbours_too() -> None:
    case = Case("dde")
    near = case.objective.neighbours
    assert near.shape == (9, 6)  # seven new samples, one of which may be the sample itself
    total = 0.0
    for row, label in enumerate(case.labels):
        around = [own_share(case.everything[other], label, HELD) for other in near[row].tolist()]
        total -= math.log((own_share(case.logits[row], label, HELD) + sum(around) / 6) / 2)
    distilled = float(distillation(case.logits, case.teacher).mean())
    assert case.found == pytest.approx(total / 9 + distilled, rel=1e-5)


@pytest.mark.parametrize(("old", "kept"), [(2, [0, 1, 2, 3]), (0, [0, 2, 3])])
def test_icarl_leaves_out_absent_outputs_but_for_those_it_distils(old: int, kept: list[int]) -> None:
    case = Case("icarl", old)
    each = [bce_loop(case.logits[row], mixed_target(case, row), kept) for row in range(9)]
    assert case.found == pytest.approx(sum(each) / 9, rel=1e-5)


def glfc_terms(case: Case) -> tuple[float, float, float]:
    """Return L_GC over own outputs, the same without weights, and L_RD with absent new outputs left out."""
    hot = [[float(label == output) for output in range(5)] for label in case.labels]
    plain = [bce_loop(case.logits[row], hot[row], [0, 2, 3]) for row in range(9)]
    gaps = [1 - 1 / (1 + math.exp(-float(case.logits[row][label]))) for row, label in enumerate(case.labels)]
    groups = [
        [gap for gap, other in zip(gaps, case.labels, strict=True) if (other < 2) == (y < 2)] for y in case.labels
    ]
    weighed = [g / (sum(group) / len(group)) * ce for g, group, ce in zip(gaps, groups, plain, strict=True)]
    related = [bce_loop(case.logits[row], mixed_target(case, row), [0, 1, 2, 3]) for row in range(9)]
    return sum(weighed) / 9, sum(plain) / 9, sum(related) / 9


@pytest.mark.parametrize(("method", "weighs"), [("glfc", True), ("glfc-wo-cgc", False), ("glfc-wo-prs", True)])
def test_glfc_leaves_out_absent_outputs_and_weighs_samples_as_before(method: str, weighs: bool) -> None:
    case = Case(method)
    compensated, plain, related = glfc_terms(case)
    assert abs(compensated - plain) > 1e-5
    assert case.found == pytest.approx(0.5 * (compensated if weighs else plain) + 0.5 * related, rel=1e-5)


def test_glfc_without_relation_distils_all_old_outputs() -> None:
    case = Case("glfc-wo-crd")
    old = sum(bce_loop(case.logits[row], mixed_target(case, row), [0, 1]) for row in range(9)) / 9
    assert case.found == pytest.approx(0.5 * glfc_terms(case)[0] + 0.5 * old, rel=1e-5)


@pytest.mark.parametrize("method", OFFERED)
def test_an_absent_class_has_no_gradient_before_there_is_a_teacher(method: str) -> None:
    objective = Case(method, old=0).objective
    rows = objective.rows()
    objective.loss(objective.local.images(objective.problem.samples[rows]), rows).backward()
    for gradient in (objective.problem.net.head.weight.grad, objective.problem.net.head.bias.grad):
        moved = [bool(row.any()) for row in gradient.view(5, -1)]
        assert moved == [True, False, True, True, False]


@pytest.mark.parametrize("method", OFFERED)
def test_rows_have_the_weight_of_all_samples_of_their_class_and_only_where_holders_are_averaged(method: str) -> None:
    assert Case(method).objective.row_weights() == {}
    found = Case(method, head_rows="holders").objective.row_weights()
    assert {name: weights.tolist() for name, weights in found.items()} == dict.fromkeys(HEAD_ROWS, HELD)


@pytest.mark.parametrize("method", OFFERED)
def test_nothing_is_offered_unasked(method: str) -> None:
    config = get_method(method).config()
    assert (config.own_classes, config.head_rows, config.optimiser) == (False, "all", "train")
    assert get_method(method).build(config, Setting(9, (1, 8, 8), 3)).server.counted_rows == ()


def test_what_holders_send_is_named_beside_what_the_method_sends_anyway() -> None:
    told = {method: set(get_method(method).config(head_rows="holders").sends()) for method in ("bic", "dde", "glfc")}
    assert told == {"bic": {"bias", "head."}, "dde": {"momentum", "head."}, "glfc": {"PrototypeGradient", "head."}}
    assert set(get_method("icarl").config(head_rows="holders", predict="nme").sends()) == {"means", "head."}
    assert set(get_method("glfc").config(head_rows="holders", selection="votes").sends()) == {"vote", "head."}


@pytest.mark.parametrize("method", ["bic", "icarl"])
def test_a_row_is_the_mean_of_its_holders_and_stays_where_nobody_trains_it(method: str) -> None:
    made = trial(method, fields={"head_rows": "holders"}, scenario={"class_fraction": 0.5, "participants": 2})
    heard = Listener(made.simulation.engine)
    made.simulation = replace(made.simulation, engine=heard)
    states = [state for state, _ in made.simulation.rounds(made.simulation.start())]
    kinds = set()
    for state, exchange in zip(states, heard.heard, strict=True):
        sent = exchange.models[exchange.broadcast.model]
        reports = [answer.report for answer in exchange.answers if getattr(answer, "report", None)]
        for name in HEAD_ROWS:
            for output, row in enumerate(state.model[name]):
                counts = [float(report.rows[name][output]) for report in reports]
                theirs = [report.model[name][output].double() for report in reports]
                holders = [(row, count) for row, count in zip(theirs, counts, strict=True) if count]
                kinds.add(len(holders))
                if not holders:
                    assert torch.equal(row, sent[name][output])
                elif len(holders) == 1:
                    assert torch.equal(row, holders[0][0].float())
                else:
                    mean = sum(value * count for value, count in holders) / sum(count for _, count in holders)
                    torch.testing.assert_close(row.double(), mean, rtol=1e-6, atol=1e-7)
    assert kinds == {0, 1, 2}


def test_all_but_the_head_is_averaged_as_before() -> None:
    shop = Workshop("icarl", 0, 2, head_rows="holders")
    reports = [
        Report({name: torch.full_like(tensor, value) for name, tensor in shop.model.items()}, 4, rows_of(*counts))
        for value, counts in ((1.0, (4, 0)), (3.0, (1, 3)))
    ]
    model = gathered(shop.model, reports).model
    assert model["head.bias"].tolist() == [pytest.approx(7 / 5), 3.0]
    rest = [tensor for name, tensor in model.items() if name not in HEAD_ROWS and tensor.is_floating_point()]
    assert all(bool((tensor == 2.0).all()) for tensor in rest)


# --- the server ---------------------------------------------------------------------------------------------------


def rows_of(*counts: float) -> dict[str, Tensor]:
    """Return weights of the rows of a linear head."""
    return dict.fromkeys(HEAD_ROWS, torch.tensor(counts, dtype=torch.float64))


def test_the_role_keeps_its_state_and_its_needs() -> None:
    means = torch.zeros(3, 16)
    means[1, 0] = 0.25
    shop = Workshop("icarl", 0, 3, predict="nme", head_rows="holders")
    assert shop.roles.server.needs == {"parts", "rows"}
    assert shop.roles.server.init() == MeansState()
    sound = shop.report(rows=rows_of(0, 40, 0), means=weighted(means, [0.0, 5.0, 0.0]))
    state, model = shop.round(shop.roles.server.init(), [sound])
    assert state.counts.tolist() == [0, 5, 0]
    predictor = shop.roles.server.predictor(state, model)
    assert predictor["head.weight"].argmax().item() == 16  # the mean that came in


def test_teachers_are_still_chosen_by_votes() -> None:
    roles = Workshop("glfc", 0, 3, selection="votes", head_rows="holders").roles
    assert roles.server.chooses
    assert not roles.teaches
    assert roles.server.choice(roles.server.init(), RoundContext(0, ("0",), (1,), 0)) is not None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({}, "row weights must be given for exactly: head.weight and head.bias"),
        ({"head.weight": [40.0, 0.0]}, "for exactly: head.weight and head.bias"),
        (
            {"head.weight": [40.0, 0.0], "head.bias": [40.0, 0.0], "conv1.weight": [1.0]},
            "for exactly: head.weight and head.bias",
        ),
        ({"head.weight": [40.0, 0.0], "head.bias": [0.0, 40.0]}, "must be 2 whole numbers"),
        ({"head.weight": [40.0], "head.bias": [40.0]}, "must be 2 whole numbers"),
        ({"head.weight": [39.5, 0.5], "head.bias": [39.5, 0.5]}, "whole numbers that add up to its samples"),
        ({"head.weight": [41.0, -1.0], "head.bias": [41.0, -1.0]}, "whole numbers that add up"),
        ({"head.weight": [20.0, 21.0], "head.bias": [20.0, 21.0]}, "add up to its samples"),
        ({"head.weight": [math.inf, 0.0], "head.bias": [math.inf, 0.0]}, "add up to its samples"),
        ({"head.weight": [math.nan, 40.0], "head.bias": [math.nan, 40.0]}, "add up to its samples"),
    ],
)
def test_counts_that_cannot_be_are_refused(rows: dict[str, list[float]], reason: str) -> None:
    shop = Workshop("dde", 0, 2, head_rows="holders")
    found = shop.objection(shop.report(rows={name: torch.tensor(row).double() for name, row in rows.items()}))
    assert reason in str(found)
    assert shop.objection(shop.report(rows=rows_of(33, 7))) is None


def test_further_contents_are_still_refused() -> None:
    shop = Workshop("dde", 2, 4, head_rows="holders")
    strange = shop.report(rows=rows_of(40, 0, 0, 0), more=weighted(torch.ones(16)))
    assert shop.objection(strange) == "it sends more unasked"
    plain = averaged_over_holders(plain_server(), HEAD_ROWS)
    assert plain.refusal(strange, shop.model, shop.context) == "it sends more unasked"


@pytest.mark.parametrize(
    ("method", "setting", "reason"),
    [
        ("dde", "head_rows=owners", "method.head_rows: found 'owners', should be 'all' or 'holders'"),
        ("icarl", "own_classes=perhaps", "method.own_classes: found 'perhaps', should be true or false"),
        ("mosaic", "own_classes=true", "method.own_classes: unknown key"),
        ("lga", "head_rows=holders", "method.head_rows: unknown key"),
        ("lwf", "own_classes=true", "method.own_classes: unknown key"),
        ("bic", "optimiser=sine", "method.optimiser: found 'sine', should be 'train', 'paper', 'gentle', 'cosine' or"),
    ],
)
def test_a_setting_that_a_method_does_not_have_is_refused(method: str, setting: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("digits", [f"method.name={method}", f"method.{setting}"])
    assert reason in str(caught.value)


def test_all_three_can_be_asked_for_together() -> None:
    settings = ["method.own_classes=true", "method.head_rows=holders", "method.optimiser=cosine"]
    for method in OFFERED:
        written = load_config("digits", [f"method.name={method}", *settings]).document()["method"]
        assert (written["own_classes"], written["head_rows"], written["optimiser"]) == (True, "holders", "cosine")
