import gc
import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fcil.core.messages import Stream, derive_seed, generator

PINNED = 2307260542241432142

purposes = st.lists(st.text(max_size=5) | st.integers(), max_size=4).map(tuple)


@given(st.integers(), purposes)
def test_a_seed_fits_into_63_bits_and_repeats(root: int, purpose: tuple[str | int, ...]) -> None:
    seed = derive_seed(root, *purpose)
    assert 0 <= seed < 2**63
    assert derive_seed(root, *purpose) == seed


@given(st.tuples(st.integers(), purposes), st.tuples(st.integers(), purposes))
def test_different_purposes_give_different_seeds(
    left: tuple[int, tuple[str | int, ...]], right: tuple[int, tuple[str | int, ...]]
) -> None:
    assert (derive_seed(left[0], *left[1]) == derive_seed(right[0], *right[1])) == (left == right)


def test_the_parts_of_a_purpose_cannot_be_confused() -> None:
    variants = [
        (2021,),
        (2022,),
        (2021, "a"),
        (2021, "a", "b"),
        (2021, "b", "a"),
        (2021, "ab"),
        (2021, "a,b"),
        (2021, 'a","b'),
        (2021, "7"),
        (2021, 7),
        (2021, -7),
        (2021, ""),
        (20, 21),
    ]
    assert len({derive_seed(*variant) for variant in variants}) == len(variants)


Split = tuple[int, tuple[str | int, ...], tuple[str | int, ...]]


@given(st.tuples(st.integers(), purposes, purposes), st.tuples(st.integers(), purposes, purposes))
def test_a_stream_gives_the_seeds_of_its_purpose_and_of_no_other(left: Split, right: Split) -> None:
    """However root, purpose and what follows are cut: two streams agree where the whole is the same, nowhere else."""
    seeds = [Stream(root, *purpose).seed(*more) for root, purpose, more in (left, right)]
    wholes = [(root, *purpose, *more) for root, purpose, more in (left, right)]
    assert seeds == [derive_seed(*whole) for whole in wholes]
    assert (seeds[0] == seeds[1]) == (wholes[0] == wholes[1])


def test_a_stream_can_be_asked_again_and_again() -> None:
    stream = Stream(2021, "participants")
    assert [stream.seed(7), stream.seed(8), stream.seed(7)] == [
        derive_seed(2021, "participants", number) for number in (7, 8, 7)
    ]


def test_a_stream_holds_neither_its_root_nor_its_purpose() -> None:
    stream = Stream(20212021, "participants")
    kept = list(vars(stream).values())
    assert [hasattr(value, "hexdigest") for value in kept] == [True], "a hash and nothing else"
    assert not any(isinstance(found, (int, str, bytes)) for found in gc.get_referents(*kept))
    with pytest.raises(TypeError):
        kept[0].__reduce_ex__(2)  # a hash cannot be taken apart or sent


def test_the_derivation_is_pinned() -> None:
    expected = int.from_bytes(hashlib.sha256(b'[2021,"participants",7]').digest()[:8], "big") >> 1
    assert expected == PINNED
    assert derive_seed(2021, "participants", 7) == PINNED


def test_bits_of_derived_seeds_are_balanced() -> None:
    seeds = [derive_seed(0, "round", number) for number in range(2000)]
    for bit in range(63):
        assert 850 < sum(seed >> bit & 1 for seed in seeds) < 1150


def test_a_generator_repeats_and_leaves_the_global_one_alone() -> None:
    before = torch.random.get_rng_state()
    first = torch.rand(5, generator=generator(11))
    assert torch.equal(first, torch.rand(5, generator=generator(11)))
    assert not torch.equal(first, torch.rand(5, generator=generator(12)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.rand(1, generator=generator(2**63 - 1)).shape == (1,)
