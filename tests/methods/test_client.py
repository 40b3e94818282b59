"""The skeleton that all methods share: arrival, alarms, and what goes into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.clients import run_client
from support.objectives import MODEL, catalogue, make_local
from torch import Tensor

import fcil.methods
from fcil.core.messages import Diagnostics, Message, ModelState, Reply, RoundContext
from fcil.data.exemplar_memory import Memory
from fcil.experiment.metrics import detection
from fcil.maths.entropy import official_entropy, softmax_entropy
from fcil.methods import Setting, methods
from fcil.methods.client import ClientState, RehearsalClient, arrive
from fcil.methods.exemplar_selection import RehearsalConfig
from fcil.methods.local_objective import Classification, LocalObjective, UnclippedObjective
from fcil.models import grow, initial_state
from fcil.testing import blobs, trial
from fcil.testing.recorded import LONGER

SOURCE = blobs(per_class=10)
LOCAL = make_local(SOURCE)
EVERYTHING = RoundContext(0, catalogue(6), (6,), 0)
NOTHING = torch.empty(0, dtype=torch.int64)


def of_classes(*classes: int) -> Tensor:
    return torch.isin(SOURCE.train.labels, torch.tensor(classes)).nonzero().squeeze(1)


def model_with(classes: int) -> ModelState:
    return grow(initial_state(MODEL, 1, 0), classes, 1)


def client(**fields: Any) -> RehearsalClient:
    return RehearsalClient(RehearsalConfig(**fields), Setting(6, SOURCE.image_shape, None), Classification)


def play(
    role: RehearsalClient, state: ClientState, arrival: Tensor, context: RoundContext = EVERYTHING, **more: Any
) -> tuple[ClientState, Reply, Diagnostics]:
    return run_client(role, state, arrival, LOCAL, context, model_with(context.classes), **more)


def test_labels_raise_one_alarm_for_each_new_class() -> None:
    role, state = client(), ClientState()
    alarms = []
    for arrival in (of_classes(0, 1), of_classes(0, 1), of_classes(2), of_classes(0, 2), of_classes(0, 3)):
        state, _, measured = play(role, state, arrival)
        alarms.append(measured.alarm)
    assert alarms == [True, False, True, False, True]
    assert state.acknowledged == (0, 1, 2, 3)


def test_oracle_follows_the_truth_that_it_is_told() -> None:
    role = client(detector="oracle")
    assert role.wants_truth
    alarms = [play(role, ClientState(), of_classes(0), new_classes=truth)[2].alarm for truth in (True, False, None)]
    assert alarms == [True, False, False]


def test_no_current_data_gives_no_entropy_and_no_alarm() -> None:
    for detector in ("labels", "entropy", "oracle"):
        _, _, measured = play(client(detector=detector), ClientState(), NOTHING, new_classes=True)
        assert (measured.alarm, measured.entropy) == (False, None)


def logits_of(arrival: Tensor) -> Tensor:
    return LOCAL.machine.net(model_with(6))(SOURCE.train.images[arrival].float() / 255).detach()


def test_the_entropy_is_the_mean_over_the_newest_arrival_in_evaluation_mode() -> None:
    arrival = of_classes(1, 4)
    _, _, measured = play(client(detector="entropy"), ClientState(), arrival)
    assert measured.entropy == pytest.approx(float(softmax_entropy(logits_of(arrival)).mean()), rel=1e-5)
    assert measured.alarm  # from zero to nearly ln 6 = 1.79, over 1.2


def test_the_released_rule_takes_its_own_entropy() -> None:
    arrival = of_classes(1, 4)
    _, _, measured = play(client(detector="entropy", entropy_rule="code"), ClientState(), arrival)
    assert measured.entropy == pytest.approx(float(official_entropy(logits_of(arrival)).mean()), rel=1e-5)


def test_the_relative_threshold_fires_where_the_absolute_one_cannot() -> None:
    context = RoundContext(0, catalogue(3), (3,), 0)  # ln 3 = 1.10 stays below 1.2
    roles = [client(detector="entropy", entropy_threshold=threshold) for threshold in ("absolute", "relative")]
    alarms = [play(role, ClientState(), of_classes(0, 1), context)[2].alarm for role in roles]
    assert alarms == [False, True]


def test_old_outputs_leave_the_newest_block_out_of_the_entropy() -> None:
    context, arrival = RoundContext(5, catalogue(6), (4, 6), 0), of_classes(4, 5)
    _, _, measured = play(client(detector="entropy", entropy_outputs="old"), ClientState(), arrival, context)
    assert measured.entropy == pytest.approx(float(softmax_entropy(logits_of(arrival)[:, :4]).mean()), rel=1e-5)


def test_an_alarm_herds_what_came_before_and_a_second_one_changes_nothing() -> None:
    role = client(detector="oracle")
    state, _, _ = play(role, ClientState(), of_classes(0, 1), new_classes=True)
    assert len(state.memory) == 0
    state, _, measured = play(role, state, of_classes(2), new_classes=True)
    assert state.memory.classes == (0, 1)
    assert [len(ranked) for ranked in state.memory.ranked] == [3, 3]
    assert measured.memory == 6
    again, _, _ = play(role, state, of_classes(2), new_classes=True)
    assert torch.equal(again.memory.indices, state.memory.indices)
    assert torch.equal(again.latest, of_classes(2))


def test_only_the_first_alarm_for_a_class_has_something_to_upload() -> None:
    asked: list[tuple[int, ...]] = []

    class Noting(Classification[RehearsalConfig]):
        def uploads(self) -> tuple[Message, ...]:
            asked.append(self.problem.news.classes)
            return ()

    role, state = client(detector="oracle"), ClientState()
    role.objective = Noting
    for arrival, alarm in (
        (of_classes(0, 1), True),
        (of_classes(0, 1), True),
        (of_classes(1, 2), True),
        (of_classes(3), False),
    ):
        state, _, _ = play(role, state, arrival, new_classes=alarm, participate=True)
    assert asked == [(0, 1), (), (2,), ()]


def test_the_oracle_waits_with_the_samples_it_speaks_of() -> None:
    role = client(detector="oracle")
    narrow, wide = RoundContext(0, ("0", "1"), (2,), 0), RoundContext(1, ("0", "1", "4"), (2, 3), 0)
    state, _, first = play(role, ClientState(), of_classes(0), narrow, new_classes=True)
    state, _, early = play(role, state, of_classes(4), narrow, new_classes=True)
    state, _, late = play(role, state, of_classes(4), wide, new_classes=False)
    assert [measured.alarm for measured in (first, early, late)] == [True, False, True]
    assert state.memory.classes == (0,)


@pytest.mark.parametrize("detector", ["labels", "oracle"])
@pytest.mark.parametrize(("announce", "delay"), [("start", 0.0), ("reply", 1.0)])
def test_no_arrival_is_missed_whenever_classes_are_announced(detector: str, announce: str, delay: float) -> None:
    made = trial("finetune", fields={"detector": detector}, federation={"announce": announce}, scenario=LONGER)
    _, records = made.run()
    found = detection(records)
    assert (found["misses"], found["false_alarms"], found["mean_delay"]) == (0, 0, delay)
    assert found["hits"] == sum(len(record.arrivals) for record in records) > 0


def test_a_missed_alarm_loses_nothing_and_is_caught_up_at_the_next() -> None:
    role = client(detector="oracle")
    state, _, _ = play(role, ClientState(), of_classes(0), new_classes=True)
    state, _, _ = play(role, state, of_classes(1), new_classes=False)
    assert torch.equal(state.earlier, of_classes(0))
    state, _, _ = play(role, state, of_classes(2), new_classes=True)
    assert state.memory.classes == (0, 1)
    assert len(state.earlier) == 0


def test_a_withdrawn_arrival_is_herded_at_once() -> None:
    role = client()
    state, _, _ = play(role, ClientState(), of_classes(0, 3))
    state, _, measured = play(role, state, NOTHING)
    assert state.memory.classes == (0, 3)
    assert (len(state.latest), len(state.earlier), measured.alarm) == (0, 0, False)


def test_samples_that_wait_for_an_output_leave_the_current_data_in_use() -> None:
    role, context = client(), RoundContext(0, ("0", "1"), (2,), 0)
    state, _, _ = play(role, ClientState(), of_classes(0, 1), context)
    waiting, _, _ = play(role, state, of_classes(4), context)
    assert torch.equal(waiting.latest, of_classes(0, 1))


def test_arrivals_never_count_twice() -> None:
    state = arrive(ClientState(), of_classes(0))
    state = arrive(state, of_classes(0, 1))
    assert len(state.earlier) == 0
    assert torch.equal(state.latest, of_classes(0, 1))


def test_a_client_to_which_nothing_happens_keeps_the_very_same_state() -> None:
    role = client()
    state, _, _ = play(role, ClientState(), of_classes(0, 1))
    again, _, _ = play(role, state, of_classes(0, 1), participate=True)
    assert again is state


@pytest.mark.parametrize("method", sorted(methods()))
def test_all_that_a_state_refers_to_is_in_use(method: str) -> None:
    described = methods()[method]
    role = described.build(described.config(), Setting(6, SOURCE.image_shape, 1)).client
    assert len(role.in_use(role.init())) == 0
    if not isinstance(role.init(), ClientState):
        pytest.skip("its state is another one, with a test of its own")
    state = ClientState(of_classes(0), of_classes(1), Memory((3,), (of_classes(3)[[4, 2]],)))
    assert torch.equal(role.in_use(state), torch.cat([of_classes(0, 1), of_classes(3)[[2, 4]]]).unique())


@pytest.mark.parametrize(("keeps_all", "left"), [(True, (0, 1, 2)), (False, (2,))])
def test_who_keeps_all_data_uses_it_for_ever(keeps_all: bool, left: tuple[int, ...]) -> None:
    role, state = client(), ClientState()
    role.keeps_all, role.memory = keeps_all, 0
    for label in range(3):
        state, _, _ = play(role, state, of_classes(label))
    assert torch.equal(role.in_use(state), of_classes(*left))


def test_a_client_without_any_data_reports_nothing() -> None:
    _, reply, measured = play(client(), ClientState(), NOTHING, participate=True)
    assert reply == Reply(0)
    assert measured == Diagnostics()


def test_gradients_are_limited_unless_a_method_of_ours_is_trained_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    methods()
    kinds, found = [LocalObjective], set[type]()
    while kinds:
        inner = kinds.pop().__subclasses__()
        found |= set(inner)
        kinds += inner
    files = {f"fcil.methods.{path.stem}" for path in Path(fcil.methods.__file__).parent.glob("*.py")}
    ours = {kind for kind in found if kind.__module__ in files}  # a test of the registry may have put others there
    assert len(ours) > 12
    assert {kind.gradient_limit for kind in ours if not getattr(kind, "__parameters__", ())} <= {None, 10.0}
    assert all(issubclass(kind, UnclippedObjective) or kind.__module__ == LocalObjective.__module__ for kind in ours)

    def moved() -> float:
        made = trial("finetune", scenario={"tasks": 1, "rounds_per_task": 2})
        states = [state.model for state, _ in made.simulation.rounds(made.simulation.start())]
        return float((states[1]["head.weight"] - states[0]["head.weight"]).abs().max())

    assert moved() > 1e-3
    monkeypatch.setattr(Classification, "gradient_limit", 1e-9)
    assert moved() < 1e-4
