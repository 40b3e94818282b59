"""The images that differential privacy takes, and those that clients send, for plans and for warnings."""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config
from fcil.federation.aggregation import AGGREGATORS
from fcil.methods.private_sums import NoisyRelease
from fcil.models.classifier import HEAD_ROWS, PROJECTION, initial_state

FEW = "of which noise leaves little; raise privacy.epsilon, or take part with more clients or images"


def privacy_notes(config: Config, scenario: Scenario, labels: Tensor, everything: bool = False) -> list[str]:
    """Return how many images of a class privacy.epsilon takes, where there are fewer or `everything` is told.

    Raise a ConfigError where several clients hold an image: each would send it, and its epsilon would add up.
    """
    if not config.privacy.on:
        return []
    if config.scenario.is_shared:
        raise ConfigError(
            "scenario.split: found 'shared', should be 'disjoint' with privacy.epsilon: an image that several clients "
            "hold is sent, and spends epsilon, as many times"
        )
    wanted, sent = images_wanted(config, scenario), images_sent(config, scenario, labels)
    told = f"privacy.epsilon {config.privacy.epsilon:g} takes about {wanted} images of a class, all clients together"
    if sent < wanted:
        return [f"{told}, for four fifths of the accuracy; {sent} are sent, {FEW}"]
    return [f"{told}, for four fifths of the accuracy; {sent} are sent"] if everything else []


def images_wanted(config: Config, scenario: Scenario) -> int:
    """Return the images of a class that keep about four fifths of the accuracy without noise."""
    hidden = AGGREGATORS[config.federation.aggregator].build.hides
    release = NoisyRelease(config.privacy)
    return release.images_wanted(_features(config), len(scenario.participants(0)), hidden)


def images_sent(config: Config, scenario: Scenario, labels: Tensor) -> int:
    """Return the images of the median class that clients send in the releases of its task."""
    counts = []
    for task, classes in enumerate(scenario.tasks):
        start = scenario.start(task)
        rounds = range(start, min(start + config.privacy.releases, scenario.start(task + 1)))
        held = [scenario.holding(number, who) for number in rounds for who in scenario.participants(number)]
        found = torch.bincount(labels[torch.unique(torch.cat(held))], minlength=int(labels.max()) + 1)
        counts.append(found[list(classes)])
    return int(torch.cat(counts).median())


def _features(config: Config) -> int:
    """Return how many numbers the head sees; the channels of images do not matter to it."""
    model = initial_state(config.model.without_file(), 3, 0)
    return int(model[HEAD_ROWS[0]].shape[-1]) if PROJECTION not in model else int(model[PROJECTION].shape[1])
