"""Lists of choices: `fcil.list_methods`, `fcil.list_networks` and `fcil.list_presets`."""

from __future__ import annotations

from fcil.experiment.presets import listings
from fcil.methods import methods
from fcil.models.registry import networks


def list_methods() -> dict[str, str]:
    """Return all methods, ours and registered ones: what each is, by its name.

    >>> list_methods()["lwf"]
    'distillation of the old outputs without any memory (ECCV 2016)'
    """
    return {name: method.summary for name, method in methods().items()}


def list_networks() -> dict[str, str]:
    """Return all networks, ours and registered ones: what each is, by its name.

    >>> list_networks()["resnet18"]
    'ResNet-18 as in the paper, for images of any size'
    """
    return {name: network.summary for name, network in networks().items()}


def list_presets() -> dict[str, str]:
    """Return the experiments that come with the package: what each is, by its name.

    >>> list_presets()["digits"].partition(";")[0]
    'ten handwritten digits in five tasks'
    """
    return {listing.name: listing.description for listing in listings()}
