"""The contract of methods: a test class that names a method inherits every test."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar, Literal

import pytest

from fcil.core.messages import Announcement, Broadcast, Missing, ModelParcel, Notice, Reply, encode, model_digest
from fcil.core.messages.types import wire_name
from fcil.federation.client import MODELS_HELD
from fcil.federation.round_record import RoundRecord
from fcil.methods import get_method, method_config
from fcil.methods.detection import PUBLISHED
from fcil.testing.apart import Apart
from fcil.testing.learning import FIRST, NEW, OLD, learn
from fcil.testing.recorded import LONGER, SHORT, Exchange, fits, snapshot
from fcil.testing.robustness import Robustness, is_finite

Keeps = Literal["exemplars", "nothing", "everything", "unsent"]
BUDGET = 12  # exemplars, fewer than the samples that a task brings to a client
REMEMBERING: dict[str, Any] = {
    **SHORT,
    "initial_clients": 2,
    "joiners": 0,
    "both_share": 0.5,
    "class_fraction": 1.0,
    "memory": BUDGET,
}


class MethodContract(Robustness):
    """Derive from it, name the method, and pytest holds it to every contract.

    `keeps` names the data that a client trains on beside its newest arrival: exemplars within the memory's budget,
    nothing, everything that ever came, or samples that it has not reported on yet. `settings` are settings of the
    method under which it can learn a small task; `variant` are those that every run has, so that a variant of a method
    can have a contract of its own; `network` are settings of `[model]`, so that it can run on another network. `kind`
    is the kind of the samples: image, vector or series.
    """

    method: ClassVar[str]
    keeps: ClassVar[Keeps] = "exemplars"
    settings: ClassVar[Mapping[str, Any]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test that takes an edition with each edition of the method."""
        if "edition" in metafunc.fixturenames:
            metafunc.parametrize("edition", list(get_method(self.method).config.editions))

    def test_learns_and_keeps_what_its_memory_holds(self) -> None:
        """New classes are learned; old ones are still known where the client has samples of them."""
        learned = learn(self.method, {**self.variant, **self.settings}, model=self.network, kind=self.kind)
        assert learned.first > FIRST
        assert learned.new > NEW
        assert learned.old > OLD or self.keeps == "nothing"

    def test_trains_on_no_more_than_it_may_keep(self) -> None:
        """Beside its newest arrival a client trains on the samples that `keeps` names, and on no other."""
        made = self.trial(scenario=REMEMBERING)
        world = made.simulation.scenario
        excess, sent = 0, set[tuple[int, int]]()
        for fit in fits(made):
            arrival = set(world.holding(fit.round, fit.client).tolist())
            came = (world.holding(earlier, fit.client).tolist() for earlier in range(fit.round))
            former = {sample for samples in came for sample in samples} - arrival
            kept = fit.samples - arrival
            excess = max(excess, len(former))
            assert fit.samples, f"client {fit.client} reports a model that it trained without Machine.fit"
            assert kept <= former, "samples that the client never held"
            if self.keeps == "everything":
                assert kept == former
            elif self.keeps == "unsent":
                reported = {(fit.client, sample) for sample in fit.samples}
                assert not sent & reported, "a sample is in two reports of the client"
                sent |= reported
            elif self.keeps == "nothing":
                assert not kept
            else:
                assert len(kept) <= BUDGET
                assert bool(kept) == bool(former), "a client with a history has exemplars of it"
        assert excess > BUDGET, "no client ever had more than the budget allows"

    def test_trains_as_the_paper_or_its_own_source_does_when_asked_to(self) -> None:
        """Each optimiser that can be chosen trains another model."""
        config = get_method(self.method).config
        if "optimiser" not in config.model_fields:
            pytest.skip(f"{self.method} has no setting `optimiser`")

        def digest(optimiser: str) -> str:
            state, records = self.trial(fields={"optimiser": optimiser}, scenario={**SHORT, "tasks": (2,)}).run()
            assert is_finite(state)
            assert [record.failures for record in records] == [[]]
            return model_digest(state.model)

        digests = {optimiser: digest(optimiser) for optimiser in ("train", *PUBLISHED, "native")}
        same = [optimiser for optimiser, steps in PUBLISHED.items() if steps == config.native]
        assert len(set(digests.values())) == len(digests) - len(same)
        assert [optimiser for optimiser in PUBLISHED if digests[optimiser] == digests["native"]] == same

    @pytest.mark.parametrize("fields", [{}, {"optimiser": "paper"}], ids=["train", "paper"])
    def test_sees_no_task_id(self, fields: dict[str, Any]) -> None:
        """False tasks, groups, arrivals and a false length of the run and of its blocks change no bit."""
        if fields.keys() - get_method(self.method).config.model_fields.keys():
            pytest.skip(f"{self.method} has no setting `optimiser`")
        true_records, true_end = self._honest(fields)
        made = self.trial(scenario=LONGER, fields=fields, lie={"tasks": 1, "rounds_per_task": 17})
        rounds = list(islice(made.simulation.rounds(made.simulation.start()), len(true_records)))
        records = [record for _, record in rounds]
        assert snapshot(made, rounds[-1][0]) == true_end
        assert [record.alarms for record in records] == [record.alarms for record in true_records]
        assert [record.arrivals for record in records] != [record.arrivals for record in true_records]

    def _honest(self, fields: dict[str, Any]) -> tuple[list[RoundRecord], bytes]:
        """Return the records and the end of a run that is told the truth."""
        if not fields:
            return self.recorded().records, self.recorded().snapshots[-1]
        honest = self.trial(scenario=LONGER, fields=fields)
        state, records = honest.run()
        return records, snapshot(honest, state)

    def test_leaves_global_random_generators_untouched(self) -> None:
        """Every draw comes from a generator that is named after its purpose."""
        assert self.recorded().drew == []

    def test_counts_the_bytes_of_what_is_sent(self) -> None:
        """A record's traffic is the encoded size of the messages between server and clients."""
        run = self.recorded()
        held: dict[int, list[str]] = {}
        known: tuple[str, ...] = ()
        for exchange, record in zip(run.exchanges, run.records, strict=True):
            catalogue = exchange.broadcast.context.catalogue
            asked, down = downloaded(exchange, held)
            announced = [ids for ids in run.announced(record.round - 1, record.arrivals, known) if ids]
            up = uploaded(exchange) + asked + sum(len(encode(Announcement(ids))) for ids in announced)
            assert (record.bytes_up, record.bytes_down) == (up, down)
            assert {name for ids in announced for name in ids} == set(catalogue) - set(known)
            known = catalogue

    def test_sends_nothing_that_it_does_not_name(self) -> None:
        """`sends` of its settings names all that participants send in addition to the model, each in words."""
        method = get_method(self.method)
        stated = method_config(method, "fcil", self.variant).sends()
        found = {name for exchange in self.recorded().exchanges for name in names_sent(exchange)}
        unnamed = {name for name in found if not any(is_named(name, key) for key in stated)}
        assert not unnamed, f"{self.method} sends {', '.join(sorted(unnamed))}; its `sends` should name it"
        assert all(words.strip() for words in stated.values()), f"the `sends` of {self.method} should say it in words"

    def test_trains_to_the_same_bits_at_a_worker(self) -> None:
        """A client receives everything it needs as messages, and nothing else."""
        plain, ours = self.trial(scenario=SHORT), self.trial(engine=Apart, scenario=SHORT)
        state, records = ours.run()
        assert snapshot(ours, state) == snapshot(plain, plain.run()[0])
        assert [record.failures for record in records] == [[]] * len(records)


def names_sent(exchange: Exchange) -> set[str]:
    """Return the names of all that came with the models of a round: parts, weights of rows, messages to the proxy."""
    replies = [answer for answer in exchange.answers if isinstance(answer, Reply)]
    reports = [reply.report for reply in replies if reply.report]
    messages = {wire_name(type(message)) for reply in replies for message in reply.uploads}
    return messages.union(*(report.parts for report in reports), *(report.rows for report in reports))


def is_named(name: str, key: str) -> bool:
    """Say whether a key of `sends` stands for a name on the wire: `fisher.` does for `fisher.head.weight`.

    >>> is_named("fisher.head.weight", "fisher."), is_named("biases", "bias")
    (True, False)
    """
    return name == key or (key.endswith(".") and name.startswith(key))


def uploaded(exchange: Exchange) -> int:
    """Return the bytes of all answers: the report and each upload by itself, class ids where some are announced."""
    total = 0
    for answer in exchange.answers:
        if isinstance(answer, Reply):
            parts = [*answer.uploads, *([answer.report] if answer.report else [])]
            total += sum(len(encode(part)) for part in parts)
            total += len(encode(Announcement(answer.announced))) if answer.announced else 0
    return total


def downloaded(exchange: Exchange, held: dict[int, list[str]]) -> tuple[int, int]:
    """Return the bytes of the clients' requests for models, and of the models received.

    `held` has the models that each client has, and is brought up to date.
    """
    sent, asked, received = exchange.broadcast, 0, 0
    for order in exchange.orders:
        told = sent.extra if isinstance(sent.extra, Notice) else None
        message, takes = Broadcast(sent.context, sent.model, extra=told), [sent.model]
        if order.participate:
            message = sent
            takes += [digest for digest in exchange.models if digest != sent.model]
        own = held.get(order.client, [])
        missing = [digest for digest in takes if digest not in own]
        received += len(encode(message))
        received += sum(len(encode(ModelParcel(digest, exchange.models[digest]))) for digest in missing)
        asked += len(encode(Missing(tuple(missing)))) if missing else 0
        held[order.client] = list(dict.fromkeys([*takes, *own]))[: max(MODELS_HELD, len(takes))]
    return asked, received
