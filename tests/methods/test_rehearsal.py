from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from fcil.local import Local, TrainConfig
from fcil.maths.entropy import official_entropy, softmax_entropy
from fcil.maths.herding import herd
from fcil.methods import Setting
from fcil.methods.base import Current
from fcil.methods.lesson import Classification, outputs_of
from fcil.methods.rehearsal import ClientState, RehearsalClient, RehearsalConfig, arrive
from fcil.methods.server import Teachers, newest_older_model, plain_server
from fcil.models import ModelConfig, grow, initial_state
from fcil.results.metrics import detection
from fcil.testing import blobs, trial
from fcil.testing.played import LONGER, SHORT
from fcil.wire import Broadcast, Message, ModelState, Moment, Order, Report, model_digest

SOURCE = blobs(per_class=10)
MODEL = ModelConfig(width=2)


def of_classes(*classes: int) -> torch.Tensor:
    return torch.isin(SOURCE.train.labels, torch.tensor(classes)).nonzero().squeeze(1)


def local() -> Local:
    return Local(SOURCE, MODEL, TrainConfig(epochs=1, batch_size=8, learning_rate=0.1))


def model_with(classes: int) -> ModelState:
    return grow(initial_state(MODEL, 1, 0), classes, 1)


def broadcast(moment: Moment, model: ModelState, **extras: Any) -> Broadcast:
    digest = model_digest(model)
    return Broadcast(moment, digest, {digest: model}, **extras)


def client(**fields: Any) -> RehearsalClient:
    return RehearsalClient(RehearsalConfig(**fields), Setting(6, SOURCE.image_shape, "uniform", 0), Classification)


def play(role: RehearsalClient, state: ClientState, arrival: torch.Tensor, **order: Any) -> tuple[ClientState, Any]:
    everything = Moment(0, tuple(range(6)), (6,), 0)
    return role.round(
        state, broadcast(everything, model_with(6)), Order(0, 1, False, **order), Current(arrival), local()
    )


def test_labels_raise_one_alarm_for_each_new_class() -> None:
    role, state = client(), ClientState()
    alarms = []
    for arrival in (of_classes(0, 1), of_classes(0, 1), of_classes(2), of_classes(0, 2), of_classes(0, 3)):
        state, reply = play(role, state, arrival)
        alarms.append(reply.diagnostics.alarm)
    assert alarms == [True, False, True, False, True]
    assert state.acknowledged == (0, 1, 2, 3)


def test_oracle_follows_the_truth_in_its_order() -> None:
    role = client(detector="oracle")
    assert role.wants_truth
    _, told = play(role, ClientState(), of_classes(0), new_classes=True)
    _, untold = play(role, ClientState(), of_classes(0), new_classes=False)
    assert (told.diagnostics.alarm, untold.diagnostics.alarm) == (True, False)


def test_no_current_data_gives_no_entropy_and_no_alarm() -> None:
    for detector in ("labels", "entropy", "oracle"):
        _, reply = play(client(detector=detector), ClientState(), torch.empty(0, dtype=torch.int64), new_classes=True)
        assert (reply.diagnostics.alarm, reply.diagnostics.entropy) == (False, None)


def test_the_entropy_is_the_mean_over_the_newest_arrival_in_evaluation_mode() -> None:
    arrival = of_classes(1, 4)
    _, reply = play(client(detector="entropy"), ClientState(), arrival)
    logits = local().net(model_with(6))(SOURCE.train.images[arrival].float() / 255).detach()
    assert reply.diagnostics.entropy == pytest.approx(float(softmax_entropy(logits).mean()), rel=1e-5)
    assert reply.diagnostics.alarm  # from zero to nearly ln 6 = 1.79, over 1.2


def test_the_released_rule_takes_its_own_entropy() -> None:
    arrival = of_classes(1, 4)
    _, reply = play(client(detector="entropy", entropy_rule="code"), ClientState(), arrival)
    logits = local().net(model_with(6))(SOURCE.train.images[arrival].float() / 255).detach()
    assert reply.diagnostics.entropy == pytest.approx(float(official_entropy(logits).mean()), rel=1e-5)


def test_the_relative_threshold_fires_where_the_absolute_one_cannot() -> None:
    moment, model = Moment(0, (0, 1, 2), (3,), 0), model_with(3)  # ln 3 = 1.10 stays below 1.2
    alarms = []
    for threshold in ("absolute", "relative"):
        role = client(detector="entropy", entropy_threshold=threshold)
        _, reply = role.round(
            ClientState(), broadcast(moment, model), Order(0, 1, False), Current(of_classes(0, 1)), local()
        )
        alarms.append(reply.diagnostics.alarm)
    assert alarms == [False, True]


def test_old_outputs_leave_the_newest_block_out_of_the_entropy() -> None:
    moment, model, arrival = Moment(5, tuple(range(6)), (4, 6), 0), model_with(6), of_classes(4, 5)
    role = client(detector="entropy", entropy_outputs="old")
    _, reply = role.round(ClientState(), broadcast(moment, model), Order(0, 1, False), Current(arrival), local())
    logits = local().net(model)(SOURCE.train.images[arrival].float() / 255).detach()
    assert reply.diagnostics.entropy == pytest.approx(float(softmax_entropy(logits[:, :4]).mean()), rel=1e-5)


def test_an_alarm_herds_what_came_before_and_a_second_one_changes_nothing() -> None:
    role = client(detector="oracle")
    state, _ = play(role, ClientState(), of_classes(0, 1), new_classes=True)
    assert len(state.memory) == 0
    state, reply = play(role, state, of_classes(2), new_classes=True)
    assert state.memory.classes == (0, 1)
    assert [len(ranked) for ranked in state.memory.ranked] == [3, 3]
    assert reply.diagnostics.memory == 6
    again, _ = play(role, state, of_classes(2), new_classes=True)
    assert again.memory == state.memory or torch.equal(again.memory.indices, state.memory.indices)
    assert torch.equal(again.latest, of_classes(2))


def test_only_the_first_alarm_for_a_class_has_something_to_upload() -> None:
    asked: list[tuple[int, ...]] = []

    class Noting(Classification[RehearsalConfig]):
        def uploads(self) -> tuple[Message, ...]:
            asked.append(self.problem.new_classes)
            return ()

    role = client(detector="oracle")
    role.lesson = Noting
    everything = Moment(0, tuple(range(6)), (6,), 0)
    state = ClientState()
    for arrival, alarm in (
        (of_classes(0, 1), True),
        (of_classes(0, 1), True),
        (of_classes(1, 2), True),
        (of_classes(3), False),
    ):
        order = Order(0, 1, True, new_classes=alarm)
        state, _ = role.round(state, broadcast(everything, model_with(6)), order, Current(arrival), local())
    assert asked == [(0, 1), (), (2,), ()]


def test_the_oracle_waits_with_the_samples_it_speaks_of() -> None:
    role = client(detector="oracle")
    narrow, wide = Moment(0, (0, 1), (2,), 0), Moment(1, (0, 1, 4), (2, 3), 0)
    state, first = role.round(
        ClientState(), broadcast(narrow, model_with(2)), Order(0, 1, False, True), Current(of_classes(0)), local()
    )
    state, early = role.round(
        state, broadcast(narrow, model_with(2)), Order(0, 1, False, True), Current(of_classes(4)), local()
    )
    state, late = role.round(
        state, broadcast(wide, model_with(3)), Order(0, 1, False, False), Current(of_classes(4)), local()
    )
    assert [reply.diagnostics.alarm for reply in (first, early, late)] == [True, False, True]
    assert state.memory.classes == (0,)


@pytest.mark.parametrize("detector", ["labels", "oracle"])
@pytest.mark.parametrize(("announce", "delay"), [("start", 0.0), ("reply", 1.0)])
def test_no_arrival_is_missed_whenever_classes_are_announced(detector: str, announce: str, delay: float) -> None:
    made = trial("finetune", fields={"detector": detector}, federation={"announce": announce}, scenario=LONGER)
    _, records = made.play()
    found = detection([asdict(record) for record in records])
    assert (found.misses, found.false_alarms, found.mean_delay) == (0, 0, delay)
    assert found.hits == sum(len(record.arrivals) for record in records) > 0


def test_a_missed_alarm_loses_nothing_and_is_caught_up_at_the_next() -> None:
    role = client(detector="oracle")
    state, _ = play(role, ClientState(), of_classes(0), new_classes=True)
    state, _ = play(role, state, of_classes(1), new_classes=False)
    assert torch.equal(state.earlier, of_classes(0))
    state, _ = play(role, state, of_classes(2), new_classes=True)
    assert state.memory.classes == (0, 1)
    assert len(state.earlier) == 0


def test_a_withdrawn_arrival_is_herded_at_once() -> None:
    role = client()
    state, _ = play(role, ClientState(), of_classes(0, 3))
    state, reply = play(role, state, torch.empty(0, dtype=torch.int64))
    assert state.memory.classes == (0, 3)
    assert (len(state.latest), len(state.earlier), reply.diagnostics.alarm) == (0, 0, False)


def test_exemplars_are_those_of_herding_under_the_received_model() -> None:
    role, samples = client(), of_classes(3)
    state, _ = play(role, ClientState(), samples)
    state, _ = play(role, state, torch.empty(0, dtype=torch.int64))
    features = local().infer("any", model_with(6), samples).features
    assert torch.equal(state.memory.indices, samples[herd(features, 6)])


def test_herding_with_batch_statistics_and_replacement_as_released() -> None:
    role = client(herding="replacement", herding_statistics="batch")
    role.memory = 30
    samples = of_classes(3)
    state, _ = play(role, ClientState(), samples)
    state, _ = play(role, state, torch.empty(0, dtype=torch.int64))
    net = local().net(model_with(6)).train()
    features = net.extract(SOURCE.train.images[samples].float() / 255).detach()
    assert torch.equal(state.memory.indices, samples[herd(features, 30, replacement=True)])
    assert len(state.memory) == 30 > len(samples)


def test_samples_that_wait_for_an_output_leave_the_current_data_in_use() -> None:
    role = client()
    moment = Moment(0, (0, 1), (2,), 0)
    state, _ = role.round(
        ClientState(), broadcast(moment, model_with(2)), Order(0, 1, False), Current(of_classes(0, 1)), local()
    )
    waiting, reply = role.round(
        state, broadcast(moment, model_with(2)), Order(0, 1, False), Current(of_classes(4)), local()
    )
    assert reply.announced == (4,)
    assert torch.equal(waiting.latest, of_classes(0, 1))


def test_arrivals_never_count_twice() -> None:
    state = arrive(ClientState(), of_classes(0))
    state = arrive(state, of_classes(0, 1))
    assert len(state.earlier) == 0
    assert torch.equal(state.latest, of_classes(0, 1))


def test_outputs_follow_the_catalogue() -> None:
    assert outputs_of(torch.tensor([9, 2, 4]), Moment(0, (4, 9, 2), (3,), 0)).tolist() == [1, 2, 0]


def test_the_teacher_is_the_newest_model_without_the_newest_block() -> None:
    models = {str(width): model_with(width) for width in (2, 4, 6)}
    moment = Moment(9, tuple(range(6)), (2, 4, 6), 3)

    def chosen(proxy: Teachers | None, server: Teachers | None = None) -> str | None:
        return newest_older_model(Broadcast(moment, "6", models, server, proxy), alarm=True)

    assert chosen(Teachers(current="6", last="4")) == "4"
    assert chosen(Teachers(current="4", last="2")) == "4"
    assert chosen(Teachers(current="6")) is None
    assert chosen(None, Teachers(last="4")) == "4"
    assert chosen(None) is None


def test_a_merged_growth_does_not_make_a_teacher_of_its_own_block() -> None:
    models = {"3": model_with(3), "2": model_with(2)}
    moment = Moment(9, tuple(range(4)), (2, 4), 3)
    assert newest_older_model(Broadcast(moment, "x", models, None, Teachers(current="3", last="2")), False) == "2"


def test_the_server_keeps_the_model_from_before_a_new_block_only() -> None:
    server = plain_server(Setting(0, (1, 8, 8), "uniform", 0), teaches=True)
    empty = initial_state(MODEL, 1, 0)
    state, first = server.grow(server.init(), empty, 2, True, 1)
    assert state.previous is None
    state, merged = server.grow(state, first, 3, False, 1)
    assert state.previous is None
    state, _ = server.grow(state, merged, 5, True, 1)
    assert state.previous is not None
    assert model_digest(state.previous) == model_digest(merged)


def test_averaging_by_samples_weighs_reports() -> None:
    moment = Moment(0, (0,), (1,), 0)
    reports = [Report({"w": torch.tensor([0.0])}, 1), Report({"w": torch.tensor([4.0])}, 3)]
    results = {}
    for averaging in ("uniform", "samples"):
        server = plain_server(Setting(0, (1, 8, 8), averaging, 0), teaches=False)  # type: ignore[arg-type]
        _, model = server.round(server.init(), {"w": torch.tensor([9.0])}, reports, moment)
        results[averaging] = model["w"].item()
    assert results == {"uniform": 2.0, "samples": 3.0}
    _, unchanged = server.round(server.init(), {"w": torch.tensor([9.0])}, [], moment)
    assert unchanged["w"].item() == 9.0


def test_finetune_keeps_no_exemplars_but_a_history() -> None:
    made = trial("finetune", scenario=SHORT)
    made.play()
    states = list(made.store.states.values())
    assert all(len(state.memory) == 0 for state in states)  # type: ignore[attr-defined]
    assert any(state.memory.classes for state in states)  # type: ignore[attr-defined]
