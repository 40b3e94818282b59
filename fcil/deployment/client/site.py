"""A real site: its folder of images, keys and state around the same `Client` as in a simulation."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.files import write_atomically
from fcil.core.messages import (
    Announcement,
    Broadcast,
    Failure,
    Message,
    Missing,
    ModelState,
    Order,
    Reply,
    RoundContext,
    Stream,
    encode,
)
from fcil.deployment.client.begun_round import begun_round
from fcil.deployment.client.class_consent import ClassConsent
from fcil.deployment.client.guard import Guard, SuspectError
from fcil.deployment.client.image_folder import SiteData
from fcil.deployment.client.ingest import BusyError
from fcil.deployment.client.masked_reports import MASKS, MaskedReports, MaskError
from fcil.deployment.client.releases import HeldReleases
from fcil.deployment.keys.make import SiteKeys
from fcil.deployment.keys.sealing import seal
from fcil.deployment.party import Party, Say
from fcil.deployment.party_limits import PartyLimits
from fcil.deployment.party_store import BegunRound
from fcil.deployment.retired_classes import present, without_rows
from fcil.deployment.signed_teachers import checked_choice
from fcil.deployment.timed_trainer import TimedTrainer
from fcil.deployment.transport.messages import (
    Ended,
    EndRequest,
    Epoch,
    EvaluateRequest,
    EvaluationResult,
    IdentifyRequest,
    Identity,
    KeysRequest,
    NewsRequest,
    NewsResult,
    ReleaseHeld,
    ReleaseRequest,
    Request,
    Retired,
    Sealed,
    SealedContent,
    TrainRequest,
    TrainResult,
    UnmaskRequest,
    as_tensor,
)
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.experiment.model_file import named_model
from fcil.federation.class_catalogue import MOST_ANNOUNCED
from fcil.federation.client import Client, Done, RoundData, run_job
from fcil.federation.engines.base import Recipe
from fcil.federation.masking.messages import Masks
from fcil.federation.replies import SUSPECT
from fcil.federation.round_record import BUSY
from fcil.methods.base import ServerRole
from fcil.models.classifier import head_width
from fcil.models.client_context import ClientContext
from fcil.models.frozen import BlockStore
from fcil.models.trainer import FEWEST

BATCH = 256
FAULT = "fault"  # stage of the failure of a site that could not begin or keep a round
FEATURES = "features"  # folder in the state folder
QUARANTINED = (
    "the server's operators have put this site in quarantine: rounds go on without it; it may stay connected and wait"
)


ABSENCES: Mapping[type[Exception], tuple[str, str]] = {  # why a site does not train in a round: stage and sentence
    MaskError: (MASKS, "round {round} goes on without this site: {error}"),
    BusyError: (BUSY, "round {round} goes on without this site, which is busy {error}"),
    SuspectError: (SUSPECT, "warning: round {round} is not trained: {error}"),
}


class SiteParty(Party):
    """Answers for one site; images, exemplars and diagnostics never leave it."""

    kind = "site"

    def __init__(
        self,
        keys: SiteKeys,
        data: Path,
        folder: Path,
        say: Say,
        hold_out: float = 0.1,
        device: str = "cpu",
        threads: int = 1,
        limits: PartyLimits | None = None,
        accept: str | None = None,
        consent: ClassConsent | None = None,
    ) -> None:
        """Take the party's options, and what a folder needs to become a class."""
        super().__init__(folder, keys.secret.encoder_seed, device, threads, say, limits, accept)
        self.keys = keys
        self.own.status["name"] = keys.name
        self.place = data
        self.share = hold_out
        self.consent = consent or ClassConsent()
        self.quarantined = False
        self.releases = HeldReleases(folder)

    def build(self, recipe: Recipe, backbone: str) -> None:
        torch.set_num_threads(recipe.threads)
        roles = recipe.roles()
        if roles.client.wants_truth:
            raise FederationError("method.detector: the oracle knows a simulation's truth; a real site has none")
        if roles.proxy is not None and self.keys.proxy is None:
            raise FederationError(
                f"the method {recipe.method} sends prototypes to a proxy, and this site's keys have no proxy.pub; "
                "get it from the proxy's people"
            )
        self.sealing = self.keys.proxy.sealing if roles.proxy is not None and self.keys.proxy else None
        self.recipe, self.role = recipe, roles.client
        machine = recipe.machine(store=BlockStore(self.folder / FEATURES))
        self.aggregator, self.machine = recipe.aggregator(), TimedTrainer.of(machine, self.limits.seconds)
        self.masked: MaskedReports | None = None
        self.corrects = type(roles.server).predictor is not ServerRole.predictor
        shape = recipe.setting.image_shape
        looks_on = recipe.federation.monitor == "all"
        self.guard = Guard(self.limits, backbone, recipe.model, roles.server.outputs, looks_on)
        class_id, columns = self.keys.secret.class_id, recipe.setting.columns
        self.data = SiteData.open(self.folder, self.place, shape, class_id, self.share, self.consent, columns)
        self.local = ClientContext.at(self.data.samples, self.machine)
        self.remembered = (-1, -1)  # samples, and those with pixels, when features were last looked through
        self._keep_features()

    @property
    def authority(self) -> Path | None:
        return self.keys.ca

    def begin_epoch(self, epoch: Epoch) -> None:
        self.data.begin_epoch()  # before the store, which knows the epoch: a kill in between does no harm
        super().begin_epoch(epoch)
        self.masked = None  # new keys: the masks of the rounds before are gone, and those rounds may be asked for again

    def answer(self, request: Request) -> Message:
        answers: Mapping[type[Request], Callable[[Any], Message]] = {
            IdentifyRequest: self._identify,
            TrainRequest: self._round,
            EvaluateRequest: self._evaluate,
            KeysRequest: lambda asked: self._masked().keys(asked),
            UnmaskRequest: lambda asked: self._masked().unmasked(asked),
            ReleaseRequest: self._release,
            NewsRequest: lambda asked: NewsResult(self.data.has_news(asked.images)),
            EndRequest: self._end,
        }
        if type(request) not in answers:
            raise FederationError(f"a site does not answer a {type(request).__name__}")
        return answers[type(request)](request)

    def _identify(self, request: IdentifyRequest) -> Identity:
        self._note_quarantine(request.quarantined)
        return Identity(self.keys.name)

    def _end(self, _: EndRequest) -> Ended:
        self.dismissed = True
        return Ended()

    def failed(self, sentence: str) -> Message:
        """Return a failure of the round, which says nothing against the model that was sent."""
        if not isinstance(self.request, TrainRequest):
            return super().failed(sentence)
        order, number = self.request.order, self.request.broadcast.context.round
        return TrainResult(failure=Failure(order.client, number, FAULT, sentence))

    def _note_quarantine(self, begins: bool) -> None:
        """Tell the site's people that rounds go on without it, or with it again."""
        if begins != self.quarantined:
            self.quarantined = begins
            self.say(QUARANTINED if begins else "the server's operators have released this site: it takes part again")

    # --- a round ----------------------------------------------------------------------------------------------

    def _round(self, call: TrainRequest) -> Message:
        broadcast, order, number = call.broadcast, call.order, call.broadcast.context.round
        if self.sealing is not None:
            self._check_choice(call)
        masked = self._masked() if self.aggregator.hides and order.participate else None
        session = call.partners.session if masked and call.partners else ""
        begun = begun_round(broadcast, order, self.store.begun(number), session, call.retired)
        reported = masked.reported(call) if masked else None
        if reported is not None:
            return reported
        try:
            site = Client(order.client, self.role, self.store, Stream(self.keys.root, "client", begun.task))
            self.guard.check_context(broadcast.context, self.store.begun_before(number), self.data.samples.ids)
            missing = site.missing(broadcast, order)
            if missing:
                return Missing(missing)
            self._retire_classes(call.retired)
            self._check_models(broadcast, order)
            arrival = self._arrival(number)
            self._check_loss(broadcast, order, arrival)
            masks = masked.masks(call) if masked else None
        except tuple(ABSENCES) as error:
            stage, sentence = ABSENCES[type(error)]
            self.say(sentence.format(round=number + 1, error=error))
            return TrainResult(failure=Failure(order.client, number, stage, str(error)))
        self.store.begin(begun)
        forgotten = self._forgotten(broadcast.context, arrival)
        if forgotten:
            self.say(
                f"round {number + 1}: the server has lost {len(forgotten)} classes of this site; they are announced"
            )
            return self._sealed(Reply(order.client, announced=forgotten), number)
        return self._trained(site, call, (begun.nonce, masks), arrival)

    def _forgotten(self, context: RoundContext, arrival: Tensor) -> tuple[str, ...]:
        """Return all class ids to announce if the state has samples of a class that the server no longer knows."""
        kept = self.store.before(context.round)
        placed = self.role.placed(kept.state if kept else self.role.init())
        if not self.data.samples.unknown(placed, context.catalogue):
            return ()
        return self.data.samples.unknown(torch.cat([placed, arrival]), context.catalogue)[:MOST_ANNOUNCED]

    def _trained(self, site: Client, call: TrainRequest, own: tuple[int, Masks | None], arrival: Tensor) -> TrainResult:
        """Carry out an order with the site's own nonce and masks, and return its result."""
        broadcast, order, number = call.broadcast, call.order, call.broadcast.context.round
        nonce, masks = own
        job = replace(site.prepare(broadcast, order, RoundData(arrival)), nonce=nonce, masks=masks)
        if len(taken_back := self.store.withdrawn(number)):
            job = replace(job, state=self.role.withdraw(job.state, taken_back))
        models = {digest: self.store.model(digest) for digest in broadcast.digests(order.participate)}
        self.machine.begin()
        done = _diverged(run_job(self.role, self.aggregator, job, broadcast, models, self.local), order, number)
        if masks is not None and done.reply is not None:
            self._masked().spend(call)
        answer = site.finish(number, job, done) if order.participate or not self._has_spent(number) else done.answer
        self._retire()
        report = done.reply.report if done.reply is not None else None
        self.own.holds(len(self.data.samples.ids), len(self.data.samples), report.samples if report else None)
        self.say(self._account(number, done, len(arrival)))
        if isinstance(answer, Failure):
            kind = answer.reason.partition(":")[0]  # its text may name what is in the folder
            kind = "this party's disk is full" if os.strerror(errno.ENOSPC) in answer.reason else kind
            return TrainResult(failure=replace(answer, reason=f"{kind}; the site's own log says more"))
        return self._sealed(answer, number)

    def _has_spent(self, number: int) -> bool:
        """Say whether the state knows what images spent by a report of this round; looking on must not lose that."""
        latest = self.store.latest
        return latest is not None and latest.round >= number and self.role.spent(latest.state) > 0

    def _masked(self) -> MaskedReports:
        """Return this site's half of masked rounds, with keys that are new whenever the site starts."""
        if not self.aggregator.hides:
            raise FederationError("reports of this federation are not masked")
        if self.masked is None:
            assert self.terms is not None
            self.masked = MaskedReports(self.terms, self.keys.secret, self.limits.least, self.store)
        return self.masked

    def _arrival(self, number: int) -> Tensor:
        """Return the samples of a round, which are fixed from now on."""
        kept, withdrawn = self.store.before(number), self.data.samples.withdrawn
        used = self.role.in_use(kept.state if kept else self.role.init())
        arrival = self.data.freeze(number, torch.cat([used, withdrawn]))
        for warning in self.data.drain_warnings():
            self.say(f"warning: {warning}")
        return arrival[~torch.isin(arrival, self.data.samples.withdrawn)]

    def _retire_classes(self, retired: Retired) -> None:
        """Follow the server's operators, who withdraw and merge classes; samples of withdrawn ones are let go."""
        samples, names = self.data.samples, dict(zip(self.data.samples.ids, self.data.class_names, strict=True))
        for name, into in retired.items():
            if name in names and samples.retired.get(name) != into:
                fate = f"merged {names[name]} into {names.get(into, into)}" if into else f"withdrawn {names[name]}"
                self.say(f"warning: the server's operators have {fate}")
        samples.retire_classes(retired)
        withdrawn, states = samples.withdrawn, (self.store.latest, self.store.former)
        if any(kept and bool(torch.isin(self.role.in_use(kept.state), withdrawn).any()) for kept in states):
            self.store.revise(lambda state: self.role.without(state, withdrawn))

    # --- what the server may ask for --------------------------------------------------------------------------------

    def _check_models(self, broadcast: Broadcast, order: Order) -> None:
        """Refuse models that cannot follow from the last one received."""
        before = self.store.begun_before(broadcast.context.round)
        model = self.store.model(broadcast.model)
        self.guard.check_model(model, broadcast.context, before, self._former(before))
        for digest in broadcast.teachers.digests if order.participate else ():
            self.guard.check_backbone(self.store.model(digest))

    def _former(self, before: BegunRound | None) -> ModelState | None:
        """Return the model of a round before, if it is still here."""
        if before is None:
            return None
        if self.store.lacks([before.model]):
            self.say(f"the model of round {before.round + 1} is gone, so the next one is not compared with it")
            return None
        return self.store.model(before.model)

    def _check_loss(self, broadcast: Broadcast, order: Order, arrival: Tensor) -> None:
        """Refuse a model with a strange loss on the newest images, normalised as at the beginning of the fit.

        Of a few images there are no statistics; then only a frozen backbone, which has its own, gives a loss to go by.
        """
        outputs = self.data.samples.outputs(arrival, broadcast.context)
        known = (outputs >= 0).nonzero().squeeze(1)[:BATCH]
        few = len(known) < FEWEST and not self.recipe.model.freeze
        model = self.store.model(broadcast.model)
        if few or not order.participate or head_width(model) == 0:
            return
        self.machine.begin()
        net = self.machine.net(model).train()
        with torch.no_grad():
            logits = net(self.machine.inputs(net, self.data.samples, arrival[known])).cpu()
        self.guard.check_loss(logits, outputs[known])

    def _check_choice(self, call: TrainRequest) -> None:
        """Refuse teachers that the proxy did not sign for this round."""
        broadcast, context = call.broadcast, call.broadcast.context
        if call.choice is None:
            late = context.round > 0 and call.order.participate
            if late or broadcast.teachers.digests:
                raise FederationError(f"round {context.round + 1} comes without the proxy's choice of teachers")
            return
        assert self.keys.proxy is not None
        assert self.terms is not None
        choosing = checked_choice(call.choice, self.keys.proxy.signing)
        wanted = (self.terms.federation, context.round, len(context.blocks), broadcast.teachers)
        if (choosing.federation, choosing.round, choosing.blocks, choosing.teachers) != wanted:
            raise FederationError(f"the teachers of round {context.round + 1} are not those that the proxy has signed")

    def _sealed(self, reply: Reply, number: int) -> TrainResult:
        """Return the reply with the proxy's part sealed; every reply has a box for class ids, so none stands out."""
        if self.sealing is None:
            return TrainResult(reply=reply)
        uploads: tuple[Message, ...] = tuple(self._seal(upload, number) for upload in reply.uploads)
        announced = self._seal(Announcement(reply.announced), number)
        return TrainResult(reply=replace(reply, uploads=uploads, announced=()), sealed=announced)

    def _seal(self, message: Message, number: int) -> Sealed:
        assert self.sealing is not None
        assert self.terms is not None
        content = encode(SealedContent(self.terms.federation, number, message))
        return Sealed(as_tensor(seal(content, self.sealing)))

    def _retire(self) -> None:
        """Delete the images that neither of the last two states uses."""
        states = [kept.state for kept in (self.store.latest, self.store.former) if kept is not None]
        used = [self.role.in_use(state) for state in states]
        self.data.retire(torch.unique(torch.cat(used)) if used else torch.empty(0, dtype=torch.int64))
        self._keep_features()

    def _keep_features(self) -> None:
        """Delete the kept features of retired images."""
        samples = self.data.samples
        present = len(samples), len(samples.held)
        if present != self.remembered:
            self.machine.frozen.keep_only(samples, samples.held)
            self.remembered = present

    def _account(self, number: int, done: Done, arrival: int) -> str:
        """Return a line on a round for the site's own log."""
        if done.failure is not None:
            return f"round {number + 1} failed at stage {done.failure.stage}: {done.failure.reason}"
        assert done.reply is not None
        parts = [f"round {number + 1}: {arrival} images in the newest arrival"]
        measured = done.diagnostics
        if measured is not None:
            parts += ["new classes detected"] if measured.alarm else []
            parts += [f"{measured.memory} exemplars"]
        report = done.reply.report
        if report is not None:
            loss = "" if measured is None or measured.loss is None else f", loss {measured.loss:.3f}"
            spent = self.role.spent(done.state) if done.state is not None else 0.0
            if spent:
                parts += [f"a report with noise, epsilon {spent:.3g} spent"]
            else:
                parts += [
                    "a masked report is sent" if self.aggregator.hides else f"trained on {report.samples} images{loss}"
                ]
        return ", ".join(parts)

    # --- evaluation -------------------------------------------------------------------------------------------

    def _evaluate(self, call: EvaluateRequest) -> Message:
        """Answer with the accuracy of a model after the last round, and keep the final one.

        Nothing is told of a second final model, which a server names if it does not apply the last round, nor of the
        final model of a round in which the site took no part.
        """
        last, evaluated = self.store.last_begun, self.store.evaluated
        replaced = call.last and evaluated is not None and evaluated.round == call.context.round
        evaluated = None if replaced else evaluated
        before = self.guard.check_evaluation(call.context, evaluated, last, self.data.samples.ids, call.last)
        silent = replaced or self.guard.missed(call.context, before)
        missing = self.store.lacks([call.model])
        if missing:
            return Missing(missing)
        model = self.store.model(call.model)
        self.guard.check_model(model, call.context, before, self._former(before), self.corrects)
        self.store.use([call.model])
        samples = self.data.hold_out_indices
        self.data.samples.retire_classes(call.retired)
        wanted = self.data.samples.outputs(samples, call.context)
        right, total = self._count(model, samples[wanted >= 0], wanted[wanted >= 0], call)
        told = (total >= self.limits.hold_out_images) & (not silent)
        self._log_evaluation(call, int(total[told].sum()), int(told.sum()))
        if call.last:
            self._export(model, call)
        return EvaluationResult(right * told, total * told)

    def _log_evaluation(self, call: EvaluateRequest, images: int, classes: int) -> None:
        count = self.store.evaluated.count + 1 if self.store.evaluated else 1
        self.say(
            f"evaluation {count} of at most {self.limits.evaluations}: the model {call.model[:8]} after round "
            f"{call.context.round}, on {images} hold-out images of {classes} classes"
        )

    def _count(
        self, model: ModelState, samples: Tensor, wanted: Tensor, call: EvaluateRequest
    ) -> tuple[Tensor, Tensor]:
        """Return the correct predictions and the images per output; retired outputs are never predicted."""
        net, outputs = self.machine.fixed_net(model), call.context.classes
        kept = torch.tensor(present(call.context.catalogue, call.retired))
        found = torch.empty(0, dtype=torch.int64)
        with torch.inference_mode():
            for part in torch.split(samples, BATCH) if len(samples) else ():
                scores = net(self.machine.inputs(net, self.data.samples, part))
                found = torch.cat([found, kept[scores.cpu()[:, kept].argmax(1)]])
        right = torch.bincount(wanted[found == wanted], minlength=outputs)
        return right, torch.bincount(wanted, minlength=outputs)

    def _export(self, model: ModelState, call: EvaluateRequest) -> None:
        """Write the final model."""
        write_atomically(self.folder / MODEL_FILE, self._file_of(model, call.context.catalogue, call.retired))
        self.say(f"the final model is {self.folder / MODEL_FILE}")

    def _file_of(self, model: ModelState, catalogue: tuple[str, ...], retired: Retired) -> bytes:
        """Return a model's file with the class names that this site knows, without retired classes."""
        names = dict(zip(self.data.samples.ids, self.data.class_names, strict=True))
        model, ids = without_rows(model, catalogue, retired)
        called, setting = tuple(names.get(identity, identity) for identity in ids), self.recipe.setting
        return named_model(model, called, self.recipe.model, setting.image_shape, columns=setting.columns)

    # --- releases ---------------------------------------------------------------------------------------------

    def _release(self, call: ReleaseRequest) -> Message:
        """Make a release the current one; a repeated one, or one that comes late, changes nothing."""
        release, held = call.release, self.releases
        if call.since <= held.since:
            return ReleaseHeld(held.since)
        missing = self.store.lacks([release.model])
        if missing:
            return Missing(missing)
        model = self.store.model(release.model)
        self.guard.check_release(model, release.catalogue, self.store.last_begun)
        broken = held.break_in_lineage(release)
        if broken:
            self.say(f"warning: {broken}")
        held.take(release, call.since, self._file_of(model, release.catalogue, call.retired))
        self.say(f"release {release.number}, of round {release.round}, is {held.current / MODEL_FILE}")
        return ReleaseHeld(call.since)


def _diverged(done: Done, order: Order, number: int) -> Done:
    """Return a failure instead of a reply whose loss is not finite."""
    loss = done.diagnostics.loss if done.diagnostics else None
    if done.reply is None or loss is None or math.isfinite(loss):
        return done
    failure = Failure(order.client, number, "fit", "DivergedError: the loss is not finite")
    return Done(None, None, failure)
