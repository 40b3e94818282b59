"""Real roles on a growing folder: all data since the last alarm is in use, then herded, then gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.folders import FolderSite, Place, class_counts, class_id

from fcil.methods import methods

METHODS = ("finetune", "icarl", "glfc")


@pytest.fixture(params=METHODS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> FolderSite:
    return FolderSite(Place(tmp_path, hold_out=0.0), request.param)


def files(name: str, *seeds: int) -> list[str]:
    return [f"{name}/{seed}.png" for seed in seeds]


def current(site: FolderSite) -> list[str]:
    return site.names(torch.cat([site.state.earlier, site.state.latest]))


def test_files_that_trickle_in_are_all_in_use(site: FolderSite) -> None:
    site.place.add("ant", 0, 1)
    assert site.round("ant", participate=True).alarm
    for seed in (2, 3, 4):
        site.place.add("ant", seed)
        assert not site.round("ant").alarm
        assert site.names(site.state.latest) == files("ant", seed)
        assert not site.round("ant").alarm
    assert current(site) == files("ant", 0, 1, 2, 3, 4)
    assert len(site.state.memory) == 0
    assert class_counts(site.data)["ant"].in_use == 5


def test_a_class_waits_for_its_output_while_more_files_come(site: FolderSite) -> None:
    site.place.add("ant", *range(8))
    site.round("ant")
    site.place.add("bee", 10, 11)
    assert not site.round("ant").alarm
    assert current(site) == files("ant", *range(8))
    site.place.add("bee", 12)
    site.place.add("ant", 8)
    site.restart()
    assert site.round("ant", "bee", participate=True).alarm
    assert current(site) == sorted([*files("bee", 10, 11, 12), *files("ant", 8)])
    assert set(site.names(site.state.memory.indices)) <= set(files("ant", *range(8)))


def test_of_two_new_classes_one_is_catalogued_already(site: FolderSite) -> None:
    site.place.add("ant", *range(8))
    site.round("ant")
    site.place.add("bee", 10, 11)
    site.place.add("cow", 20, 21)
    assert site.round("ant", "bee").alarm
    assert current(site) == files("bee", 10, 11)
    assert site.data.samples.unknown(site.data.freeze(1, site.state.training), (class_id("bee"),)) == (class_id("cow"),)
    site.place.add("bee", 12)
    assert site.round("ant", "bee", "cow", participate=True).alarm
    assert current(site) == [*files("bee", 10, 11, 12), *files("cow", 20, 21)]
    assert site.state.memory.classes == (0,)


@pytest.mark.parametrize("again", [False, True], ids=["goes on", "starts again"])
def test_a_new_class_after_some_rounds_lets_the_old_data_be_herded(site: FolderSite, again: bool) -> None:
    site.place.add("ant", *range(8))
    site.round("ant", participate=True)
    site.place.add("ant", 8, 9)
    site.round("ant")
    site.place.add("bee", 10, 11, 12)
    if again:
        site.restart()
    assert site.round("ant", "bee", participate=True).alarm
    assert current(site) == files("bee", 10, 11, 12)
    assert site.state.memory.classes == (0,)
    exemplars = 6 if site.role.memory else 0
    assert len(site.state.memory) == exemplars
    assert class_counts(site.data)["ant"].in_use == 10, "the state before still uses them"
    site.round("ant", "bee")
    counts = class_counts(site.data)
    assert (counts["ant"].in_use, counts["ant"].retired) == (exemplars, 10 - exemplars)
    assert torch.equal(site.data.samples.held, site.state.training)
    site.place.add("cow", 20, 21)
    assert site.round("ant", "bee", "cow", participate=True).alarm
    assert len(site.state.memory) <= site.role.memory
    assert not set(site.data.samples.held.tolist()) - {*site.state.training.tolist(), *site.former.training.tolist()}


def test_what_a_failed_round_did_not_take_in_is_not_lost(site: FolderSite) -> None:
    site.place.add("ant", 0, 1)
    site.round("ant")
    site.place.add("ant", 2)
    site.freeze()  # and the site is killed while it trains
    site.number += 1
    site.restart()
    site.place.add("ant", 3)
    site.round("ant")
    assert current(site) == files("ant", 0, 1, 2, 3)


def test_who_keeps_all_data_never_retires_any(tmp_path: Path) -> None:
    site = FolderSite(Place(tmp_path, hold_out=0.0), "joint")
    for number, name in enumerate(("ant", "bee", "cow")):
        site.place.add(name, 10 * number, 10 * number + 1)
        site.round("ant", "bee", "cow")
    assert len(site.data.samples.held) == len(site.state.training) == 6


NO_EXEMPLARS = ("analytic", "joint", "finetune", "lwf", "ewc", "target", "mfcl", "lander")


@pytest.mark.parametrize("method", [name for name in methods() if name not in NO_EXEMPLARS])
def test_more_images_of_an_old_class_do_not_drive_out_its_exemplars(tmp_path: Path, method: str) -> None:
    site = FolderSite(Place(tmp_path, hold_out=0.0), method, memory=12)
    site.place.add("ant", *range(8))
    site.round("ant", participate=method == "re-fed")  # which chooses by a model of its own
    site.place.add("bee", 10, 11, 12)
    site.round("ant", "bee")
    assert len(site.state.memory) == 8
    site.place.add("ant", 8)
    site.round("ant", "bee")
    site.place.add("cow", 20, 21)
    site.round("ant", "bee", "cow")
    labels = site.data.samples.labels(site.state.memory.indices).tolist()
    assert (labels.count(0), labels.count(1)) == (6, 3)  # its share of the twelve, not the one image that came last
    site.round("ant", "bee", "cow")
    assert class_counts(site.data)["ant"].in_use == 6
