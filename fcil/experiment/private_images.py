"""The images or clients that differential privacy takes, for plans and for warnings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.config import Config
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.client_privacy import ClientPrivacy
from fcil.methods.noisy_training import planned_fit
from fcil.methods.private_sums import NoisyRelease
from fcil.models.classifier import HEAD_ROWS, PROJECTION, grow, initial_state

USELESS = 40.0  # lengths of noise in one of what it hides; on digits a head learns at 21, a network not at 42
FEW = "of which noise leaves little; raise privacy.epsilon, or take part with more clients or images"


def privacy_notes(config: Config, scenario: Scenario, labels: Tensor, everything: bool = False) -> list[str]:
    """Return what privacy.epsilon takes, where it is not there or `everything` is told.

    Raise a ConfigError where several clients hold an image: each would send it, and its epsilon would add up.
    """
    if not config.privacy.on:
        return []
    if config.privacy.unit == "image" and config.scenario.is_shared:
        raise ConfigError(
            "scenario.split: found 'shared', should be 'disjoint' with privacy.epsilon: an image that several clients "
            "hold is sent, and spends epsilon, as many times"
        )
    if config.method.private != "sums" or config.privacy.unit == "client":
        return noise_notes(config, scenario, everything)
    wanted, sent = images_wanted(config, scenario), images_sent(config, scenario, labels)
    told = f"privacy.epsilon {config.privacy.epsilon:g} takes about {wanted} images of a class, all clients together"
    if sent < wanted:
        return [f"{told}, for four fifths of the accuracy; {sent} are sent, {FEW}"]
    return [f"{told}, for four fifths of the accuracy; {sent} are sent"] if everything else []


def noise_notes(config: Config, scenario: Scenario, everything: bool) -> list[str]:
    """Return how much longer the noise of training is than what it hides, where that is too long or if `everything`."""
    if config.privacy.unit == "client":
        hidden = ClientPrivacy.of(config.privacy, config.scenario.participants, scenario)
        assert hidden is not None
        noise, summed, what = hidden.noise, float(hidden.expected), "mean update of a round"
        remedy = "take part with hundreds of clients"
    else:
        images, clients = _images_of_a_client(scenario), len(scenario.participants(0))
        fit = planned_fit(config.privacy, images, config.train)
        noise, summed, what = fit.noise, len(images) / fit.steps * math.sqrt(clients), "gradient of a step"
        remedy = "take part with more images"
    ratio = noise * math.sqrt(_parameters(config, scenario)) / summed
    told = (
        f"privacy.epsilon {config.privacy.epsilon:g} takes noise about {ratio:.2g} times as long as the {what} can be"
    )
    if ratio > USELESS:
        return [f"{told}, which leaves nothing to learn; raise privacy.epsilon, {remedy}, or train the head alone"]
    return [told] if everything else []


def _images_of_a_client(scenario: Scenario) -> Tensor:
    """Return as many indices as the median participant has images when tasks begin."""
    starts = [scenario.start(task) for task in range(len(scenario.tasks))]
    held = [len(scenario.holding(start, who)) for start in starts for who in scenario.participants(start)]
    return torch.arange(max(int(torch.tensor(held).median()), 1))


def _parameters(config: Config, scenario: Scenario) -> int:
    """Return how many numbers are trained in the end; the channels of images hardly matter."""
    model = grow(initial_state(config.model.without_file(), 3, 0), sum(map(len, scenario.tasks)), 0)
    return sum(tensor.numel() for tensor in config.model.trained(model).values())


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
