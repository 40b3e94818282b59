"""Audits: what attackers read of experiments that are open, masked, private or have a proxy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from support.command import fcil

from fcil.core.errors import ConfigError
from fcil.core.messages import Report, Weighted
from fcil.data.datasets import load_source
from fcil.experiment.attackers import class_scores
from fcil.experiment.audit import Audit, audit, in_words, of_canaries, without_some
from fcil.experiment.config import load_config
from fcil.experiment.shadows import canaries, shadows

pytestmark = pytest.mark.numeric
SMALL = [
    *("data.samples_per_class=20", "model.width=2", "train.epochs=2", "scenario.split=disjoint"),
    *("scenario.tasks=2", "scenario.rounds_per_task=1", "scenario.class_fraction=0.4", "scenario.initial_clients=5"),
    *("scenario.joiners=0", "scenario.both_share=1.0", "scenario.participants=5"),
]
PROXY = ["method.rebuild_evaluations=60", "method.perturb_steps=5", "scenario.participants=2"]
MASKED, PRIVATE = "federation.aggregator=masked", "privacy.epsilon=1.0"
CLASSES, COUNTS, AREA = range(3)


@cache
def audited(method: str, *settings: str) -> Audit:
    config = load_config("digits", [*SMALL, f"method.name={method}", *settings])
    return audit(config, load_source(config.data))


def values(found: Audit) -> list[float]:
    return [-1.0 if finding.value is None else finding.value for finding in found.findings]


@pytest.mark.parametrize("method", ["finetune", "mosaic", "analytic"])
def test_a_server_reads_classes_and_counts_from_open_reports(method: str) -> None:
    found = values(audited(method))
    assert found[CLASSES] > 0.95
    assert found[COUNTS] == 1.0
    assert audited(method).findings[CLASSES].verdict == "reads which classes a client holds"


@pytest.mark.parametrize("method", ["finetune", "analytic"])
def test_a_server_reads_neither_from_masked_reports(method: str) -> None:
    """The masks of a simulation are drawn anew each time; 50 scores of noise are far from both ends."""
    found = values(audited(method, MASKED))
    assert 0.1 < found[CLASSES] < 0.9
    assert found[COUNTS] == 0.0


def test_noise_for_one_image_hides_counts_and_in_masked_sums_classes() -> None:
    found = values(audited("analytic", MASKED, PRIVATE))
    assert 0.1 < found[CLASSES] < 0.9
    assert found[COUNTS] == 0.0
    assert values(audited("analytic", PRIVATE))[COUNTS] == 0.0


def test_another_site_guesses_members_of_a_model_with_more_weights_than_images() -> None:
    """A covariance of 600 features from 160 images, nearly without shrinkage."""
    wide = ("method.projection=600", "scenario.tasks=1")
    by_heart = audited("analytic", *wide, "method.solver=gaussian", "method.shrinkage=1e-6")
    assert values(by_heart)[AREA] > 0.7
    assert by_heart.findings[AREA].verdict == "guesses whether an image was trained on"
    private = audited("analytic", *wide, PRIVATE)
    assert private.findings[AREA].verdict == "does not learn whether an image was trained on"


def test_a_proxy_rebuilds_images_and_finds_them_in_their_class() -> None:
    found = audited("glfc", *PROXY)
    ratio, similar, named = values(found)[2:5]
    assert len(found.findings) == 7
    assert ratio > 15
    assert 0.5 < similar < 1 - 1e-9
    assert named > 0.5
    assert found.findings[2].verdict == "rebuilds private images"
    assert found.prototypes


def test_scores_are_counts_where_there_are_some_and_else_the_growth_of_rows() -> None:
    sent = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
    model = {"head.weight": torch.ones(2, 3), "head.bias": torch.tensor([1.0, -1.0])}
    assert class_scores(Report(model, 5), sent, 2).tolist() == [1.0, -1.0]
    without = {"head.weight": torch.tensor([[1.0, 1, 1], [0, 0, -1]])}
    assert class_scores(Report(without, 5), sent, 2).tolist() == [3.0, -1.0]
    rows = {"head.bias": torch.tensor([4.0, 1.0])}
    assert class_scores(Report(model, 5, rows=rows), sent, 2).tolist() == [4.0, 1.0]
    one = torch.ones((), dtype=torch.float64)
    parts = {"counts": Weighted(torch.tensor([0.0, 7.0]), one)}
    assert class_scores(Report({}, 7, parts=parts), {}, 2).tolist() == [0.0, 7.0]


def test_a_verdict_allows_for_luck() -> None:
    """Of 2 and 36 scores, an area of 0.2 is 1.5 standard deviations from a half."""
    assert in_words(0.2, "it", 2, 36) == "does not learn it"
    assert in_words(0.2, "it", 200, 3600) == "guesses it"
    assert in_words(0.55, "it", 20000, 36000) == "does not learn it"
    assert in_words(0.95, "it", 200, 3600) == "reads it"
    assert in_words(None, "it", 5, 0) == "is not tested on it: all hold the same"


def test_canaries_bound_epsilon_and_noise_lowers_the_bound() -> None:
    """A head of 600 features fits 150 images with any labels; with epsilon 0.5 nobody tells which were there."""
    wide, bounds = ("scenario.tasks=1", "method.name=analytic", "method.projection=600"), []
    for kind in (("method.solver=gaussian", "method.shrinkage=1e-6"), ("privacy.epsilon=0.5",)):
        config = load_config("digits", [*SMALL, *wide, *kind])
        bounds.append(canaries(config, load_source(config.data), 2))
        assert of_canaries(config, 0.6).verdict.endswith(
            "claimed: 0.5, which is too little" if config.privacy.on else "claimed: none"
        )
    assert bounds[0] > 0.5 >= bounds[1]


def test_shadow_models_are_trained_on_either_half_of_the_images() -> None:
    config = load_config("digits", [*SMALL, "method.name=finetune", "model.freeze=true", "train.epochs=1"])
    found = shadows(config, load_source(config.data), 1)
    assert found.sure.shape == found.trained.shape == (2, 200)
    assert not (found.trained[0] & found.trained[1]).any()
    assert found.trained.any(1).all()
    assert bool(found.sure.isfinite().all())  # each when the task of its class ends
    assert not torch.equal(found.sure[0], found.sure[1])


def test_an_audit_with_shadow_models_says_what_they_tell() -> None:
    config = load_config("digits", [*SMALL, "method.name=finetune", "model.freeze=true", "train.epochs=1"])
    found = audit(config, load_source(config.data), models=1)
    names = [finding.what for finding in found.findings]
    assert names[4:] == [
        "membership by likelihood ratio: AUC",
        "training images found by likelihood ratio, one false alarm in a hundred",
        "epsilon that canaries show, at least",
    ]


def test_one_image_in_five_of_each_class_is_left_out() -> None:
    config = load_config("digits", SMALL)
    source = load_source(config.data)
    kept, others = without_some(config, source)
    assert torch.bincount(others.labels).tolist() == [4] * 10
    assert torch.bincount(kept.train.labels).tolist() == [16] * 10
    both = torch.cat([kept.train.images, others.images]).flatten(1)
    assert torch.equal(both.unique(dim=0), source.train.images.flatten(1).unique(dim=0))


def test_attackers_of_a_configuration_are_refused() -> None:
    config = load_config("digits", [*SMALL, "method.name=finetune", "attack.name=sign-flip"])
    with pytest.raises(ConfigError, match=r"attack\.name: should be absent"):
        audit(config, load_source(config.data))


def test_the_command_writes_a_page_and_figures_into_the_run(tmp_path: Path) -> None:
    flags = [part for setting in SMALL for part in ("--set", setting)]
    folder = tmp_path / "run"
    assert fcil("run", "digits", "--method", "finetune", *flags, "--quiet", "--out", folder).returncode == 0
    done = fcil("audit", folder, "--shadows", "0", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((folder / "audit.json").read_text())
    assert written["title"] == "Audit of finetune, digits, seed 2021"
    assert written["findings"] == json.loads(done.stdout)["findings"]
    assert written["findings"] == [vars(finding) for finding in audited("finetune").findings]
    page = (folder / "audit.html").read_text()
    assert "server reads which classes a client holds" in page
    assert "http" not in page.replace("http-equiv", "")
    for words, said in (
        (("audit", folder, "--set", "seed=1"), "is a run, whose settings are known"),
        (("audit", "digits"), "--out: missing; it must be given"),
        (("audit", tmp_path), "holds no checkpoint"),
    ):
        refused = fcil(*words)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert said in refused.stderr
