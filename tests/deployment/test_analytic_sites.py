"""The analytic method between real sites: folders, lost answers, restarts and backups; each picture counts once."""

from __future__ import annotations

import shutil
from typing import Any

from support.analytic import assert_the_head_of_one_place
from support.command import fcil
from support.consortium import SITES, Build, Consortium

PICTURES = 9


def stocked(made: Consortium, name: str, *sites: str, first: int = 0) -> None:
    for site in sites:
        start = 100 * SITES.index(site) + first
        made.add(site, name, *range(start, start + PICTURES))


def test_answers_that_are_lost_and_a_server_and_a_site_that_start_again_count_every_picture_once(build: Build) -> None:
    made = build("analytic", rounds=7)
    stocked(made, "ant", "aachen", "berlin")
    stocked(made, "bee", "cork")

    acts = {
        1: lambda: made.wire.deaf.update({0, 1}),  # what they sent in round 2 never arrives
        3: lambda: made.add("aachen", "ant", *range(50, 55)),
        4: lambda: made.wire.deaf.add(0),
        5: lambda: made.reopen("berlin"),
    }
    records = made.play(acts)
    assert made.wire.losses == 3
    assert sum(record.reports for record in records) == 4, "three first batches, and the pictures that came later"
    assert_the_head_of_one_place(made)


def test_a_site_whose_state_folder_is_restored_from_a_backup_stops_and_says_so(build: Build) -> None:
    made = build("analytic", rounds=6)
    stocked(made, "ant", "aachen", "berlin")
    stocked(made, "bee", "cork")
    backup = made.place / "backup"

    def restore() -> None:
        made.parties[0].close()
        shutil.rmtree(made.state("aachen"))
        shutil.copytree(backup, made.state("aachen"))
        made.join("aachen")

    acts = {1: lambda: shutil.copytree(made.state("aachen"), backup), 4: restore}
    records = made.play(acts)
    assert [record.failures for record in records[:4]] == [[]] * 4
    assert all([failure["client"] for failure in record.failures] == [0] for record in records[4:])
    assert any("restore the newest state of this client" in line for line in made.said[0])
    assert made.run is not None
    kept: Any = made.run.state.server.role_state
    trained = PICTURES - 1  # of each class one picture is held out
    assert sorted(kept.counts.tolist()) == [trained, 2 * trained]


def test_a_round_that_fails_at_the_server_is_repeated_without_counting_anybody_twice(build: Build) -> None:
    made = build("analytic", "federation.min_participants=3", rounds=5)
    stocked(made, "ant", *SITES[:3])
    records = made.play({1: lambda: made.wire.deaf.add(2)})  # the others have answered, and are asked again
    assert made.wire.losses == 1
    assert any("is tried again" in warning for warning in made.warned)
    assert sum(record.reports for record in records) == 3
    assert_the_head_of_one_place(made)


def test_a_server_that_is_restored_from_its_previous_checkpoint_is_sent_what_it_lacks(build: Build) -> None:
    made = build("analytic", rounds=6)
    stocked(made, "ant", *SITES[:3])
    copies = made.place / "copies"

    def restore() -> None:
        assert made.run is not None
        made.run.close()
        shutil.rmtree(made.place / "run")
        shutil.copytree(copies, made.place / "run")
        made.run = None

    for number, _ in enumerate(made.rounds(), start=1):
        if number == 1:
            assert made.run is not None
            shutil.copytree(made.run.folder, copies)
        if number == 2:
            break
    restore()
    made.serve()
    records = list(made.rounds())
    assert all(not record.failures for record in records)
    assert_the_head_of_one_place(made)


def test_a_site_takes_back_a_class_and_single_pictures_even_after_it_has_got_others(build: Build) -> None:
    made = build("analytic", rounds=8)
    stocked(made, "ant", *SITES[:2])
    stocked(made, "bee", "aachen", "cork")
    taken = [f"ant/ant-{100 + number:03}.png" for number in (1, 2, 3)]

    def forget(name: str, *words: str) -> str:
        made.parties[SITES.index(name)].close()
        done = fcil("forget", made.state(name), *words)
        assert done.returncode == 0, done.stderr
        made.join(name)
        return done.stdout

    said = []
    acts = {
        2: lambda: made.add("aachen", "cow", *range(20, 24)),  # the first pictures are no newest arrival any more
        4: lambda: said.append(forget("aachen", "--class", "bee")),
        5: lambda: said.append(forget("berlin", *(word for file in taken for word in ("--sample", file)))),
        6: lambda: made.wire.deaf.add(1),
    }
    records = made.play(acts)
    assert not any(record.failures for number, record in enumerate(records, 1) if number != 7)
    held_out = {f"{made.site(name).data._index.origins[sample]}" for name in ("aachen", "berlin")
                for sample in made.site(name).data.hold_out_indices.tolist()}  # fmt: skip
    counts = [PICTURES - 1, len(set(taken) - held_out)]
    assert said == [f"{count} images are withdrawn in the next rounds of this site\n" for count in counts]
    bees = {f"aachen/bee/bee-{number:03}.png" for number in range(PICTURES)}
    assert_the_head_of_one_place(made, bees | {f"berlin/{file}" for file in taken})


def test_a_site_says_what_it_cannot_take_back(build: Build) -> None:
    made = build("analytic", rounds=2)
    stocked(made, "ant", *SITES[:3])
    made.play()
    running = fcil("forget", made.state("aachen"), "--all")
    assert (running.returncode, "is in use by another process" in running.stderr) == (2, True)
    made.parties[0].close()
    for words, said in (
        ((), "name a --class, a --sample or --all, and no --client"),
        (("--client", "1", "--all"), "name a --class, a --sample or --all, and no --client"),
        (("--class", "bee"), "--class bee: this site has no such class; it has ant"),
        (("--sample", "ant/no.png"), "--sample ant/no.png: no image of this site came from that file"),
    ):
        done = fcil("forget", made.state("aachen"), *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
    assert fcil("forget", made.state("aachen"), "--all").stdout.startswith(f"{PICTURES - 1} images")
    assert fcil("forget", made.state("aachen"), "--all").stdout.startswith("0 images")


def test_sites_train_the_last_stage_first_and_then_their_sums_are_those_of_one_place(build: Build) -> None:
    adapt = ("method.adapt=last-stage", "method.adapt_rounds=2", "federation.max_update=1000")
    made = build("analytic", *adapt, rounds=5)
    stocked(made, "ant", *SITES[:3])
    stocked(made, "bee", *SITES[:2])
    records = made.play()
    assert not any(record.failures for record in records)
    assert [record.reports for record in records] == [0, 3, 3, 3, 0], (
        "classes are announced, two rounds train, one sums"
    )
    assert_the_head_of_one_place(made)
