"""A site's growing folder: what is taken in, held out, frozen and retired, and what is on the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from support.folders import NOTHING, SHAPE, Counts, Place, age, class_counts, class_id, pixels_of
from support.photos import ORIENTATIONS, is_scene, write_photo
from torch import Tensor

import fcil.deployment.client.ingest as intake_module
import fcil.deployment.client.sample_store as shelf_module
from fcil.core.errors import ConfigError, DamagedError, DataError, FederationError, FileError
from fcil.deployment.client.image_folder import SiteData
from fcil.deployment.client.ingest import held_out_of


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, hold_out=0.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are read from now on."""
    names: list[str] = []
    read = intake_module.read_content

    def noting(path: Path, entry: Any) -> bytes:
        names.append(entry.name)
        return read(path, entry)

    monkeypatch.setattr(intake_module, "read_content", noting)
    return names


def seeds_in(site: SiteData, indices: Tensor, seeds: range) -> set[int]:
    """Return which of the painted pictures samples are."""
    found = {image.numpy().tobytes() for image in site.samples.pixels(indices)}
    return {seed for seed in seeds if np.ascontiguousarray(pixels_of(seed)).tobytes() in found}


def on_disk(place: Place) -> Tensor:
    """Return the samples whose pixels lie in the state folder, from the files themselves."""
    store = shelf_module.SampleStore(place.state)
    index, _ = shelf_module._read(place.state / "index.fcil", shelf_module.SiteIndex)
    assert {path.name for path in place.state.iterdir()} == {"index.fcil", *(file.name for file in index.images)}
    return store.read(index)[0].sort().values


# --- taking in ----------------------------------------------------------------------------------------------------


def test_a_sites_photos_are_turned_upright_by_their_exif_orientation(tmp_path: Path) -> None:
    place = Place(tmp_path, hold_out=0.0)
    for orientation in ORIENTATIONS:
        path = write_photo(place.data / "ant" / f"{orientation}.jpg", orientation)
        age(path, 60)
    site = SiteData.open(place.state, place.data, (3, 32, 32), class_id, 0.0)
    held = site.freeze(0, NOTHING)
    assert len(held) == len(ORIENTATIONS)
    assert all(is_scene(image.numpy()) for image in site.samples.pixels(held))


def test_an_empty_folder_a_class_without_images_and_one_of_a_single_image_are_fine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    site = place.open()
    assert site.freeze(0, NOTHING).tolist() == []
    (place.data / "ant").mkdir()
    assert site.freeze(1, NOTHING).tolist() == []
    assert site.samples.ids == ()
    place.add("bee", 1)
    assert site.freeze(2, NOTHING).tolist() == [0]
    assert (site.samples.ids, site.class_names) == (("id of bee",), ("bee",))
    assert class_counts(site) == {"bee": Counts(1, 0, 0)}
    assert site.hold_out()[0].shape == (0, *SHAPE)
    assert site.drain_warnings() == ()


def test_classes_have_labels_in_the_order_in_which_they_were_first_seen(place: Place) -> None:
    site = place.open()
    place.add("cow", 1)
    place.add("bee", 2)
    first = site.freeze(0, NOTHING)
    place.add("ant", 3)
    later = site.freeze(1, first)
    assert site.class_names == ("bee", "cow", "ant")
    assert site.samples.ids == tuple(map(class_id, site.class_names))
    assert site.samples.labels(torch.cat([first, later])).tolist() == [0, 1, 2]


def test_hidden_ones_and_other_endings_are_ignored_and_folders_below_belong_to_their_class(place: Place) -> None:
    place.add("ant", 1)
    place.add("ant/deep/er", 2)
    place.add("ant/.hidden", 3)
    place.add(".ant", 4)
    place.add("ant", 5)[0].rename(place.data / "ant" / ".5.png")
    place.add("ant", 6)[0].rename(place.data / "ant" / "6.txt")
    place.add("ant", 7)[0].rename(place.data / "outside.png")
    place.add("ant", 8)[0].rename(place.data / "ant" / "8.PNG")
    (place.data / "ant" / "folder.png").mkdir()
    site = place.open()
    assert seeds_in(site, site.freeze(0, NOTHING), range(10)) == {1, 2, 8}
    assert site.class_names == ("ant",)
    assert site.drain_warnings() == ()


def test_pictures_get_the_agreed_shape(tmp_path: Path) -> None:
    place = Place(tmp_path, hold_out=0.0)
    place.add("ant", 1)
    site = SiteData.open(place.state, place.data, (1, 4, 4), class_id, 0.0)
    assert site.samples.pixels(site.freeze(0, NOTHING)).shape == (1, 1, 4, 4)


def test_known_files_are_recognised_without_being_read(place: Place, reads: list[str]) -> None:
    place.add("ant", 1, 2)
    site = place.open()
    first = site.freeze(0, NOTHING)
    assert len(reads) == 2
    assert torch.equal(site.freeze(1, first), first)
    assert torch.equal(place.open().freeze(2, first), first)
    assert len(reads) == 2


def test_a_file_of_known_content_is_skipped_whatever_its_name(place: Place, reads: list[str]) -> None:
    path = place.add("ant", 1)[0]
    site = place.open()
    first = site.freeze(0, NOTHING)
    shutil.copy2(path, path.with_name("copy.png"))
    path.rename(path.with_name("moved.png"))
    for number in (1, 2):
        assert torch.equal(site.freeze(number, first), first)
    assert sorted(reads) == ["ant/1.png", "ant/copy.png", "ant/moved.png"]
    assert site.drain_warnings() == ()


@pytest.mark.parametrize("together", [True, False])
def test_the_same_content_under_a_second_class_is_left_out_with_one_warning(place: Place, together: bool) -> None:
    site, first = place.open(), place.add("ant", 1)[0]
    if not together:
        site.freeze(0, NOTHING)
    second = place.add("bee", 1)[0]
    for number in (1, 2):
        assert site.freeze(number, NOTHING).tolist() == [0]
    (warning,) = site.drain_warnings()
    assert warning == f"{second} is left out: it has the same content as {first}, which is of another class"
    assert site.class_names == ("ant",)
    assert place.open().freeze(3, NOTHING).tolist() == [0]


def test_new_content_under_a_known_name_is_a_new_sample(place: Place) -> None:
    path = place.add("ant", 1)[0]
    site = place.open()
    first = site.freeze(0, NOTHING)
    place.add("ant", 2)[0].replace(path)
    assert site.freeze(1, first).tolist() == [1]
    assert seeds_in(site, torch.tensor([0]), range(3)) == {1}
    assert seeds_in(site, torch.tensor([1]), range(3)) == {2}


def test_two_names_of_one_class_id_are_one_class(place: Place) -> None:
    place.add("Ant", 1)
    place.add("ant", 2)
    site = SiteData.open(place.state, place.data, SHAPE, str.lower, 0.0)
    assert len(site.freeze(0, NOTHING)) == 2
    assert (site.samples.ids, site.class_names) == (("ant",), ("Ant",))


# --- broken files -------------------------------------------------------------------------------------------------


def test_a_broken_image_is_left_out_with_one_warning_and_tried_again_once_it_changes(
    place: Place, reads: list[str]
) -> None:
    path = place.spoil("ant/bad.png")
    place.add("ant", 1)
    site = place.open()
    assert len(site.freeze(0, NOTHING)) == 1
    assert site.drain_warnings() == (f"{path} is left out: it is no image of a known format",)
    site = place.open()
    site.freeze(1, NOTHING)
    assert site.drain_warnings() == ()
    assert reads.count("ant/bad.png") == 1
    place.add("ant", 2)[0].replace(path)
    assert seeds_in(site, site.freeze(2, NOTHING), range(3)) == {1, 2}


def test_a_file_that_may_not_be_read_is_tried_again_once_it_may(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.add("ant", 1)[0]
    os.utime(path, (1, 1))
    site = place.open()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)  # rights do not bind the owner of all files
        found = intake_module.ingest(site._register, place.data, class_id, site._tell, site._tell_once)
        assert len(found[1]) == 0
        site._keep(found[0])
    assert site.drain_warnings() == (f"{path} is left out: Permission denied",)
    path.chmod(0o600)  # its content and its time stay as they were
    assert site.freeze(0, NOTHING).tolist() == [0]


def test_a_young_broken_file_may_still_become_whole(place: Place) -> None:
    whole = place.add("ant", 1)[0]
    content = whole.read_bytes()
    whole.unlink()
    path = place.spoil("ant/slow.png", content[:60], seconds=5)
    site = place.open()
    assert site.freeze(0, NOTHING).tolist() == []
    assert site.drain_warnings() == ()
    path.write_bytes(content)
    age(path, 5)
    assert site.freeze(1, NOTHING).tolist() == [0]
    ahead = place.spoil("ant/future.png", seconds=-(10**6))  # a wrong clock must not keep it waiting for ever
    site.freeze(2, NOTHING)
    assert site.drain_warnings() == (f"{ahead} is left out: it is no image of a known format",)


def test_a_file_that_is_being_written_is_given_time_to_settle(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, done = place.add("ant", 1, 2)
    content = slow.read_bytes()
    slow.write_bytes(content[:-20])  # what is missing is no pixel: it would decode
    waits: list[float] = []

    def writer(seconds: float) -> None:
        waits.append(seconds)
        slow.write_bytes(content)

    monkeypatch.setattr("time.sleep", writer)
    site = place.open()
    assert seeds_in(site, site.freeze(0, NOTHING), range(3)) == {2}
    assert 0 < waits[0] <= intake_module.SETTLED
    age(slow, 5)
    assert seeds_in(site, site.freeze(1, NOTHING), range(3)) == {1, 2}
    assert len(waits) == 1
    assert done.is_file()


def test_a_file_that_changes_while_it_is_read_waits_for_the_next_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, site = place.add("ant", 1)[0], place.open()
    read = intake_module.read_content

    def growing(found: Path, entry: Any) -> bytes:
        found.write_bytes(found.read_bytes() + b"more")
        age(found, 30)
        return read(found, entry)

    with monkeypatch.context() as patch:
        patch.setattr(intake_module, "read_content", growing)
        assert site.freeze(0, NOTHING).tolist() == []
    assert site.freeze(1, NOTHING).tolist() == [0]
    path.unlink()
    assert site.freeze(2, NOTHING).tolist() == [0]
    assert site.drain_warnings() == ()


def test_what_is_no_file_and_what_is_too_large_is_never_opened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.data / "ant").mkdir()
    pipe = place.data / "ant" / "pipe.png"
    os.mkfifo(pipe)
    os.utime(pipe, (1, 1))
    (place.data / "ant" / "dangling.png").symlink_to("nowhere")
    huge = place.spoil("ant/huge.png")
    monkeypatch.setattr("fcil.deployment.client.scan.LARGEST", 4)
    site = place.open()
    assert site.freeze(0, NOTHING).tolist() == []
    assert site.drain_warnings() == (
        f"{huge} is left out: it has 10 bytes, more than 4",
        f"{pipe} is left out: it is not a file",
    )


def test_a_folder_that_cannot_be_read_is_told_of_once_and_stops_nothing(place: Place) -> None:
    place.add("ant", 1)
    site = place.open()
    first = site.freeze(0, NOTHING)
    away = place.data.rename(place.data.with_name("away"))
    for number in (1, 2):
        assert torch.equal(site.freeze(number, first), first)
    (warning,) = site.drain_warnings()
    assert warning == f"{place.data} cannot be read as a folder: No such file or directory"
    away.rename(place.data)
    place.add("ant", 2)
    assert site.freeze(3, first).tolist() == [1]


# --- hold-out -----------------------------------------------------------------------------------------------------


def test_the_hold_out_is_drawn_from_what_arrives_and_never_trained_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    site, trained, total = place.open(), set[int](), 0
    for number, count in enumerate((1, 1, 12, 1, 1, 9)):
        seeds = range(total, total + count)
        place.add("ant", *seeds)
        total += count
        trained |= set(site.freeze(number, torch.arange(total)).tolist())
        held = site.hold_out_indices.tolist()
        assert len(held) == (max(1, round(0.1 * total)) if total > 1 else 0)
        assert trained.isdisjoint(held)
        assert len(trained) + len(held) == total
    assert [int(held) for held in site._index.held_out[:2]] == [0, 1]
    pixels, labels = site.hold_out()
    assert (len(pixels), labels.tolist()) == (2, [0, 0])
    again = place.open().hold_out()
    assert torch.equal(again[0], pixels)
    assert torch.equal(again[1], labels)


def test_the_hold_out_follows_from_contents_and_not_from_names(tmp_path: Path) -> None:
    found = []
    for name, order in (("one", 1), ("two", -1)):
        place = Place(tmp_path / name)
        for number, seed in enumerate(range(20)[::order]):
            place.add("ant", seed)[0].rename(place.data / "ant" / f"x{number:02}.png")
        site = place.open()
        site.freeze(0, NOTHING)
        found.append(site.samples.split.images)
    assert torch.equal(found[0], found[1])


def test_no_hold_out_if_none_is_asked_for(place: Place) -> None:
    place.add("ant", *range(10))
    site = place.open()
    assert len(site.freeze(0, NOTHING)) == 10
    assert len(site.hold_out()[0]) == 0


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.3, 0.5])
def test_the_rule_can_be_kept_however_files_come(fraction: float) -> None:
    for files in range(1, 200):
        assert 0 <= held_out_of(files + 1, fraction) - held_out_of(files, fraction) <= 1
        assert held_out_of(files, fraction) < files


# --- freezing -----------------------------------------------------------------------------------------------------


def test_a_frozen_round_stays_as_it_is_and_so_does_the_one_before(place: Place, reads: list[str]) -> None:
    place.add("ant", 1)
    site = place.open()
    first = site.freeze(3, NOTHING)
    place.add("ant", 2)
    assert torch.equal(site.freeze(3, NOTHING), first)
    second = site.freeze(5, first)
    assert (first.tolist(), second.tolist(), second.dtype) == ([0], [1], torch.int64)
    shutil.rmtree(place.data)
    place.data.mkdir()
    for again in (site, place.open()):
        assert torch.equal(again.freeze(3, NOTHING), first)
        assert torch.equal(again.freeze(5, NOTHING), second)
        assert seeds_in(again, torch.tensor([0, 1]), range(3)) == {1, 2}
        for number in (2, 4):
            with pytest.raises(
                FederationError, match=f"the server asks for round {number + 1}, but .* in round 4 and 6;"
            ):
                again.freeze(number, NOTHING)
    site.freeze(6, second)
    with pytest.raises(FederationError, match="round 6 and 7"):
        site.freeze(3, NOTHING)
    assert len(reads) == 2


def test_a_round_whose_images_are_gone_is_refused_and_not_played_on_zeros(place: Place) -> None:
    place.add("ant", 1)
    site = place.open()
    first = site.freeze(0, NOTHING)
    place.add("ant", 2)
    second = site.freeze(1, first)
    site.retire(NOTHING)
    assert torch.equal(site.freeze(1, NOTHING), second)
    with pytest.raises(FederationError, match="only what it held in round 2"):
        site.freeze(0, NOTHING)


def test_new_files_are_a_batch_of_their_own_once_the_role_uses_the_current_one(place: Place) -> None:
    site = place.open()
    place.add("ant", 1, 2)
    first = site.freeze(0, NOTHING)
    place.add("ant", 3)
    joined = site.freeze(1, first[:1])  # one of the first waits for its output
    assert joined.tolist() == [0, 1, 2]
    assert torch.equal(site.freeze(2, joined), joined)
    place.add("ant", 4)
    assert site.freeze(3, joined).tolist() == [3]


# --- retiring -----------------------------------------------------------------------------------------------------


def test_what_is_retired_leaves_memory_and_disk_and_is_never_read_again(tmp_path: Path, reads: list[str]) -> None:
    place = Place(tmp_path)
    paths = place.add("ant", *range(20))
    site = place.open()
    first = site.freeze(0, NOTHING)
    place.add("ant", 20)
    second = site.freeze(1, first)
    site.retire(first)
    assert len(on_disk(place)) == 21
    site.retire(first[1:])
    assert len(on_disk(place)) == 20, "a single image is reason enough to rewrite a file"
    site.retire(first[3:5])
    held = site.hold_out_indices
    kept = torch.cat([first[3:5], second, held]).sort().values
    assert torch.equal(on_disk(place), kept)
    assert torch.equal(site.samples.held, kept)
    assert class_counts(site) == {"ant": Counts(3, 16, 2)}
    for path in paths:  # as they were found, but not to be opened
        found = path.stat()
        path.write_bytes(bytes(found.st_size))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    count = len(reads)
    for again in (site, place.open()):
        assert torch.equal(again.freeze(2, first), second)
        assert torch.equal(again.samples.labels(torch.arange(21)), torch.zeros(21, dtype=torch.int64))
        assert torch.equal(again.samples.held, kept)
        assert again.drain_warnings() == ()
    assert len(reads) == count


def test_content_that_was_retired_stays_known(place: Place) -> None:
    path = place.add("ant", 1)[0]
    site = place.open()
    first = site.freeze(0, NOTHING)
    place.add("ant", 2)
    second = site.freeze(1, first)
    site.retire(NOTHING)
    shutil.copy2(path, path.with_name("again.png"))
    assert torch.equal(site.freeze(2, second), second)


def test_many_small_files_are_joined(place: Place) -> None:
    site, used = place.open(), NOTHING
    for number in range(80):
        place.add("ant", number)
        used = torch.cat([used, site.freeze(number, used)])
        site.retire(used)
        assert len(list(place.state.glob("images-*"))) <= shelf_module.CROWD + 1
    assert seeds_in(place.open(), used, range(80)) == set(range(80))


def test_a_large_intake_takes_several_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "IMAGES_LIMIT", 3 * 8 * 8 * 4)
    place.add("ant", *range(10))
    site = place.open()
    first = site.freeze(0, NOTHING)
    assert len(list(place.state.glob("images-*"))) == 3
    assert torch.equal(place.open().samples.pixels(first), site.samples.pixels(first))


# --- the state folder ---------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_the_state(place: Place) -> None:
    place.add("ant", 1, 2)
    place.open().freeze(0, NOTHING)
    assert place.state.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.state.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("shape", "hold_out", "name", "refusal"),
    [
        ((1, 8, 8), 0.0, class_id, r"images of shape \(3, 8, 8\), not \(1, 8, 8\); use that, or another state folder"),
        (SHAPE, 0.2, class_id, "a hold-out of 0.0, not 0.2; use that, or another state folder"),
        (SHAPE, 0.0, str.upper, "was begun with other class ids: ant is no longer id of ant"),
    ],
)
def test_a_state_that_was_begun_otherwise_is_refused(
    place: Place, shape: tuple[int, int, int], hold_out: float, name: Any, refusal: str
) -> None:
    place.add("ant", 1)
    place.open().freeze(0, NOTHING)
    with pytest.raises(FileError, match=refusal):
        SiteData.open(place.state, place.data, shape, name, hold_out)


def test_a_missing_folder_and_a_hold_out_out_of_range_are_refused(place: Place) -> None:
    with pytest.raises(DataError, match="elsewhere is not a folder; it should hold a folder of images for each class"):
        SiteData.open(place.state, place.data / "elsewhere", SHAPE, class_id)
    for fraction in (-0.1, 0.6, float("nan")):
        with pytest.raises(ConfigError, match=r"hold_out: found .*, should be from 0 to 0.5"):
            SiteData.open(place.state, place.data, SHAPE, class_id, fraction)
    (place.data / "file").touch()
    with pytest.raises(FileError, match="file cannot be used as a state folder: "):
        SiteData.open(place.data / "file", place.data, SHAPE, class_id)


@pytest.mark.parametrize("name", ["index.fcil", "images-000001.fcil"])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "another"])
def test_damage_is_told_in_a_sentence(place: Place, name: str, damage: str) -> None:
    place.add("ant", 1)
    site = place.open()
    place.add("bee", 2)
    site.freeze(1, site.freeze(0, NOTHING))
    path = place.state / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "another":
        others = [other for other in place.state.iterdir() if other.name not in (name, "index.fcil")]
        path.write_bytes((others or [place.state / "index.fcil"])[0].read_bytes())
    else:
        path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedError, match=str(path)) as caught:
        place.open()
    assert "\n" not in str(caught.value)
