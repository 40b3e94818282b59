from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fcil.federation.class_catalogue import Catalogue


def test_new_ids_get_the_next_outputs_in_the_order_of_their_numbers() -> None:
    first = Catalogue().with_classes(["100", "20", "100"], 0, 0)
    assert (first.classes, first.blocks, first.began) == (("20", "100"), (2,), 0)
    second = first.with_classes({"10", "5", "20"}, 4, 0)
    assert (second.classes, second.blocks, second.began) == (("20", "100", "5", "10"), (2, 4), 4)


def test_ids_that_are_no_numbers_come_by_length_and_text() -> None:
    digests = ["f" * 64, "0" * 64]
    assert Catalogue().with_classes([*digests, "zebra", "ant", "Ω"], 0, 0).classes == (
        "Ω",
        "ant",
        "zebra",
        "0" * 64,
        "f" * 64,
    )


def test_known_ids_change_nothing() -> None:
    catalogue = Catalogue().with_classes(["1", "2"], 3, 0)
    assert catalogue.with_classes(["2", "1"], 9, 0) is catalogue
    assert catalogue.with_classes([], 9, 5) is catalogue


def test_a_growth_soon_after_a_block_began_widens_it() -> None:
    catalogue = Catalogue().with_classes("1", 0, 2).with_classes("2", 5, 2)
    at_the_limit = catalogue.with_classes("3", 7, 2)
    assert (at_the_limit.blocks, at_the_limit.began) == ((1, 3), 5)
    beyond = catalogue.with_classes("3", 8, 2)
    assert (beyond.blocks, beyond.began) == ((1, 2, 3), 8)


def test_merging_counts_from_the_beginning_of_the_block_not_from_its_last_growth() -> None:
    catalogue = Catalogue().with_classes("1", 0, 2).with_classes("2", 2, 2).with_classes("3", 3, 2)
    assert catalogue.blocks == (2, 3)


def test_a_moment_tells_the_age_of_the_newest_block_and_the_width_before_it() -> None:
    catalogue = Catalogue().with_classes(["7", "8"], 1, 0)
    context = catalogue.context(3)
    assert (context.round, context.catalogue, context.blocks, context.rounds_since_growth) == (3, ("7", "8"), (2,), 2)
    assert (context.classes, context.old_classes) == (2, 0)
    grown = catalogue.with_classes(["1", "2", "3"], 4, 0).context(4)
    assert (grown.classes, grown.old_classes, grown.rounds_since_growth) == (5, 2, 0)


def test_before_any_class_a_moment_has_none() -> None:
    context = Catalogue().context(0)
    assert (context.classes, context.old_classes, context.blocks) == (0, 0, ())


@given(st.lists(st.sets(st.integers(0, 12), max_size=4), max_size=12), st.integers(0, 3))
def test_outputs_never_move_and_blocks_add_up(announcements: list[set[int]], merge_rounds: int) -> None:
    catalogue = Catalogue()
    starts: list[int] = []
    for number, announced in enumerate(announcements):
        before = catalogue
        catalogue = catalogue.with_classes(map(str, announced), number, merge_rounds)
        fresh = announced - set(map(int, before.classes))
        assert catalogue.classes == (*before.classes, *map(str, sorted(fresh)))
        if fresh and not (starts and number - starts[-1] <= merge_rounds):
            starts.append(number)
        assert len(catalogue.blocks) == len(starts)
        assert catalogue.began == (starts[-1] if starts else 0)
        assert list(catalogue.blocks) == sorted(set(catalogue.blocks))
        assert (catalogue.blocks[-1] if catalogue.blocks else 0) == len(catalogue.classes)
