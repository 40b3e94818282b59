"""Audits: an experiment is run once more, and attackers read what each party really holds.

Nobody trains on one training image in five, so that membership can be tested on images that are alike in all else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import generator
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.attackers import ProxyView, ServerView, Tap
from fcil.experiment.build import assemble
from fcil.experiment.config import Config
from fcil.experiment.kinds import prepared
from fcil.experiment.shadows import Watcher, canaries, shadows
from fcil.federation.diagnostics import PrototypeComparison
from fcil.federation.simulation import Simulation, SimulationState
from fcil.maths.calibration import area_under_curve
from fcil.maths.leakage import found_at

MOST_IMAGES = 4000  # of members, and of others
BATCH = 512
SURE, UNSURE = 0.9, 0.6  # areas under the curve: above, an attacker reads, or guesses better than a coin
LUCKY = 3.0  # standard deviations of a guess
RECOGNISED = 15.0  # dB
FALSE = 0.01  # false alarms
LEFT_OUT = 5  # one training image in so many is nobody's
KNOWN = "whether an image was trained on"


@dataclass(frozen=True)
class Finding:
    """One figure of an audit, with its value for an attacker who guesses, and what it says."""

    party: str
    what: str
    value: float | None
    chance: float | None
    verdict: str


@dataclass(frozen=True)
class Audit:
    """All findings, and prototypes beside the rebuilt images."""

    findings: tuple[Finding, ...]
    prototypes: tuple[PrototypeComparison, ...]

    def document(self) -> dict[str, Any]:
        """Return the findings as plain JSON values."""
        return {"findings": [vars(finding) for finding in self.findings]}


def audit(config: Config, source: Source, models: int = 0) -> Audit:
    """Play an experiment and attack it, also with as many shadow models and with canaries if there are any."""
    if config.attack.on:
        raise ConfigError("attack.name: should be absent: an audit has attackers of its own")
    source, left_out = without_some(config, source)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    simulation = assemble(config, source, "serial", scenario).simulation
    tap, proxy = Tap(simulation), ProxyView()
    tapped, state = replace(simulation, engine=tap), simulation.start()
    watcher = Watcher(joined(source.train, left_out))
    members = [torch.empty(0, dtype=torch.int64)]
    try:
        for found, record in tapped.rounds(state):
            state = found
            proxy.look(tapped)
            if record.ends_task and models:
                watcher.look(tapped, found, record.task)
            members += [scenario.holding(record.round - 1, client) for client in record.participants]
    finally:
        tap.close()
    rows = torch.unique(torch.cat(members))
    findings = [*of_server(tap.view), *of_proxy(proxy)]
    findings += of_membership(tapped, state, source.train.select(rows), left_out)
    if models:
        everything = replace(source, train=watcher.images)
        scores = shadows(config, everything, -(-models // 2)).scores(watcher.sure)
        findings += of_shadows(scores[rows], scores[len(source.train) :])
        findings.append(of_canaries(config, canaries(config, everything, LEFT_OUT)))
    return Audit(tuple(findings), tuple(proxy.items))


def without_some(config: Config, source: Source) -> tuple[Source, Split]:
    """Return the data without one training image in five of each class, and these."""
    whole = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    source, order = prepared(config, source, whole), torch.randperm(len(source.train), generator=generator(config.seed))
    out = torch.zeros(len(order), dtype=torch.bool)
    for label in range(source.classes):
        rows = order[source.train.labels[order] == label]
        out[rows[: len(rows) // LEFT_OUT]] = True
    kept, others = (source.train.select(rows.nonzero().squeeze(1)) for rows in (~out, out))
    return replace(source, train=kept, raw=None), others


def joined(one: Split, other: Split) -> Split:
    """Return the images of both, in this order."""
    return Split(torch.cat([one.images, other.images]), torch.cat([one.labels, other.labels]))


def of_server(view: ServerView) -> list[Finding]:
    """Return what reports tell."""
    told, held = view.counted / max(view.reports, 1), sum(view.present)
    which = in_words(view.area, "which classes a client holds", held, len(view.present) - held)
    counts = "reads" if told > 0.5 else "is not told"
    return [
        Finding("server", f"classes of {view.reports} reports: AUC", view.area, 0.5, which),
        Finding(
            "server", "reports that tell the number of images", told, 0.0, f"{counts} how many images a client holds"
        ),
    ]


def in_words(area: float | None, what: str, positive: int, negative: int) -> str:
    """Return what an area under the curve says; one below a half is as good to an attacker as one above.

    By guessing alone its standard deviation is that of the rank sum of so many positives and negatives.
    """
    if area is None:
        return f"is not tested on {what}: all hold the same"
    gain, luck = abs(area - 0.5), math.sqrt((positive + negative + 1) / (12 * positive * negative))
    if gain < max(LUCKY * luck, UNSURE - 0.5):
        return f"does not learn {what}"
    return f"{'reads' if gain >= SURE - 0.5 else 'guesses'} {what}"


def of_proxy(view: ProxyView) -> list[Finding]:
    """Return what rebuilt images tell, if there are any."""
    if not view.items:
        return []
    count = len(view.items)
    ratio, alike = sum(one.to_original for one in view.items) / count, sum(view.similar) / count
    named, guess = sum(view.identified) / count, sum(view.guess) / count
    seen = "rebuilds private images" if ratio > RECOGNISED else "rebuilds no private image"
    which = f"{'tells' if named > 0.5 else 'rarely tells'} which image of its class it is"
    return [
        Finding("proxy", f"PSNR of {count} rebuilt images to the originals, dB", ratio, None, seen),
        Finding("proxy", "SSIM of these", alike, None, seen),
        Finding("proxy", "originals that are the nearest image of their class", named, guess, which),
    ]


def of_membership(simulation: Simulation, state: SimulationState, trained: Split, left_out: Split) -> list[Finding]:
    """Tell training images from those that were left out, by their loss under the final model."""
    others = left_out.select(torch.isin(left_out.labels, trained.labels).nonzero().squeeze(1))
    if not len(others) or not state.server.catalogue.classes:
        return []
    known, unknown = (-_losses(simulation, state, _some(split)) for split in (trained, others))
    return _membership("by loss", known, unknown)


def of_shadows(known: Tensor, unknown: Tensor) -> list[Finding]:
    """Tell training images from those that were left out, by scores that shadow models give them."""
    known, unknown = known[known.isfinite()], unknown[unknown.isfinite()]
    return _membership("by likelihood ratio", known, unknown) if len(known) and len(unknown) else []


def of_canaries(config: Config, bound: float) -> Finding:
    """Hold the epsilon that canaries show against the one that is claimed."""
    claimed = f"{config.privacy.most:g}" if config.privacy.on else "none"
    more = ", which is too little" if config.privacy.on and bound > config.privacy.most else ""
    words = f"learns as much as epsilon {bound:.2f} allows; claimed: {claimed}{more}"
    return Finding("another site", "epsilon that canaries show, at least", bound, 0.0, words)


def _membership(how: str, known: Tensor, unknown: Tensor) -> list[Finding]:
    """Return how well scores tell training images from others."""
    area, found = area_under_curve(known, unknown), found_at(known, unknown, FALSE)
    luck = math.sqrt(FALSE / len(known) + FALSE / len(unknown))
    sure = f"is sure of {'some' if found > FALSE + LUCKY * luck else 'no'} training images"
    words = in_words(area, KNOWN, len(known), len(unknown))
    return [
        Finding("another site", f"membership {how}: AUC", area, 0.5, words),
        Finding("another site", f"training images found {how}, one false alarm in a hundred", found, FALSE, sure),
    ]


def _some(split: Split) -> Split:
    """Return some of the images, the same each time."""
    return split.select(torch.randperm(len(split), generator=generator(0))[:MOST_IMAGES])


def _losses(simulation: Simulation, state: SimulationState, split: Split) -> Tensor:
    """Return the cross-entropy of each image under the model that predicts."""
    machine = simulation.server.machine
    net = machine.fixed_net(simulation.server.predictor(state.server))
    catalogue, ids = state.server.catalogue.classes, simulation.clients.samples.ids
    samples = Samples(split, ids)
    outputs = torch.tensor([catalogue.index(name) if name in catalogue else -1 for name in ids])[split.labels]
    found = []
    with torch.inference_mode():
        for part in torch.split((outputs >= 0).nonzero().squeeze(1), BATCH):
            logits = net(machine.inputs(net, samples, part)).cpu().double()
            found.append(F.cross_entropy(logits, outputs[part], reduction="none"))
    return torch.cat(found)
