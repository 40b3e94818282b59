"""Differential privacy between real sites: the terms, the noise of every answer, and the site's own log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.consortium import SITES, Build, small_config

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Report
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.client.withdrawal import withdraw_at_site
from fcil.deployment.party_limits import PartyLimits, check_terms
from fcil.deployment.server.run import deployment_config, server_recipe
from fcil.deployment.terms_in_words import in_words
from fcil.deployment.transport.messages import (
    Answer,
    Refusal,
    Terms,
    TrainRequest,
    TrainResult,
    decode_message,
    encode_message,
)
from fcil.federation.engines.base import Recipe
from fcil.methods.sums_client import GRAM

PRIVATE = ("privacy.epsilon=8.0", "privacy.releases=2", "privacy.budget=12.0")


def test_sites_answer_with_noise_of_their_own_and_a_lost_answer_is_the_same_again(build: Build) -> None:
    made = build("analytic", *PRIVATE, "federation.min_participants=3", rounds=4)
    for place, name in enumerate(SITES[:3]):
        made.add(name, "ant", *range(100 * place, 100 * place + 9))
    heard: list[tuple[int, Report]] = []

    def listen(answer: Any) -> None:
        if isinstance(answer, TrainResult) and answer.reply is not None and answer.reply.report is not None:
            heard.append((answer.reply.client, answer.reply.report))

    made.wire.tampered = dict.fromkeys(range(3), listen)
    records = made.play({1: lambda: made.wire.deaf.add(2)})  # its answer is lost, and the round is tried again
    assert any("is tried again" in warning for warning in made.warned)
    assert [record.privacy for record in records] == [None, *[{"epsilon": 12.0, "delta": 1e-5}] * 3]
    grams = {0: [], 1: [], 2: []}  # type: dict[int, list[torch.Tensor]]
    for client, report in heard:
        grams[client].append(report.parts[GRAM].value)
    assert len(grams.pop(2)) == 2
    for found in grams.values():
        assert len(found) == 3  # twice in the first release, once in the second
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[1], found[2])
    assert not torch.equal(grams[0][0].round(decimals=1), grams[1][0].round(decimals=1))
    assert any("a report with noise, epsilon 8 spent" in line for line in made.said[0])
    made.site(SITES[0]).close()
    with pytest.raises(ConfigError, match=r"privacy\.epsilon, in which images are never sent again"):
        withdraw_at_site(made.state(SITES[0]), None, [])


def test_people_are_shown_the_guarantee_and_may_ask_for_one() -> None:
    recipe = server_recipe(deployment_config(small_config("analytic", *PRIVATE)))
    read = Recipe.read(recipe.text(), import_modules=False)
    assert read.privacy == recipe.privacy
    words = "\n".join(in_words(Terms("f" * 8, recipe.text()), recipe, PartyLimits()))
    assert "privacy     epsilon 12 at delta 1e-05 for each image; not covered: ids of new classes" in words
    assert "to the server: sums of the features of images, with noise, and no numbers of images; counts of" in words
    check_terms(recipe.text(), recipe, PartyLimits(epsilon=12.0))
    plain = server_recipe(deployment_config(small_config("analytic")))
    for terms, limit, found in ((recipe, 9.0, "12.0"), (plain, 9.0, "absent")):
        with pytest.raises(FederationError, match=rf"privacy\.epsilon: found {found}, this party takes terms that spe"):
            check_terms(terms.text(), terms, PartyLimits(epsilon=limit))


TRAINED = ("privacy.epsilon=8.0", "model.freeze=true", "scenario.memory=0", "train.block_epochs=2", "train.epochs=1")


def test_sites_train_with_noise_until_the_budget_of_their_images_is_spent(build: Build) -> None:
    made = build("mosaic", *TRAINED, rounds=4)
    for place, name in enumerate(SITES[:2]):
        made.add(name, "ant", *range(100 * place, 100 * place + 9))
    heard: list[Report] = []

    def listen(answer: Any) -> None:
        if isinstance(answer, TrainResult) and answer.reply is not None and answer.reply.report is not None:
            heard.append(answer.reply.report)

    made.wire.tampered = dict.fromkeys(range(2), listen)
    made.play()
    assert {report.samples for report in heard} == {1}  # one class, and no number of images
    assert len(heard) == 4
    assert sum("a report with noise, epsilon" in line for line in made.said[0]) == 2  # epochs are planned for a block
    assert any("round 4 failed at stage fit" in line and "budget allows 8" in line for line in made.said[0])


def test_people_are_told_that_training_has_noise() -> None:
    recipe = server_recipe(deployment_config(small_config("mosaic", *TRAINED)))
    words = "\n".join(in_words(Terms("f" * 8, recipe.text()), recipe, PartyLimits()))
    assert "for each image; not covered: ids of new classes" in words
    assert "the classes of a client, its number of images, which noise follows from" in words
    assert "to the server: the model, trained with noise, and the classes it was trained on, and no numbers" in words


def test_a_round_that_is_asked_for_again_in_another_way_spends_nothing_unseen(build: Build) -> None:
    """The ledger keeps a fit whose report has left, and no second report has the first one's noise."""
    made = build("mosaic", *TRAINED, rounds=4)
    for place, name in enumerate(SITES[:2]):
        made.add(name, "ant", *range(100 * place, 100 * place + 9))
    rounds = made.rounds()
    next(rounds), next(rounds)
    call, site = made.wire.requests(TrainRequest, 0)[-1], made.site(SITES[0])
    (ant,) = call.broadcast.context.catalogue

    def asked(request: TrainRequest) -> Any:
        return decode_message(made.handler(SITES[0])(encode_message(request), {}), Answer, DEFAULT_LIMIT).content

    def spent() -> float:
        assert site.store.latest is not None
        return float(site.role.spent(site.store.latest.state))

    once = spent()
    assert once > 0
    for retired in ({ant: ""}, {ant: "f" * 32}):
        answer = asked(replace(call, retired=retired))
        assert isinstance(answer, Refusal)
        assert "was begun with another order" in answer.sentence
    bystander = replace(call, order=replace(call.order, participate=False), broadcast=call.broadcast.for_bystanders())
    for retired in ({}, {ant: ""}):
        answer = asked(replace(bystander, retired=retired))
        assert isinstance(answer, TrainResult)
        assert answer.reply is not None
        assert answer.reply.report is None
        assert spent() == once
