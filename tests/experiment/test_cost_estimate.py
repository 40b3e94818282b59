from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fcil.core.errors import ConfigError, DataError
from fcil.core.messages import Broadcast, Diagnostics, Message, Order, Reply, Report
from fcil.data.datasets import load_source
from fcil.data.datasets.dataset import Source
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.build import make_recipe
from fcil.experiment.config import load_config
from fcil.experiment.cost_estimate import CostEstimate, count_volume, make_plan
from fcil.maths.gaussian_mechanism import noise_of
from fcil.methods import Method, MethodConfig, Roles, Setting, methods
from fcil.methods import base as registry
from fcil.methods.base import ClientRole, Current
from fcil.methods.server import newest_older_model, plain_server
from fcil.models.client_context import ClientContext

SMALL = ["scenario.tasks=[2, 2]", "scenario.rounds_per_task=2", "model.width=2", "train.epochs=3", "method.name=icarl"]


def volume_of(*settings: str) -> tuple[int, int]:
    config = load_config("digits", [*SMALL, *settings])
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    counted = count_volume(config, source, scenario, make_recipe(config, source).roles().client)
    return counted.trained, counted.taught


def test_training_samples_are_those_of_the_scenario() -> None:
    config = load_config("digits", [*SMALL, "scenario.memory=0"])
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    held = [
        sum(len(scenario.holding(number, client)) for client in scenario.participants(number)) for number in range(4)
    ]
    assert volume_of("scenario.memory=0") == (3 * sum(held), 3 * sum(held[2:]))


def test_a_memory_adds_its_exemplars_from_the_second_task_on() -> None:
    config = load_config("digits", SMALL)
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    old = sum(len(scenario.holding(1, client)) > 0 for number in (2, 3) for client in scenario.participants(number))
    assert volume_of("scenario.memory=10")[0] - volume_of("scenario.memory=0")[0] == 3 * 10 * old


def test_a_plan_has_positive_figures_and_says_what_it_left_out() -> None:
    plan = make_plan(load_config("digits", [*SMALL, "method.name=glfc", "run.workers=1"]), seconds=0.2)
    assert isinstance(plan, CostEstimate)
    assert plan.workers == 1
    assert 0 < plan.hours < 1
    assert all(math.isfinite(value) and value > 0 for value in (plan.operations, plan.memory_bytes, plan.speed.trained))
    assert any("proxy" in note for note in plan.notes)
    assert dict(plan.lines())["rounds"] == "4"


def test_what_a_method_keeps_decides_what_it_trains_on() -> None:
    remembering, forgetting, keeping = (volume_of(f"method.name={name}") for name in ("icarl", "finetune", "joint"))
    assert forgetting[0] == volume_of("scenario.memory=0")[0] < remembering[0] < keeping[0]
    assert forgetting[1] == keeping[1] == 0
    assert keeping[0] == volume_of("scenario.memory=100000")[0]


def notes_on(method: str) -> str:
    return "\n".join(make_plan(load_config("digits", [*SMALL, f"method.name={method}"]), seconds=0.01).notes)


def test_a_plan_says_that_a_server_s_training_is_not_counted() -> None:
    target, lwf, mosaic = (notes_on(name) for name in ("target", "lwf", "mosaic"))
    assert "what the server trains at the end of a block is not counted" in target
    assert "what the server trains" not in lwf
    assert "what the server trains" not in mosaic, "whose server hands the end of a block on to one that does nothing"


def test_a_plan_says_that_clients_training_for_their_memory_is_not_counted() -> None:
    re_fed, icarl = (notes_on(name) for name in ("re-fed", "icarl"))
    assert "what clients train to choose their exemplars is not counted" in re_fed
    assert "to choose their exemplars" not in icarl


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_can_be_planned(method: str) -> None:
    plan = make_plan(load_config("digits", [*SMALL, f"method.name={method}"]), seconds=0.01)
    assert plan.workers == 1, "a run this small is played in one process"
    assert plan.speed.trained > 0
    assert plan.speed.taught > 0


@dataclass(frozen=True)
class ToyState(Message):
    """A toy remembers nothing."""


class Toy(ClientRole[ToyState]):
    """A role of its own kind: it sends the received model back, and has a teacher."""

    memory = 3
    teacher = staticmethod(newest_older_model)

    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.played: list[tuple[int, str | None]] = []  # samples held, and the teacher

    def init(self) -> ToyState:
        return ToyState()

    def round(
        self, state: ToyState, broadcast: Broadcast, order: Order, current: Current, local: ClientContext
    ) -> tuple[ToyState, Reply, Diagnostics]:
        if self.broken:
            raise RuntimeError("out of order")
        teacher = self.teacher(broadcast.teachers, broadcast.context, False)
        self.played.append((len(current.samples), teacher.digest if teacher else None))
        report = Report(current.models[broadcast.model], len(current.samples))
        return state, Reply(order.client, report), Diagnostics()

    def in_use(self, state: ToyState) -> Tensor:
        return torch.empty(0, dtype=torch.int64)


class ToyConfig(MethodConfig):
    """No setting but whether it works."""

    broken: bool = False


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> list[Toy]:
    """Register a method of toys, and return those that are built."""
    built: list[Toy] = []

    def build(config: ToyConfig, setting: Setting) -> Roles:
        built.append(Toy(config.broken))
        return Roles(built[-1], plain_server())

    methods()  # so that our own are in the registry that is copied
    monkeypatch.setattr(registry.METHODS, "_members", dict(registry.METHODS._members))
    registry.register_method(Method("toy", "a role of its own kind", ToyConfig, build))
    return built


def test_a_role_of_any_kind_can_be_planned(toys: list[Toy]) -> None:
    toy = "method.name=toy"
    plan = make_plan(load_config("digits", [*SMALL, "train.batch_size=8", toy]), seconds=0.01)
    assert (plan.volume.trained, plan.volume.taught) == volume_of("scenario.memory=3")
    assert min(plan.speed.trained, plan.speed.taught, plan.speed.inferred) > 0
    played = {entry for made in toys for entry in made.played}
    assert played == {(8, None), (4, None), (4, "old")}, "alone, and with a teacher once it has old classes"


def test_a_role_that_fails_gets_a_sentence(toys: list[Toy]) -> None:
    with pytest.raises(DataError, match="a plan of toy is not possible: RuntimeError: out of order"):
        make_plan(load_config("digits", [*SMALL, "method.name=toy", "method.broken=true"]), seconds=0.01)


@pytest.mark.parametrize(("settings", "workers"), [(["run.engine=serial"], 1), (["run.engine=processes"], 2)])
def test_only_worker_processes_share_the_work(settings: list[str], workers: int) -> None:
    plan = make_plan(load_config("digits", [*SMALL, "run.workers=2", *settings]), seconds=0.01)
    assert plan.workers == workers


def test_an_absent_data_set_is_taken_at_its_published_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unwanted(_: object) -> Source:
        raise AssertionError("a plan should neither download nor decode")

    monkeypatch.setenv("FCIL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = ["model.width=1", "scenario.rounds_per_task=1", "train.batch_size=4", "run.device=cpu"]
    plan = make_plan(load_config("cifar100-t10", settings), seconds=0.1, load=unwanted)
    assert plan.volume.data_bytes == 60_000 * 3 * 32 * 32
    assert plan.volume.clients == 120
    assert "published size" in plan.notes[0]


def test_where_there_is_no_gpu_the_processor_is_measured() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    plan = make_plan(load_config("digits", [*SMALL, "run.device=cuda"]), seconds=0.1)
    assert any("no cuda here" in note for note in plan.notes)


PRIVATE = ["method.name=analytic", "scenario.split=disjoint", "scenario.joiners=0", "scenario.participants=40"]


def private_notes(*settings: str) -> str:
    found = [*SMALL, *PRIVATE, "scenario.initial_clients=40", "privacy.epsilon=8.0", *settings]
    return "\n".join(make_plan(load_config("digits", found), seconds=0.01).notes)


def test_a_plan_tells_how_many_images_privacy_takes() -> None:
    """Twice the length of the noise of a class: sqrt(2) s sqrt(d) per site that adds all, with 16 features."""
    told = "takes about {} images of a class, all clients together, for four fifths of the accuracy; 143 are sent"
    alone = 2 * math.sqrt(2) * noise_of(8.0, 1e-5) * math.sqrt(16)
    everybody = math.ceil(alone * math.sqrt(40) * 1.0001)
    assert f"{told.format(everybody)}, of which noise" not in private_notes()
    assert told.format(everybody) in private_notes()
    assert told.format(math.ceil(alone * math.sqrt(2) * 1.0001)) in private_notes("federation.aggregator=masked")
    few = private_notes("data.samples_per_class=10")
    assert "10 are sent, of which noise leaves little" in few


def test_a_plan_counts_the_images_of_participants_in_releases_alone() -> None:
    assert "143 are sent" not in private_notes("scenario.participants=4")


def test_images_at_several_clients_are_refused_with_privacy() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.split: found 'shared', should be 'disjoint'"):
        private_notes("scenario.split=shared")
