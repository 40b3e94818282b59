"""Hostile clients of a simulation: who they are, what they change, and that every engine carries it out."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from support.clipping import BOUND, MEMBER, NAME
from support.parties import patterns, run_rounds
from support.records import record

from fcil.core.aggregate import Turn, validate_row_counts
from fcil.core.errors import ConfigError
from fcil.core.messages import Report, RoundContext
from fcil.data.samples import Samples
from fcil.deployment.server.run import deployment_config
from fcil.experiment.build import make_recipe
from fcil.experiment.config import load_config, parse_config
from fcil.experiment.journal import as_document
from fcil.experiment.summary import summarise
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.attacks.base import ATTACKS, Attack, AttackConfig, Hostility
from fcil.federation.engines.base import Recipe
from fcil.federation.reply_checks import validate_claims
from fcil.federation.server import FederationConfig
from fcil.testing import Trial
from fcil.testing.recorded import snapshot
from fcil.testing.trial import trial

SENT = {"w": torch.full((2,), 1.0), "steps": torch.tensor(4)}
TRAINED = {"w": torch.full((2,), 1.5), "steps": torch.tensor(9)}
CONTEXT = RoundContext(0, ("1", "3", "0"), (3,), 0)  # class 2 has no output yet
SCENARIO: dict[str, Any] = {"tasks": 1, "rounds_per_task": 2, "initial_clients": 4, "joiners": 0, "participants": 4}


def attack(name: str, **own: Any) -> Attack:
    config = AttackConfig(name=name, **({name: own} if own else {}))
    return Hostility(config, (0,), 7).attack()


def attacked(name: str, *, engine: str = "serial", method: str = "finetune", clients: float = 2) -> Trial:
    return trial(
        method,
        source=patterns(),
        engine=engine,
        workers=1,
        scenario=SCENARIO,
        train={"batch_size": 24, "learning_rate": 0.1},
        attack={"name": name, "clients": clients},
    )


def samples() -> Samples:
    return Samples.of(patterns())


@pytest.mark.parametrize(
    ("name", "own", "wanted"),
    [("sign-flip", {}, 0.5), ("scale", {}, 6.0), ("scale", {"factor": -2.0}, 0.0), ("backdoor", {}, 3.5)],
)
def test_updates_are_multiplied_and_counters_stay(name: str, own: dict[str, Any], wanted: float) -> None:
    found = attack(name, **own).report(Report(TRAINED, 3), SENT, 1)
    assert found is not None
    assert found.model["w"].tolist() == [wanted] * 2
    assert int(found.model["steps"]) == 9
    assert TRAINED["w"].tolist() == [1.5, 1.5]


def test_noise_has_its_deviation_and_follows_from_the_seed() -> None:
    report = Report({"w": torch.zeros(10_000), "steps": torch.tensor(9)}, 3)
    first, again, other = (attack("noise").report(report, SENT, seed) for seed in (1, 1, 2))
    assert first is not None and again is not None and other is not None
    assert float(first.model["w"].std()) == pytest.approx(1.0, rel=0.05)
    assert torch.equal(first.model["w"], again.model["w"])
    assert not torch.equal(first.model["w"], other.model["w"])
    assert int(first.model["steps"]) == 9


def test_false_counts_claim_every_class_and_are_not_refused() -> None:
    most = FederationConfig().max_samples
    for rows in ({}, {"head.weight": torch.tensor([5.0, 0.0, 2.0], dtype=torch.float64)}):
        found = attack("false-counts").report(Report(TRAINED, 7, rows=rows), SENT, 1)
        assert found is not None
        assert validate_claims(found, most) is None
        assert found.samples >= most - 3
        assert [weights.tolist() for weights in found.rows.values()] == [[333_333.0] * 3] * len(rows)
        assert not rows or validate_row_counts(found, ("head.weight",), 3) is None


@pytest.mark.parametrize("name", ["sign-flip", "scale", "noise", "backdoor"])
def test_a_variance_does_not_betray_an_attack(name: str) -> None:
    key = "bn.running_var"
    found = attack(name).report(Report({key: torch.full((500,), 0.5)}, 3), {key: torch.ones(500)}, 1)
    assert found is not None
    assert float(found.model[key].min()) >= 0.0


def test_labels_are_those_of_the_next_class_in_the_catalogue() -> None:
    plain, poisoned = samples(), attack("label-flip").samples(samples(), CONTEXT)
    moved = dict(zip(plain.split.labels.tolist(), poisoned.split.labels.tolist(), strict=True))
    assert moved == {1: 3, 3: 0, 0: 1, 2: 2}
    assert torch.equal(poisoned.split.images, plain.split.images)


def test_a_backdoor_puts_its_patch_on_half_of_the_images_and_calls_them_the_first_class() -> None:
    plain, poisoned = samples(), attack("backdoor").samples(samples(), CONTEXT)
    changed = (poisoned.split.images != plain.split.images).flatten(1).any(1)
    assert 0.2 < float(changed.float().mean()) < 0.6
    assert set(poisoned.split.labels[changed].tolist()) == {1}
    assert torch.equal(poisoned.split.labels[~changed], plain.split.labels[~changed])
    assert not bool(changed[plain.split.labels == 2].any()), "a class without an output is not trained"
    assert bool((poisoned.split.images[changed][..., -2:, -2:] == 255).all())
    assert torch.equal(poisoned.split.images[..., :-2, :], plain.split.images[..., :-2, :])


def test_hostile_clients_are_drawn_from_the_seed_by_number_or_share() -> None:
    assert len(AttackConfig(name="noise", clients=3).drawn(10, 1)) == 3
    assert len(AttackConfig(name="noise", clients=0.2).drawn(10, 1)) == 2
    assert len(AttackConfig(name="noise", clients=0.01).drawn(10, 1)) == 1
    config = AttackConfig(name="noise", clients=3)
    assert len({config.drawn(10, seed) for seed in range(20)}) > 10
    assert config.drawn(10, 4) == config.drawn(10, 4)
    with pytest.raises(ConfigError, match=r"attack\.clients: found 5, should be at most the 4 clients of the scenario"):
        attacked("noise", clients=5)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("attack.name=sign-flop", r"attack\.name: found 'sign-flop', should be one of: .*; did you mean sign-flip\?"),
        ("attack.clients=1.5", r"attack\.clients: found 1\.5, should be a whole number, or a share below 1"),
        ("attack.scale.factor=2.0", r"attack\.scale: found .* should be absent, since attack\.name is none"),
    ],
)
def test_a_wrong_table_is_refused_by_its_key(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config("digits", [setting])


def test_a_document_has_the_table_only_where_there_is_an_attack() -> None:
    assert "attack" not in load_config("digits").document()
    chosen = load_config("digits", ["attack.name=scale", "attack.scale.factor=3.0"])
    assert chosen.document()["attack"] == {"name": "scale", "clients": 0.2, "scale": {"factor": 3.0}}
    assert parse_config(chosen.document()) == chosen


def test_a_real_federation_refuses_the_table() -> None:
    with pytest.raises(ConfigError, match=r"attack\.name: found 'noise', should be absent: hostile clients are for"):
        deployment_config(load_config("digits", ["attack.name=noise"]))


def test_a_site_reads_no_attack_out_of_the_terms() -> None:
    config = load_config("digits", ["attack.name=noise"])
    recipe = make_recipe(config, patterns())
    assert "hostility" not in recipe.text()
    hostile = Recipe(**{**vars(recipe), "hostility": Hostility(config.attack, (0, 3), 5)})
    assert Recipe.read(hostile.text()).hostility == hostile.hostility
    assert Recipe.read(hostile.text(), import_modules=False).hostility is None


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_changes_the_run_and_fails_nowhere(name: str) -> None:
    method = "mosaic" if name == "false-counts" else "finetune"
    made = attacked(name, method=method)
    states, records = run_rounds(made)
    hostile = made.roles.client.hostile  # type: ignore[attr-defined]
    refused = [failure for record in records for failure in record.failures]
    assert all(failure["stage"] == "update" and failure["client"] in hostile for failure in refused)
    assert 2 <= records[0].reports <= 4
    honest, _ = run_rounds(attacked("none", method=method))
    assert not all(torch.equal(states[0].model[key], honest[0].model[key]) for key in honest[0].model)


@pytest.mark.parametrize("name", ["backdoor", "noise"])
def test_a_worker_process_carries_out_the_same_attack(name: str) -> None:
    here, there = attacked(name), attacked(name, engine="processes")
    with closing(there.simulation.engine):
        assert snapshot(there, there.run()[0]) == snapshot(here, here.run()[0])


def test_a_hostile_client_does_not_clip_itself_unless_nobody_can_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATORS._members, NAME, MEMBER)
    chosen = {"federation": {"aggregator": NAME}, "attack": {"name": "scale"}, "method": {"name": "finetune"}}
    config = parse_config(chosen)
    recipe = make_recipe(config, patterns())
    far = {"w": torch.full((2,), 9.0), "steps": torch.tensor(9)}

    def moved(client: int) -> float:
        hostile = Recipe(**{**vars(recipe), "hostility": Hostility(config.attack, (1,), 5)})
        staged = hostile.aggregator().stage(Report(far, 1), SENT, Turn(0, client, 3))
        return float(staged.model["w"][0])

    assert moved(0) == moved(1) == pytest.approx(1 + BOUND)
    monkeypatch.setattr(MEMBER.build, "inspects", True)
    assert (moved(0), moved(1)) == (pytest.approx(1 + BOUND), 9.0)


def test_the_success_of_a_backdoor_is_measured_on_images_of_other_classes() -> None:
    made = attacked("backdoor", clients=4)
    state, _ = made.run()
    found = made.simulation.evaluate_fully(state)
    assert found.backdoor is not None
    turned, images = found.backdoor
    assert images == 3 * 5, "of four classes with five test images, three are not the target"
    assert 0 <= turned <= images
    plain = attacked("noise")
    assert plain.simulation.evaluate_fully(plain.simulation.start()).backdoor is None


def test_the_summary_and_the_records_name_a_backdoor_only_where_there_is_one() -> None:
    plain, turned = record(0, correct=[3], total=[4], ends_task=True), (3, 12)
    with_it = record(0, correct=[3], total=[4], ends_task=True, backdoor=turned)
    assert summarise([with_it], "glfc", "fcil", 1)["backdoor"] == 25.0
    assert as_document(with_it)["backdoor"] == turned
    assert "backdoor" not in summarise([plain], "glfc", "fcil", 1)
    assert "backdoor" not in as_document(plain)
