"""Whatever happens in whatever order, and wherever a site is killed: the folder keeps its promises."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.folders import NOTHING, Place, class_counts, pixels_of
from torch import Tensor

import fcil.deployment.client.sample_store as shelf_module
from fcil.core.errors import FederationError
from fcil.deployment.client.image_folder import SiteData
from fcil.deployment.client.ingest import held_out_of

CLASSES = ("ant", "bee", "cow")


class Killed(BaseException):
    """The process ends here."""


class Histories(RuleBasedStateMachine):
    """A site that does anything in any order, and what it must remember."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.painted = 0
        self.files: dict[str, list[Path]] = {name: [] for name in CLASSES}
        self.number = 0
        self.frozen: list[tuple[int, list[int]]] = []
        self.seed_of: dict[int, int] = {}  # the picture that each sample is, once seen
        self.held_out: set[int] = set()
        self.trained: set[int] = set()
        self.gone: set[int] = set()  # retired
        self.batch: list[int] = []

    @initialize(hold_out=st.sampled_from([0.0, 0.1, 0.4]))
    def begin(self, hold_out: float) -> None:
        self.place = Place(self.root, hold_out)
        self.site = self.place.open()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(name=st.sampled_from(CLASSES), to=st.sampled_from(["copy", "move", "delete"]))
    def shuffle(self, name: str, to: str) -> None:
        if not self.files[name]:
            return
        path = self.files[name][0]
        target = path.with_name(f"{to}-{path.name}"[-40:])
        if to == "copy":
            shutil.copy2(path, target)
        elif to == "move":
            self.files[name][0] = path.rename(target)
        else:
            self.files[name].pop(0).unlink()

    @rule()
    def restart(self) -> None:
        self.site = self.place.open()

    @rule(arrivals=st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(1, 7)), max_size=3), whole=st.booleans())
    def freeze(self, arrivals: list[tuple[str, int]], whole: bool) -> None:
        for name, count in arrivals:
            self.files[name] += self.place.add(name, *range(self.painted, self.painted + count))
            self.painted += count
        self.number += 1 + len(arrivals)  # a site is not asked in every round
        before = len(self.site.samples)
        used = torch.tensor(self.batch if whole else self.batch[1:], dtype=torch.int64)
        arrival = self.site.freeze(self.number, used).tolist()
        new = [index for index in range(before, len(self.site.samples)) if not self.site._index.held_out[index]]
        joins = not whole and bool(self.batch)
        assert arrival == (self.batch if not new else self.batch + new if joins else new)
        self.batch = arrival
        self.frozen = [*self.frozen[-1:], (self.number, arrival)]
        self.trained |= set(arrival)
        for index in range(before, len(self.site.samples)):
            self.seed_of[index] = self._seed(index)
        assert sorted(self.seed_of.values()) == list(range(self.painted)), "every picture is one sample"

    @precondition(lambda self: self.frozen)
    @rule(former=st.booleans())
    def repeat(self, former: bool) -> None:
        number, arrival = self.frozen[0 if former else -1]
        assert self.site.freeze(number, NOTHING).tolist() == arrival

    @precondition(lambda self: self.frozen)
    @rule(data=st.data(), most=st.booleans())
    def retire(self, data: Any, most: bool) -> None:
        live = sorted(set(self.seed_of) - self.gone)
        drawn = data.draw(st.sets(st.sampled_from(live), max_size=4) if live else st.just(set()))
        keep = drawn if most else set(live) - drawn
        self.site.retire(torch.tensor(sorted(keep), dtype=torch.int64))
        held = set(self.site.hold_out_indices.tolist())
        self.gone |= set(live) - keep - held - set(self.batch)
        self.frozen = [each for each in self.frozen if self.gone.isdisjoint(each[1])]

    @invariant()
    def promises_are_kept(self) -> None:
        if not hasattr(self, "site"):
            return
        held = set(self.site.hold_out_indices.tolist())
        assert held >= self.held_out
        assert held.isdisjoint(self.trained)
        self.held_out = held
        live = sorted(set(self.seed_of) - self.gone)
        assert self.site.samples.held.tolist() == live
        assert on_disk(self.place).tolist() == live
        for index in live:
            assert self._seed(index) == self.seed_of[index]
        for counts in class_counts(self.site).values():
            files = counts.in_use + counts.retired + counts.held_out
            assert counts.held_out == held_out_of(files, self.place.hold_out)
        assert self.site.drain_warnings() == ()

    def _seed(self, index: int) -> int:
        """Return the picture that a sample is."""
        found = self.site.samples.pixels(torch.tensor([index]))[0].numpy()
        (seed,) = [seed for seed in range(self.painted) if np.array_equal(pixels_of(seed), found)]
        return seed


def on_disk(place: Place) -> Tensor:
    """Return the samples whose pixels lie in the state folder."""
    index, _ = shelf_module._read(place.state / "index.fcil", shelf_module.SiteIndex)
    assert {path.name for path in place.state.iterdir()} == {"index.fcil", *(file.name for file in index.images)}
    return shelf_module.SampleStore(place.state).read(index)[0].sort().values


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=20)


def history(place: Place, site: SiteData) -> None:
    """Play two rounds in which files arrive, and retire some of them."""
    with suppress(FederationError):  # once what it held is retired
        site.freeze(1, NOTHING)
    place.add("bee", 100, 101)
    site.freeze(2, torch.arange(6))
    site.retire(torch.tensor([5]))


def test_a_kill_at_any_moment_leaves_a_state_that_opens_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, unlink = shelf_module.write_sealed, Path.unlink
    steps, survived = 0, False
    while not survived:
        place = Place(tmp_path / str(steps), hold_out=0.2)
        place.add("ant", *range(6))
        left = steps

        def dies(when: bool) -> None:
            nonlocal left
            left -= when
            if left < 0:
                raise Killed

        def dying_write(*arguments: Any, dies: Any = dies, **more: Any) -> str:
            dies(True)
            return write(*arguments, **more)

        def dying_unlink(path: Path, missing_ok: bool = False, dies: Any = dies) -> None:
            dies(path.suffix == ".fcil")
            unlink(path, missing_ok=missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(shelf_module, "write_sealed", dying_write)
            patch.setattr(Path, "unlink", dying_unlink)
            try:
                history(place, place.open())
                survived = True
            except Killed:
                pass
        site = place.open()
        assert torch.equal(on_disk(place), site.samples.held)
        history(place, site)
        assert site.class_names == ("ant", "bee")
        assert {name: counts.held_out for name, counts in class_counts(site).items()} == {"ant": 1, "bee": 1}
        assert class_counts(site)["ant"].in_use == 1
        steps += 1
    assert steps >= 7  # an index; twice images and an index; the rewritten file, an index, and the removal


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, hold_out=0.0)
    place.add("ant", 1, 2)
    site = place.open()
    first = site.freeze(0, NOTHING)
    place.add("ant", 3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for failing in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{failing}", full)
            with pytest.raises(shelf_module.FileError, match="No space left on device"):
                site.freeze(1, first)
        assert len(site.samples) == 2
        assert on_disk(place).tolist() == [0, 1]
    second = site.freeze(1, first)
    assert second.tolist() == [2]
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(shelf_module.FileError):
            site.retire(NOTHING)
    assert site.samples.held.tolist() == on_disk(place).tolist() == [0, 1, 2]
