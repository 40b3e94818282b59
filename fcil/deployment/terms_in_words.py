"""A federation's terms in words, for the people who decide whether a party joins."""

from __future__ import annotations

from fcil.core.errors import one_line
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.transport.messages import Terms
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.engines.base import Recipe
from fcil.federation.masking.messages import least_in_sum
from fcil.methods.privacy import not_covered

LISTED = 30  # columns that are named


def in_words(terms: Terms, recipe: Recipe, limits: PartyLimits) -> list[str]:
    """Return a line each on training, duration, memory, sent data and aggregation."""
    lines = {
        "federation": f"{terms.federation[:8]}, its terms have the digest {terms.digest}",
        "trained": _trained(recipe),
        "how long": _duration(terms, recipe, limits),
        "kept here": f"up to {recipe.setting.memory} exemplars, and the hold-out images",
        "sent": _sent(recipe, limits),
        "averaged": _averaged(recipe),
    }
    if recipe.privacy.on:
        lines["privacy"] = _privacy(recipe)
    return [f"{label:10}  {text}" for label, text in lines.items()]


def _privacy(recipe: Recipe) -> str:
    privacy, beside = recipe.privacy, not_covered(recipe.privacy.unit, recipe.config.private)
    return f"epsilon {privacy.most:g} at delta {privacy.delta:g} for each image; not covered: {', '.join(beside)}"


def _trained(recipe: Recipe) -> str:
    part = "the head alone, on a frozen backbone" if recipe.model.freeze else "backbone and head"
    network = f"{recipe.model.name} of width {recipe.model.width}"
    return f"by the method {recipe.method}: {network}, {part}, on {_samples(recipe)}"


def _samples(recipe: Recipe) -> str:
    """Describe the data that a site needs."""
    columns = recipe.setting.columns
    if columns is not None:
        more = f" and {len(columns.names) - LISTED} more" if len(columns.names) > LISTED else ""
        names = ", ".join(columns.names[:LISTED])
        return one_line(f"tables with the columns {names}{more}, and the classes in {columns.label}")
    channels, side, _ = recipe.setting.image_shape
    return f"{'grey' if channels == 1 else 'colour'} images of {side} x {side} pixels"


def _duration(terms: Terms, recipe: Recipe, limits: PartyLimits) -> str:
    planned = f"{terms.rounds} rounds are planned" if terms.rounds else "the number of rounds is open"
    work = f"in each {recipe.train.epochs} epochs, at most {limits.seconds:g} s"
    return f"{planned}, at most {limits.rounds} are answered; {work}"


def _sent(recipe: Recipe, limits: PartyLimits) -> str:
    """Describe the data sent to the server and to the proxy."""
    sent = ["the trained model, the number of training images"]
    sent += [f"{words} ({name})" for name, words in recipe.config.sends().items()]
    if recipe.privacy.on and recipe.config.private == "training":
        sent = ["the model, trained with noise, and the classes it was trained on, and no numbers of images"]
    elif recipe.privacy.on:
        sent = ["sums of the features of images, with noise, and no numbers of images"]
    told = f"counts of right hold-out images, of classes with {limits.hold_out_images} or more"
    proxied = recipe.roles().proxy is not None
    ids = "class ids, which the server cannot read but the proxy" if proxied else "class ids"
    to = f"to the server in {_sums(recipe)}" if _hides(recipe) else "to the server"
    by_itself = f"for this site alone: {told}" if _hides(recipe) else told
    return "; ".join([f"{to}: {sent[0]}", *sent[1:], by_itself, ids])


def _hides(recipe: Recipe) -> bool:
    """Return whether the server learns sums of reports alone."""
    return AGGREGATORS[recipe.federation.aggregator].build.hides


def _sums(recipe: Recipe) -> str:
    return f"a sum over at least {least_in_sum(recipe.federation.min_participants)} sites"


def _averaged(recipe: Recipe) -> str:
    if _hides(recipe):
        return f"by {recipe.federation.aggregator}, in {_sums(recipe)}"
    least = recipe.federation.min_participants
    return f"by {recipe.federation.aggregator}, over {least} {'report' if least == 1 else 'reports'} at least"
