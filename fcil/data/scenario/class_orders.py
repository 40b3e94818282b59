"""Class orders by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fcil.core.errors import ConfigError

SEED = 1993
NAMES = ("natural", "icarl", "shuffle-1993")
CIFAR_CLASSES, CIFAR_SAMPLES = 100, 500


def class_order(order: str | Sequence[int], classes: int) -> tuple[int, ...]:
    """Return the classes in the order in which tasks take them.

    >>> class_order("shuffle-1993", 100)[:3]
    (68, 56, 78)
    >>> class_order("icarl", 100)[:5]
    (87, 0, 52, 58, 44)
    """
    if not isinstance(order, str):
        return tuple(order)
    if order == "natural":
        return tuple(range(classes))
    if order not in NAMES:
        raise ConfigError(f"scenario.class_order: found {order!r}, should be {', '.join(NAMES)} or a list of classes")
    random = np.random.RandomState(SEED)  # the recipes are defined on numpy's legacy generator
    if order == "icarl":
        if classes != CIFAR_CLASSES:
            raise ConfigError(
                f"scenario.class_order: icarl is defined for {CIFAR_CLASSES} classes, this data set has {classes}; "
                "use shuffle-1993, natural or a list"
            )
        for _ in range(CIFAR_CLASSES):  # iCaRL's script shuffles the images of each class before the classes
            random.shuffle(np.arange(CIFAR_SAMPLES))
    numbers = np.arange(classes)
    random.shuffle(numbers)
    return tuple(numbers.tolist())
