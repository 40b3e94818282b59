"""A server that is curious or hostile: what it asks of a real site, and what the site says to that."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.consortium import Consortium, Keyring, contents, small_config

from fcil.core.errors import ConfigError, FederationError
from fcil.core.messages import Message, ModelState, Order, RoundContext, derive_seed, encode, model_digest
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.client.guard import Guard, SuspectError
from fcil.deployment.client.site import SiteParty
from fcil.deployment.party import TERMS, PendingTerms
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.party_store import ANSWER
from fcil.deployment.transport.messages import (
    Answer,
    EvaluateRequest,
    EvaluationResult,
    IdentifyRequest,
    Identity,
    Refusal,
    Request,
    Terms,
    TrainRequest,
    TrainResult,
    decode_message,
    encode_message,
    encode_model,
)
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.federation.client import Job, Turn, run_job
from fcil.methods import methods
from fcil.models.cost import parameter_bytes

pytestmark = pytest.mark.xdist_group("hostile server")
PLAYED = 3  # rounds before the one that nobody has answered yet
HOLD_OUT = 0.25  # of 12 ants and 48 bees: 3 and 12


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("keys"))


@dataclass
class Attacked:
    """A federation whose server turns hostile: a site has been asked for a round that it has not answered yet."""

    made: Consortium
    call: TrainRequest  # to aachen
    parcels: dict[str, bytes]  # that go with it

    @property
    def site(self) -> SiteParty:
        return self.made.site("aachen")

    @property
    def model(self) -> ModelState:
        """Return the model that an honest server sends now."""
        assert self.made.run is not None
        return self.made.run.state.server.model

    @property
    def next(self) -> RoundContext:
        """Return the context of an honest evaluation after the round before the one that is asked for."""
        return self.call.broadcast.context

    def answer(self, request: Request, parcels: dict[str, bytes] | None = None) -> Message:
        data = self.made.handler("aachen")(encode_message(request), self.parcels if parcels is None else parcels)
        return decode_message(data, Answer, DEFAULT_LIMIT).content

    def refused(self, request: Request, parcels: dict[str, bytes] | None = None) -> str:
        """Return the sentence of a refusal."""
        answer = self.answer(request, parcels)
        assert isinstance(answer, Refusal), answer
        return answer.sentence

    def suspected(self, request: TrainRequest, parcels: dict[str, bytes] | None = None) -> str:
        """Return the reason why the site does not take part; it has begun nothing."""
        begun = self.site.store.last_begun
        answer = self.answer(request, parcels)
        assert isinstance(answer, TrainResult), answer
        assert answer.reply is None
        assert answer.failure is not None
        assert answer.failure.stage == "check"
        assert self.site.store.last_begun == begun
        assert any(answer.failure.reason in line for line in self.made.said[0]), "its own people read it"
        return answer.failure.reason

    def with_context(self, **changed: Any) -> TrainRequest:
        context = replace(self.call.broadcast.context, **changed)
        return replace(self.call, broadcast=replace(self.call.broadcast, context=context))

    def with_model(self, model: ModelState, **changed: Any) -> tuple[TrainRequest, dict[str, bytes]]:
        """Return the call with another model, and the model beside it."""
        digest = model_digest(model)
        call = self.with_context(**changed)
        broadcast = replace(call.broadcast, model=digest)
        return replace(call, broadcast=broadcast), {digest: encode_model(digest, model)}

    def exam(self, model: ModelState, **changed: Any) -> tuple[EvaluateRequest, dict[str, bytes]]:
        digest = model_digest(model)
        request = EvaluateRequest(self.call.terms, replace(self.next, **changed), digest)
        return request, {digest: encode_model(digest, model)}


def attack(place: Path, keyring: Keyring, *settings: str, limits: PartyLimits | None = None) -> Attacked:
    """Return a federation of two sites that has gone well so far."""
    config = small_config("finetune", "deployment.attempts=1", "deployment.evaluate_every=0", *settings, rounds=9)
    made = Consortium(place, keyring, config, ())
    made.hold_out = HOLD_OUT
    made.limits = limits or PartyLimits()
    for site, seed in (("aachen", 0), ("berlin", 200)):
        made.join(site)
        made.add(site, "ant", *range(seed, seed + 12))
        made.add(site, "bee", *range(seed, seed + 48))
    rounds = made.rounds()
    for _ in range(PLAYED):
        assert next(rounds).failures == []
    made.wire.silent = {0, 1}
    with pytest.raises(FederationError):
        next(rounds)
    call = made.wire.requests(TrainRequest, 0)[-1]
    (envelope,) = [one for one in made.wire.sent if one.content == encode_message(call)][-1:]
    parcels = dict(envelope.parcels)
    assert call.order.participate
    return Attacked(made, call, parcels)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Attacked]:
    found = attack(tmp_path_factory.mktemp("attacked"), keyring)
    shutil.copytree(found.made.state("aachen"), found.made.place / "before")
    yield found
    found.made.close()


@pytest.fixture
def attacked(prepared: Attacked) -> Attacked:
    """Give the federation with its site as it was before the first attack."""
    made = prepared.made
    made.parties[0].close()
    shutil.rmtree(made.state("aachen"))
    shutil.copytree(made.place / "before", made.state("aachen"))
    made.join("aachen")
    assert isinstance(prepared.answer(IdentifyRequest(prepared.call.terms)), Identity)
    return prepared


def shifted(model: ModelState, by: float, *names: str) -> ModelState:
    """Return a model in which the tensors with these names have moved."""
    return {
        name: tensor + by if name in names or (not names and tensor.is_floating_point()) else tensor
        for name, tensor in model.items()
    }


def grown(model: ModelState, rows: torch.Tensor) -> ModelState:
    """Return a model with further outputs."""
    bias = torch.zeros(len(rows))
    return {
        **model,
        "head.weight": torch.cat([model["head.weight"], rows]),
        "head.bias": torch.cat([model["head.bias"], bias]),
    }


# --- evaluation ----------------------------------------------------------------------------------------------------


def test_a_class_with_few_hold_out_images_is_not_counted_and_each_evaluation_is_logged(attacked: Attacked) -> None:
    request, parcels = attacked.exam(attacked.model)
    answer = attacked.answer(request, parcels)
    assert isinstance(answer, EvaluationResult)
    assert sorted(answer.total.tolist()) == [0, 12], "of the three ants nothing is told"
    assert bool((answer.right <= answer.total).all())
    assert f"evaluation 1 of at most 500: the model {request.model[:8]} after round 3, on 12 hold-out" in "\n".join(
        attacked.made.said[0]
    )


def test_a_site_evaluates_one_model_per_round_and_only_of_its_last_round(attacked: Attacked) -> None:
    request, parcels = attacked.exam(attacked.model)
    handler = attacked.made.handler("aachen")
    first = handler(encode_message(request), parcels)
    assert handler(encode_message(request), {}) == first, "the same request gets the same answer"
    other, beside = attacked.exam(shifted(attacked.model, 0.01))
    assert "a site evaluates one per round" in attacked.refused(other, beside)
    attacked.made.reopen("aachen")
    assert "a site evaluates one per round" in attacked.refused(other, beside), "after a restart, too"
    assert attacked.made.handler("aachen")(encode_message(request), {}) == first
    past, beside = attacked.exam(attacked.model, round=PLAYED - 1)
    assert "a site evaluates one per round" in attacked.refused(past, beside)


def test_a_second_final_model_is_kept_and_nothing_is_told_of_it(attacked: Attacked) -> None:
    first, parcels = attacked.exam(attacked.model)
    assert isinstance(attacked.answer(first, parcels), EvaluationResult)
    other, beside = attacked.exam(shifted(attacked.model, 0.01))
    answer = attacked.answer(replace(other, last=True), beside)
    assert isinstance(answer, EvaluationResult)
    assert int(answer.total.sum()) == int(answer.right.sum()) == 0
    assert (attacked.site.folder / MODEL_FILE).is_file()


def test_a_model_of_a_round_before_the_last_one_is_not_evaluated(attacked: Attacked) -> None:
    past, parcels = attacked.exam(attacked.model, round=PLAYED - 1)
    assert "is none of the last round of this site" in attacked.refused(past, parcels)


def test_rounds_that_a_site_took_no_part_in_bring_no_further_evaluations(attacked: Attacked) -> None:
    """Otherwise a server names one later round after the other, and reads the hold-out images out of the answers."""
    for skipped in (1, 2):
        later = {"round": PLAYED + skipped, "rounds_since_growth": attacked.next.rounds_since_growth + skipped}
        exam, parcels = attacked.exam(shifted(attacked.model, 0.01 * skipped), **later)
        sentence = f"this site took no part in round {PLAYED + skipped}, and tells nothing of its model"
        assert attacked.refused(exam, parcels) == sentence
    answer = attacked.answer(replace(exam, last=True), parcels)
    assert isinstance(answer, EvaluationResult), "a site that missed the last round gets the final model"
    assert int(answer.total.sum()) == 0
    assert (attacked.site.folder / MODEL_FILE).is_file()


def test_a_site_that_is_asked_in_some_rounds_only_evaluates_models_in_between(attacked: Attacked) -> None:
    last, later = attacked.site.store.last_begun, replace(attacked.next, round=PLAYED + 2, rounds_since_growth=4)
    own = attacked.site.data.samples.ids
    assert last is not None
    assert Guard(PartyLimits(), every_round=False).check_evaluation(later, None, last, own) == last
    with pytest.raises(SuspectError, match="took no part"):
        Guard(PartyLimits()).check_evaluation(later, None, last, own)


def test_only_a_model_that_may_follow_from_the_last_round_is_evaluated(attacked: Attacked) -> None:
    crafted, parcels = attacked.exam(shifted(attacked.model, 1e4, "backbone.stem.0.weight"))
    assert "backbone.stem.0.weight has changed by more than" in attacked.refused(crafted, parcels)
    steep, parcels = attacked.exam(shifted(attacked.model, 1e4, "head.weight"))
    assert "head.weight has changed by more than" in attacked.refused(steep, parcels)
    ids = attacked.next.catalogue
    swapped, parcels = attacked.exam(attacked.model, catalogue=(ids[1], ids[0]))
    assert "removed or moved" in attacked.refused(swapped, parcels)
    wide = grown(attacked.model, torch.zeros(1, 16))
    more, parcels = attacked.exam(wide, catalogue=(*ids, "x"), blocks=(3,))
    assert "not the one of the round that is evaluated" in attacked.refused(more, parcels)


def test_evaluations_have_a_quota(attacked: Attacked, monkeypatch: Any) -> None:
    assert isinstance(attacked.answer(*attacked.exam(attacked.model)), EvaluationResult)
    assert attacked.site.store.evaluated is not None
    assert attacked.site.store.evaluated.count == 1
    monkeypatch.setattr(attacked.site, "guard", Guard(PartyLimits(evaluations=1)))
    later, parcels = attacked.exam(attacked.model, round=PLAYED + 9)
    assert attacked.refused(later, parcels) == "this site's limit evaluations is 1, and there were as many"


# --- what is trained on --------------------------------------------------------------------------------------------


def test_made_up_classes_are_not_trained(attacked: Attacked) -> None:
    """600 of them, as thresholds along one direction, would read images out of the head's gradients."""
    ids = tuple(f"{number:032x}" for number in range(600))
    catalogue = (*attacked.next.catalogue, *ids)
    context = {"catalogue": catalogue, "blocks": (2, 602), "rounds_since_growth": 0}
    model = grown(attacked.model, torch.full((600, 16), 0.01))
    sentence = "the catalogue has 600 new classes of others, and this site's limit new_classes is 100"
    assert attacked.suspected(*attacked.with_model(model, **context)) == sentence
    few = {**context, "catalogue": catalogue[:22], "blocks": (2, 22)}
    copies = grown(attacked.model, torch.full((20, 16), 0.01))
    assert "copies of each other" in attacked.suspected(*attacked.with_model(copies, **few))
    opposite = grown(attacked.model, torch.cat([torch.full((10, 16), 0.01), torch.full((10, 16), -0.01)]))
    assert "copies of each other" in attacked.suspected(*attacked.with_model(opposite, **few))
    large = grown(attacked.model, 3 * torch.randn(20, 16, generator=torch.Generator().manual_seed(1)))
    assert "larger than a growth makes them" in attacked.suspected(*attacked.with_model(large, **few))
    steep = grown(attacked.model, torch.zeros(20, 16))
    steep["head.bias"][2:] = 0.5
    assert "larger than a growth makes them" in attacked.suspected(*attacked.with_model(steep, **few))


def test_the_classes_of_a_site_itself_are_no_surprise(attacked: Attacked) -> None:
    context, before = attacked.next, attacked.site.store.last_begun
    more = replace(context, catalogue=(*context.catalogue, "mine"), blocks=(2, 3), rounds_since_growth=0)
    guard = Guard(PartyLimits(new_classes=0))
    guard.check_context(more, before, ["mine"])
    with pytest.raises(SuspectError, match="1 new classes of others"):
        guard.check_context(more, before, [])
    with pytest.raises(SuspectError, match="2 new classes of others"):
        guard.check_context(context, None, [])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"catalogue": ("a" * 32,), "blocks": (1,)}, "removed or moved"),
        ({"catalogue": ("a" * 32, "b" * 32)}, "removed or moved"),
        ({"blocks": (1, 2)}, "blocks of the catalogue have been changed"),
        ({"blocks": (2, 1)}, "do not add up"),
        ({"blocks": (3,)}, "do not add up"),
        ({"blocks": ()}, "do not add up"),
        ({"rounds_since_growth": 0}, "the newest block began has been changed"),
        ({"rounds_since_growth": 99}, "a round of growth that cannot be"),
        ({"round": 10_000, "rounds_since_growth": 1}, "beyond this site's limit rounds, 10000"),
    ],
)
def test_a_catalogue_continues_the_one_before(attacked: Attacked, changed: dict[str, Any], reason: str) -> None:
    assert reason in attacked.suspected(attacked.with_context(**changed))


def test_ids_that_come_twice_or_cannot_be_shown_are_refused(attacked: Attacked) -> None:
    ids = attacked.next.catalogue
    for name, reason in ((ids[0], "do not add up"), ("x" * 65, "class ids"), ("\x1b[31m", "class ids")):
        context = {"catalogue": (*ids, name), "blocks": (2, 3), "rounds_since_growth": 0}
        assert reason in attacked.suspected(attacked.with_context(**context))


def test_a_model_moves_by_plausible_steps(attacked: Attacked) -> None:
    model, stem = attacked.model, "backbone.stem.0.weight"
    assert f"{stem} has changed by more than" in attacked.suspected(*attacked.with_model(shifted(model, 1e3, stem)))
    old = shifted(model, 1e3, "head.weight")
    assert "head.weight has changed by more than" in attacked.suspected(*attacked.with_model(old))
    far = {"round": PLAYED + 5000, "rounds_since_growth": attacked.next.rounds_since_growth + 5000}
    late = attacked.with_model(shifted(model, 1e3, stem), **far)
    assert "changed by more than" in attacked.suspected(*late), "however many rounds the server says have passed"
    broken = {**model, stem: model[stem] * float("nan")}
    assert attacked.suspected(*attacked.with_model(broken)) == f"the model is not finite: {stem}"
    cut = {**model, stem: model[stem][:, :, :1]}
    assert "another shape than the one before" in attacked.suspected(*attacked.with_model(cut))
    narrow = {**model, "head.weight": model["head.weight"][:1]}
    assert "an output for each class" in attacked.suspected(*attacked.with_model(narrow))


def test_a_loss_that_is_strange_stops_the_site(attacked: Attacked, monkeypatch: Any) -> None:
    monkeypatch.setattr(attacked.site, "guard", Guard(PartyLimits(loss=1e-9)))
    assert attacked.suspected(attacked.call) == "the loss of the received model is out of all proportion"
    guard, targets = Guard(PartyLimits(loss=10)), torch.tensor([0, 1])
    guard.check_loss(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), targets)
    for strange in (float("nan"), 30.0):
        with pytest.raises(SuspectError, match="out of all proportion"):
            guard.check_loss(torch.tensor([[0.0, strange], [strange, 0.0]]), targets)


def test_a_fit_whose_loss_is_not_finite_is_a_failure(attacked: Attacked, monkeypatch: Any) -> None:
    monkeypatch.setattr(attacked.site.machine, "fit", lambda *_: float("nan"))
    before = attacked.site.store.latest
    answer = attacked.answer(attacked.call)
    assert isinstance(answer, TrainResult)
    assert answer.failure is not None
    assert answer.failure.reason.startswith("DivergedError")
    assert attacked.site.store.latest == before


def test_a_frozen_backbone_is_the_one_of_the_terms(tmp_path: Path, keyring: Keyring) -> None:
    found = attack(tmp_path, keyring, "model.freeze=true")
    assert found.call.terms.backbone
    moved = shifted(found.model, 1e-6, "backbone.stem.0.weight")
    sentence = "the backbone is not the frozen one of the terms"
    assert found.suspected(*found.with_model(moved)) == sentence
    exam, parcels = found.exam(moved)
    assert found.refused(exam, parcels) == sentence
    other = replace(found.call, terms=replace(found.call.terms, backbone="0" * 32))
    assert "another frozen backbone" in found.refused(other)
    assert isinstance(found.answer(found.call), TrainResult)
    found.made.close()


# --- one model per round -------------------------------------------------------------------------------------------


def test_a_round_is_answered_for_one_model_also_after_a_restart(attacked: Attacked) -> None:
    first = attacked.answer(attacked.call)
    assert isinstance(first, TrainResult)
    assert first.reply is not None
    for digit in range(3):
        other, parcels = attacked.with_model(shifted(attacked.model, 0.01 * (digit + 1)))
        sentence = f"round {PLAYED + 1} was begun with another model; a site answers a round for one model"
        assert attacked.refused(other, parcels) == sentence
        bystander = replace(other, order=Order(0, False), broadcast=other.broadcast.for_bystanders())
        assert attacked.refused(bystander, parcels) == sentence
        attacked.made.reopen("aachen")
    renamed = replace(attacked.call, order=Order(7, True))
    assert "was begun with another order" in attacked.refused(renamed), "nor with other randomness"


def test_an_honest_retry_gets_the_same_bits_though_the_participants_have_changed(attacked: Attacked) -> None:
    """A server that fails once may draw other participants: this site looks on, and is then asked to train again."""
    first = attacked.answer(attacked.call)
    bystander = replace(attacked.call, order=Order(0, False), broadcast=attacked.call.broadcast.for_bystanders())
    looked = attacked.answer(bystander)
    assert isinstance(looked, TrainResult)
    assert looked.reply is not None
    assert looked.reply.report is None
    assert encode(attacked.answer(attacked.call)) == encode(first)


def test_noise_is_fresh_for_every_answer_and_the_same_if_it_is_sent_again(
    attacked: Attacked, tmp_path: Path, keyring: Keyring
) -> None:
    """Two sites with the same key, images and request: the fit is the same, what is drawn for the report is not."""
    attacked.answer(attacked.call)
    seeds = [turn_seed(attacked, "aachen") for _ in range(2)]
    assert seeds[0] == seeds[1], "the answer was lost, and is made again"
    attacked.made.parties[0].close()
    twin = tmp_path / "twin"
    shutil.copytree(attacked.made.state("aachen"), twin)
    attacked.made.join("aachen")
    party = SiteParty(keyring.sites["aachen"], attacked.made.data("aachen"), twin, lambda _: None, HOLD_OUT)
    party.store._stamps = replace(party.store._stamps, begun=party.store._stamps.begun[:-1])  # as before the round
    other = recorded(party, attacked)
    party.close()
    assert other != seeds[0]


def test_what_a_fit_draws_depends_on_the_model(attacked: Attacked, monkeypatch: Any) -> None:
    """Two models in a round, as if the site had forgotten the first: nothing that is random in the fits is the same."""
    seeds: list[int] = []

    def noted(role: Any, aggregator: Any, job: Job, *rest: Any) -> Any:
        seeds.append(job.seed)
        return run_job(role, aggregator, job, *rest)

    monkeypatch.setattr("fcil.deployment.client.site.run_job", noted)
    for call, parcels in ((attacked.call, {}), attacked.with_model(shifted(attacked.model, 0.01)), (attacked.call, {})):
        store = attacked.site.store
        store._answered, store._stamps = None, replace(store._stamps, begun=store._stamps.begun[:1])
        assert isinstance(attacked.answer(call, {**attacked.parcels, **parcels}), TrainResult)
    assert seeds[0] == seeds[2] != seeds[1]


def turn_seed(attacked: Attacked, name: str) -> int:
    """Return the seed that a site has for its report when its answer has to be made again."""
    (attacked.made.site(name).folder / ANSWER).unlink(missing_ok=True)
    attacked.made.reopen(name)
    return recorded(attacked.made.site(name), attacked)


def recorded(party: SiteParty, attacked: Attacked) -> int:
    """Return the seed that a site gives to its aggregator."""
    party.store._answered = None
    turns: list[Turn] = []
    identify = encode_message(IdentifyRequest(attacked.call.terms))
    assert isinstance(decode_message(party.handle(identify, {}), Answer, DEFAULT_LIMIT).content, Identity)
    stage = party.aggregator.stage
    party.aggregator.stage = lambda report, sent, turn: (turns.append(turn), stage(report, sent, turn))[1]  # type: ignore[method-assign]
    party.handle(encode_message(attacked.call), attacked.parcels)
    (turn,) = turns
    return turn.seed


def test_in_a_simulation_the_seed_of_a_report_follows_from_the_run() -> None:
    job = Job(Order(1, True), 77, Order(1, True), torch.empty(0, dtype=torch.int64), None, None)
    assert job.report_seed == derive_seed(77, "aggregation")
    assert replace(job, nonce=5).report_seed == derive_seed(77, "aggregation", 5) != job.report_seed


# --- terms ---------------------------------------------------------------------------------------------------------


def party_of(place: Path, keyring: Keyring, limits: PartyLimits | None = None, accept: str | None = None) -> SiteParty:
    (place / "data").mkdir(exist_ok=True)
    return SiteParty(
        keyring.sites["cork"], place / "data", place / "state", lambda _: None, limits=limits, accept=accept
    )


def changed_terms(terms: Terms, change: Callable[[dict[str, Any]], object]) -> Terms:
    recipe = json.loads(terms.recipe)
    change(recipe)
    return replace(terms, recipe=json.dumps(recipe))


def setting(table: str, key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda recipe: recipe[table].update({key: value})


def greeted(party: SiteParty, terms: Terms) -> Message:
    answer = decode_message(party.handle(encode_message(IdentifyRequest(terms)), {}), Answer, DEFAULT_LIMIT).content
    party.close()
    return answer


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (setting("train", "epochs", 1_000_000), "train.epochs"),
        (setting("train", "epochs", 0), "epochs"),
        (setting("train", "batch_size", 10**9), "train.batch_size"),
        (setting("setting", "memory", -1), "scenario.memory"),
        (setting("setting", "memory", 10**6), "scenario.memory"),
        (setting("setting", "image_shape", [1, 20_000, 20_000]), "deployment.image_size"),
        (setting("setting", "image_shape", [1, 8, 16]), "deployment.image_size"),
        (setting("setting", "image_shape", [2, 8, 8]), "deployment.channels"),
        (setting("setting", "image_shape", [3, 8, 8]), "model.mean"),
        (setting("model", "width", 10_000), "model.width"),
        (setting("model", "freeze", True), "model.freeze"),
        (setting("federation", "min_participants", 10**12), "federation.min_participants"),
        (setting("config", "made_up", 5), "made_up"),
        (lambda recipe: recipe.update({"padding": "x" * 70_000}), "characters"),
    ],
)
def test_terms_beyond_all_bounds_are_refused_by_the_name_of_the_setting(
    attacked: Attacked, tmp_path: Path, keyring: Keyring, change: Any, key: str
) -> None:
    terms = changed_terms(attacked.call.terms, change)
    answer = greeted(party_of(tmp_path, keyring, accept=terms.digest), terms)
    assert isinstance(answer, Refusal)
    assert key in answer.sentence
    assert not (tmp_path / "state" / TERMS).exists()
    assert not list((tmp_path / "state").glob("index*"))


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"epochs": 1}, None),
        ({"image_size": 8, "memory": 6, "width": 2, "methods": ("finetune",), "aggregators": ("mean",)}, None),
        ({"image_size": 4}, "deployment.image_size: found '8 x 8', this party takes from 4 to 4"),
        ({"memory": 5}, "scenario.memory: found 6, this party takes from 0 to 5"),
        ({"width": 1}, "model.width: found 2"),
        ({"methods": ("glfc", "lwf")}, "method.name: found 'finetune', this party takes glfc or lwf"),
        ({"aggregators": ("median",)}, "federation.aggregator: found 'mean', this party takes median"),
        ({"participants": 2}, "federation.min_participants: found 1, this party takes at least 2"),
        ({"upload_bytes": 1000}, "a network of at most 1000 bytes"),
    ],
)
def test_the_owner_of_a_site_sets_limits(
    attacked: Attacked, tmp_path: Path, keyring: Keyring, limits: dict[str, Any], key: str | None
) -> None:
    terms = attacked.call.terms
    answer = greeted(party_of(tmp_path, keyring, PartyLimits(**limits), terms.digest), terms)
    if key is None:
        assert isinstance(answer, Identity)
    else:
        assert isinstance(answer, Refusal)
        assert key in answer.sentence
        stricter = greeted(party_of(tmp_path, keyring, accept=terms.digest), terms)
        assert isinstance(stricter, Identity)
        again = greeted(party_of(tmp_path, keyring, PartyLimits(**limits)), terms)
        assert isinstance(again, Refusal), "a limit that is set later holds as well"


def test_a_round_ends_when_the_owners_seconds_are_over(attacked: Attacked, monkeypatch: Any) -> None:
    monkeypatch.setattr(attacked.site.machine, "seconds", -1.0)
    monkeypatch.setattr(attacked.site, "_check_loss", lambda *_: None)
    answer = attacked.answer(attacked.call)
    assert isinstance(answer, TrainResult)
    assert answer.failure is not None
    assert answer.failure.reason == "OvertimeError; the site's own log says more"
    assert "takes longer than this party's limit seconds" in attacked.made.said[0][-1]


def test_an_answer_larger_than_the_owner_allows_is_not_sent(attacked: Attacked, monkeypatch: Any) -> None:
    size = parameter_bytes(attacked.site.recipe.model, 1)
    monkeypatch.setattr(attacked.site, "limits", PartyLimits(upload_bytes=size))
    assert attacked.refused(attacked.call) == "the answer is larger than this party's limit upload_bytes"


def test_nothing_is_done_until_the_owner_accepts(attacked: Attacked, tmp_path: Path, keyring: Keyring) -> None:
    terms = attacked.call.terms
    for accept in (None, "0" * 16):
        party = party_of(tmp_path, keyring, accept=accept)
        answer = greeted(party, terms)
        assert isinstance(answer, Refusal)
        assert answer.sentence == f"the owner of this party has not accepted the terms {terms.digest} yet"
        assert party.dismissed, "it leaves, so that no round waits for its owner"
        assert not {TERMS, "index.fcil"} & set(contents(tmp_path / "state"))
        assert party.pending is not None
        words = "\n".join(party.pending.words)
        for said in (
            terms.digest,
            "method finetune: resnet18 of width 2, backbone and head, on grey images of 8 x 8 pixels",
            "9 rounds are planned, at most 10000 are answered; in each 1 epochs, at most 3600 s",
            "up to 6 exemplars",
            "to the server: the trained model, the number of training images",
            "of classes with 10 or more",
            "by mean, over 1 report at least",
        ):
            assert said in words
    party = party_of(tmp_path, keyring)
    party.accept(terms.digest)
    assert isinstance(greeted(party, terms), Identity)
    assert isinstance(greeted(party_of(tmp_path, keyring), terms), Identity), "accepted once"


def test_what_a_proxy_and_a_method_are_sent_is_said(attacked: Attacked, tmp_path: Path, keyring: Keyring) -> None:
    config = small_config("glfc").method.model_dump(mode="json")
    terms = changed_terms(attacked.call.terms, lambda recipe: recipe.update({"method": "glfc", "config": config}))
    party = party_of(tmp_path, keyring)
    greeted(party, terms)
    assert party.pending is not None
    words = "\n".join(party.pending.words)
    assert "PrototypeGradient" in words
    assert "which the server cannot read but the proxy" in words


def test_the_command_asks_on_a_terminal_and_ends_without_one(monkeypatch: Any, capsys: Any) -> None:
    from fcil.cli.federation import staying

    terms = PendingTerms("a1b2", ("what is trained", "what is sent"))
    with pytest.raises(ConfigError, match="add --accept a1b2 to the command"):
        staying._consent(terms, None)
    assert "what is trained\nwhat is sent" in capsys.readouterr().out
    with pytest.raises(ConfigError):
        staying._consent(terms, "other")
    assert "--accept other: the server's terms have another digest, a1b2" in capsys.readouterr().out
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _: True)
    assert staying._consent(terms, None) == "a1b2"
    monkeypatch.setattr("typer.confirm", lambda _: False)
    with pytest.raises(ConfigError, match="were not accepted"):
        staying._consent(terms, None)


def test_limits_are_read_from_a_file_and_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text('epochs = 5\nmethods = ["lwf"]\n')
    assert PartyLimits.load(path) == PartyLimits(epochs=5, methods=("lwf",))
    assert PartyLimits.load(None) == PartyLimits()
    unknown, small = "epoch: unknown key; did you mean epochs?", "epochs: found 0, should be at least 1"
    for text, said in (("epoch = 5", unknown), ("epochs = 0", small), ("[", "is no TOML file")):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            PartyLimits.load(path)
        assert str(path) in str(caught.value)
        assert said in str(caught.value)


# --- no false alarms -----------------------------------------------------------------------------------------------

WILD = ("lwf", "bic", "mosaic")  # a softmax, a corrected head, cosines
OTHERS = sorted(set(methods()) - set(WILD))


@pytest.mark.parametrize("method", [*WILD, *(pytest.param(name, marks=pytest.mark.soak) for name in OTHERS)])
def test_an_honest_federation_raises_no_suspicion(tmp_path: Path, keyring: Keyring, method: str) -> None:
    """A class comes in between, a site joins late, one is away, and the server evaluates every second round."""
    config = small_config(method, "deployment.evaluate_every=2", "train.learning_rate=0.5", rounds=8)
    made = Consortium(tmp_path, keyring, config, ("aachen", "berlin"))
    for site, seed in (("aachen", 0), ("berlin", 100), ("cork", 200)):
        made.add(site, "ant", *range(seed, seed + 6))
    acts = {
        2: lambda: made.add("berlin", "bee", *range(6)),
        3: lambda: made.join("cork"),
        4: lambda: made.wire.away.add(0),
        6: made.wire.away.clear,
    }
    records = made.play(acts)
    assert [record.failures for record in records] == [[]] * 8
    assert records[-1].total, made.warned
    assert not any("warning" in line for lines in made.said.values() for line in lines)
    made.close()
