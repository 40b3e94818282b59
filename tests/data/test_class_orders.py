from __future__ import annotations

import numpy as np
import pytest

from fcil.core.errors import ConfigError
from fcil.data.scenario.class_orders import class_order

ICARL = (87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49)
SHUFFLE = (68, 56, 78, 8, 23, 84)


@pytest.mark.parametrize(("name", "start"), [("icarl", ICARL), ("shuffle-1993", SHUFFLE)])
def test_published_orders_start_as_published_and_name_every_class(name: str, start: tuple[int, ...]) -> None:
    order = class_order(name, 100)
    assert order[: len(start)] == start
    assert sorted(order) == list(range(100))


def test_the_plain_shuffle_is_defined_for_any_number_of_classes() -> None:
    assert list(class_order("shuffle-1993", 200)) == np.random.RandomState(1993).permutation(200).tolist()


def test_natural_is_ascending() -> None:
    assert class_order("natural", 7) == (0, 1, 2, 3, 4, 5, 6)


def test_a_list_is_taken_as_it_is() -> None:
    assert class_order([3, 1, 2], 10) == (3, 1, 2)


def test_icarls_order_is_refused_for_other_than_a_hundred_classes() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.class_order.*icarl.*100 classes.*10"):
        class_order("icarl", 10)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.class_order.*alphabetical"):
        class_order("alphabetical", 10)
