"""Operators withdraw a class, or merge two spellings of one; sites, evaluation and models follow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.command import fcil
from support.consortium import SITES, Build, Consortium, small_config

from fcil.core.errors import ConfigError
from fcil.data.exemplar_memory import Memory
from fcil.deployment.retired_classes import read_retired, retire
from fcil.deployment.server import audit_log
from fcil.deployment.server.run import deployment_config, server_recipe
from fcil.deployment.transport.messages import TrainRequest
from fcil.experiment.model_file import load_model
from fcil.methods.client import ClientState


def stocked(build: Build, method: str) -> Consortium:
    made = build(method, "deployment.evaluate_every=1", rounds=6)
    for name in SITES[:3]:
        made.add(name, "ant", *range(8))
        made.add(name, "bee", *range(8))
    made.add("aachen", "cow", *range(8))
    return made


def class_id(made: Consortium, name: str) -> str:
    return made.keys.sites["aachen"].secret.class_id(name)


def test_a_withdrawn_class_is_trained_evaluated_and_predicted_no_more(build: Build) -> None:
    made = stocked(build, "glfc")
    rounds = made.rounds()
    before = [next(rounds) for _ in range(3)][-1]
    cow = class_id(made, "cow")
    assert cow in before.per_class
    assert made.server is not None
    assert made.run is not None
    retired = {cow: ""}
    made.server.retired = made.run.retired = lambda: retired
    after = list(rounds)
    assert not any(record.failures for record in after)
    assert all(set(record.per_class) == {class_id(made, name) for name in ("ant", "bee")} for record in after)
    assert (after[-1].classes, after[-1].retired) == (3, 1)
    site = made.site("aachen")
    state = site.store.latest
    assert state is not None
    assert not torch.isin(site.role.in_use(state.state), site.data.samples.withdrawn).any()
    assert sum("have withdrawn cow" in line for line in made.said[0]) == 1
    made.run.finish()
    names = [load_model(path / "model.safetensors").class_names for path in (made.run.folder, site.folder)]
    assert [len(found) for found in names] == [2, 2]
    assert set(names[1]) == {"ant", "bee"}


def test_a_merged_class_goes_on_as_the_other_one(build: Build) -> None:
    made = stocked(build, "icarl")
    rounds = made.rounds()
    for _ in range(3):
        next(rounds)
    ant, cow = class_id(made, "ant"), class_id(made, "cow")
    assert made.server is not None
    made.server.retired = lambda: {cow: ant}
    images = next(rounds).per_class[ant][1]
    assert images == 3 + 1, "a hold-out image of each site's ants, and the one of the cows"
    assert made.wire.requests(TrainRequest)[-1].retired == {cow: ant}
    site = made.site("aachen")
    context = made.wire.requests(TrainRequest)[-1].broadcast.context
    outputs = site.data.samples.outputs(torch.arange(len(site.data.samples)), context)
    assert set(outputs.tolist()) == {context.catalogue.index(name) for name in (ant, class_id(made, "bee"))}
    assert sum("have merged cow into ant" in line for line in made.said[0]) == 1


def test_a_state_lets_go_of_samples_wherever_they_are() -> None:
    role = server_recipe(deployment_config(small_config("icarl"))).roles().client
    latest, earlier, gone = torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1, 2, 4, 6])
    memory = Memory((0, 1), (torch.tensor([5, 4]), torch.tensor([6])))
    left = role.without(ClientState(latest, earlier, memory), gone)
    assert (left.latest.tolist(), left.earlier.tolist()) == ([0], [3])
    assert (left.memory.classes, left.memory.indices.tolist()) == ((0,), [5])


def test_the_file_of_retired_classes_takes_ids_that_there_are_and_follows_chains(tmp_path: Path) -> None:
    keys, ids = tmp_path, ("aaaa1", "aaaa2", "bbbb1", "cccc1")
    assert retire(keys, ids, "bbbb", "aaaa1") == ("bbbb1", "aaaa1")
    assert retire(keys, ids, "aaaa1", "cccc1") == ("aaaa1", "cccc1")
    assert read_retired(keys) == {"bbbb1": "cccc1", "aaaa1": "cccc1"}
    assert retire(keys, ids, "cccc1") == ("cccc1", "")
    assert read_retired(keys) == {"bbbb1": "", "aaaa1": "", "cccc1": ""}
    for given, target, sentence in (
        ("bbbb1", None, "no such class"),
        ("aaa", None, "no such class"),
        ("aaaa2", "aaaa2", "the same class"),
        ("aaaa2", "cccc1", "no such class"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            retire(keys, ids, given, target)
    with pytest.raises(ConfigError, match="2 classes begin with it"):
        retire(tmp_path / "other", ("aaaa1", "aaaa2"), "aaaa")
    assert [entry["event"] for entry in audit_log.entries(keys)] == ["class merged", "class merged", "class withdrawn"]


def test_the_commands_name_a_class_by_the_id_that_a_site_tells(build: Build) -> None:
    made = stocked(build, "icarl")
    rounds = made.rounds()
    while next(rounds).classes < 3:
        pass
    keys, place = made.place / "server", made.keys.place
    keys.mkdir()
    named = fcil("federation", "classes", "id", "cow", "--keys", place / "aachen").stdout.strip()
    assert named == class_id(made, "cow")
    common = ("--run", made.place / "run", "--keys", keys)
    merged = fcil("federation", "classes", "merge", named, class_id(made, "ant"), *common)
    assert merged.stdout == f"{named} is part of {class_id(made, 'ant')} from now on\n"
    assert fcil("federation", "classes", "withdraw", "x1234", *common).returncode == 2
    assert "is withdrawn" in fcil("federation", "classes", "withdraw", class_id(made, "bee"), *common).stdout
