"""Secret sharing against values computed by hand, and its two promises."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fcil.federation.masking.shares import PRIME, SHARE, at_zero, join, polynomial, split


def test_a_polynomial_of_degree_two_by_hand() -> None:
    """1234 + 166 x + 94 x^2 modulo 1613: the points are 1494, 329, 965, 176, 1188 and 775."""
    points = {x: polynomial([1234, 166, 94], x, 1613) for x in range(1, 7)}
    assert points == {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
    assert {at_zero({x: points[x] for x in chosen}, 1613) for chosen in combinations(points, 3)} == {1234}
    assert at_zero({2: 329, 4: 176}, 1613) != 1234


def test_the_field_is_the_smallest_that_holds_all_secrets() -> None:
    """Fermat's test to several bases, which no number below fails to fail."""

    def is_probably_prime(number: int) -> bool:
        return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11))

    assert is_probably_prime(PRIME)
    assert not any(is_probably_prime(number) for number in range(2**256 + 1, PRIME))


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_shares_as_many_as_the_threshold_give_the_secret(secret: bytes, data: st.DataObject) -> None:
    parties = data.draw(st.integers(1, 9))
    threshold = data.draw(st.integers(1, parties))
    shares = split(secret, threshold, range(1, parties + 1))
    assert {len(share) for share in shares.values()} == {SHARE}
    chosen = data.draw(st.permutations(sorted(shares)))[:threshold]
    assert join({place: shares[place] for place in chosen}) == secret
    if threshold > 1:
        assert join({place: shares[place] for place in chosen[1:]}) != secret


def test_shares_of_one_secret_differ_every_time() -> None:
    assert split(bytes(32), 2, [1]) != split(bytes(32), 2, [1])
