"""A real site: its folder of images, keys and state around the same `Client` as in a simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.files import write_atomically
from fcil.core.messages import Announcement, Failure, Message, Missing, ModelState, Reply, RoundContext, Stream, encode
from fcil.data.augment import as_floats
from fcil.deployment.client.image_folder import SiteData
from fcil.deployment.keys.make import SiteKeys
from fcil.deployment.keys.sealing import seal
from fcil.deployment.party import Party, Say
from fcil.deployment.signed_teachers import checked_choice
from fcil.deployment.transport.messages import (
    Ended,
    EndRequest,
    EvaluateRequest,
    EvaluationResult,
    IdentifyRequest,
    Identity,
    Request,
    Sealed,
    SealedContent,
    TrainRequest,
    TrainResult,
    as_tensor,
)
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.experiment.model_file import named_model
from fcil.federation.client import Client, Done, RoundData, run_job
from fcil.federation.engines.base import Recipe
from fcil.models.client_context import ClientContext

BATCH = 256


class SiteParty(Party):
    """Answers for one site; images, exemplars and diagnostics never leave it."""

    def __init__(
        self,
        keys: SiteKeys,
        data: Path,
        folder: Path,
        say: Say,
        hold_out: float = 0.1,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        super().__init__(folder, keys.secret.encoder_seed, device, threads, say)
        self.keys = keys
        self.place = data
        self.share = hold_out

    def build(self, recipe: Recipe) -> None:
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
        self.aggregator, self.machine = recipe.aggregator(), recipe.machine()
        shape = recipe.setting.image_shape
        self.data = SiteData.open(self.folder, self.place, shape, self.keys.secret.class_id, self.share)
        self.local = ClientContext.at(self.data.samples, self.machine)

    def answer(self, request: Request) -> Message:
        if isinstance(request, IdentifyRequest):
            return Identity(self.keys.name)
        if isinstance(request, TrainRequest):
            return self._round(request)
        if isinstance(request, EvaluateRequest):
            return self._evaluate(request)
        if isinstance(request, EndRequest):
            self.dismissed = True
            return Ended()
        raise FederationError(f"a site does not answer a {type(request).__name__}")

    # --- a round ----------------------------------------------------------------------------------------------

    def _round(self, call: TrainRequest) -> Message:
        broadcast, order, number = call.broadcast, call.order, call.broadcast.context.round
        if self.sealing is not None:
            self._check_choice(call)
        site = Client(order.client, self.role, self.store, Stream(self.keys.root, "client"))
        missing = site.missing(broadcast, order)
        if missing:
            return Missing(missing)
        kept = self.store.before(number)
        arrival = self.data.freeze(number, self.role.in_use(kept.state if kept else self.role.init()))
        for warning in self.data.drain_warnings():
            self.say(f"warning: {warning}")
        job = site.prepare(broadcast, order, RoundData(arrival))
        models = {digest: self.store.model(digest) for digest in broadcast.digests(order.participate)}
        done = run_job(self.role, self.aggregator, job, broadcast, models, self.local)
        answer = site.finish(number, job, done)
        self._retire()
        self.say(self._account(number, done, len(arrival)))
        if isinstance(answer, Failure):
            kind = answer.reason.partition(":")[0]  # its text may name what is in the folder
            return TrainResult(failure=replace(answer, reason=f"{kind}; the site's own log says more"))
        return self._sealed(answer, number)

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
            parts += [f"trained on {report.samples} images{loss}"]
        return ", ".join(parts)

    # --- evaluation -------------------------------------------------------------------------------------------

    def _evaluate(self, call: EvaluateRequest) -> Message:
        missing = self.store.lacks([call.model])
        if missing:
            return Missing(missing)
        model = self.store.model(call.model)
        self.store.use([call.model])
        pixels, labels = self.data.hold_out()
        outputs = {name: output for output, name in enumerate(call.context.catalogue)}
        wanted = torch.tensor([outputs.get(name, -1) for name in self.data.samples.ids], dtype=torch.int64)[labels]
        right, total = self._count(model, pixels[wanted >= 0], wanted[wanted >= 0], call.context.classes)
        if call.last:
            self._export(model, call.context)
        return EvaluationResult(right, total)

    def _count(self, model: ModelState, pixels: Tensor, wanted: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        """Return the correct predictions and the images per output."""
        net = self.machine.net(model)
        found = torch.empty(0, dtype=torch.int64)
        with torch.inference_mode():
            for part in torch.split(pixels, BATCH) if len(pixels) else ():
                scores = net(as_floats(part.to(self.machine.device)))
                found = torch.cat([found, scores.argmax(1).cpu()])
        right = torch.bincount(wanted[found == wanted], minlength=outputs)
        return right, torch.bincount(wanted, minlength=outputs)

    def _export(self, model: ModelState, context: RoundContext) -> None:
        """Write the final model with the class names that this site knows."""
        names = dict(zip(self.data.samples.ids, self.data.class_names, strict=True))
        called = tuple(names.get(identity, identity) for identity in context.catalogue)
        data = named_model(model, called, self.recipe.model, self.recipe.setting.image_shape)
        write_atomically(self.folder / MODEL_FILE, data)
        self.say(f"the final model is {self.folder / MODEL_FILE}")
