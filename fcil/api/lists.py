"""Lists of choices: `fcil.list_methods`, `fcil.list_networks` and `fcil.list_presets`."""

from __future__ import annotations

from fcil.experiment.presets import listings
from fcil.methods import methods
from fcil.models.registry import networks


def list_methods() -> dict[str, str]:
    """Return the description of each method by its name, registered methods included.

    >>> list_methods()["lwf"]
    'distillation of the old outputs without any memory (ECCV 2016)'
    """
    return {name: method.summary for name, method in methods().items()}


def list_networks() -> dict[str, str]:
    """Return the description of each network by its name, registered networks included.

    >>> list_networks()["resnet18"]
    'ResNet-18 as in the paper, for images of any size'
    """
    return {name: network.summary for name, network in networks().items()}


def list_presets() -> dict[str, str]:
    """Return the description of each preset by its name.

    >>> list_presets()["digits"].partition(";")[0]
    'ten handwritten digits in five tasks'
    """
    return {listing.name: listing.description for listing in listings()}
