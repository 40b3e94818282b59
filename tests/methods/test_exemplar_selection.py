"""Who decides what goes into memory, and what that costs where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.clients import run_client
from support.objectives import MODEL, Workshop, catalogue, make_local
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Broadcast, RoundContext, model_digest
from fcil.data.blocks import BLOCK
from fcil.data.exemplar_memory import Memory
from fcil.experiment.config import load_config
from fcil.maths.herding import herd
from fcil.methods import Setting, get_method
from fcil.methods.base import Current
from fcil.methods.client import ClientState, RehearsalClient
from fcil.methods.exemplar_selection import MemoryConfig, RehearsalConfig
from fcil.methods.local_objective import Classification
from fcil.models import grow, initial_state
from fcil.models.client_context import ClientContext
from fcil.testing import blobs

SOURCE = blobs(per_class=10)
CONTEXT = RoundContext(0, catalogue(6), (6,), 0)
WIDE = grow(initial_state(MODEL, 1, 0), 6, 1)
NOTHING = torch.empty(0, dtype=torch.int64)
SETTING = Setting(6, SOURCE.image_shape, None)


def of_classes(*classes: int) -> Tensor:
    return torch.isin(SOURCE.train.labels, torch.tensor(classes)).nonzero().squeeze(1)


def remembered(
    role: RehearsalClient, samples: Tensor, local: ClientContext, state: ClientState | None = None
) -> Memory:
    """Return the memory of a client whose samples came and were withdrawn."""
    state = state or ClientState()
    for arrival in (samples, NOTHING):
        state, _, _ = run_client(role, state, arrival, local, CONTEXT, WIDE)
    return state.memory


def client(**fields: Any) -> RehearsalClient:
    return RehearsalClient(RehearsalConfig(**fields), SETTING, Classification)


def test_exemplars_are_those_of_herding_under_the_received_model() -> None:
    local, samples = make_local(SOURCE), of_classes(3)
    features = local.inference.infer(model_digest(WIDE), WIDE, samples).features
    assert torch.equal(remembered(client(), samples, local).indices, samples[herd(features, 6)])


def test_herding_with_batch_statistics_and_replacement_as_released() -> None:
    role = client(herding="replacement", herding_statistics="batch")
    role.memory = 30
    local, samples = make_local(SOURCE), of_classes(3)
    memory = remembered(role, samples, local)
    net = local.machine.net(WIDE).train()
    features = net.extract(SOURCE.train.images[samples].float() / 255).detach()
    assert torch.equal(memory.indices, samples[herd(features, 30, replacement=True)])
    assert len(memory) == 30 > len(samples)


def test_a_ranker_is_asked_class_by_class_and_decides_the_memory() -> None:
    local, asked = make_local(SOURCE), []

    def backwards(
        samples: Tensor, output: int, share: int, broadcast: Broadcast, current: Current, local: ClientContext
    ) -> Tensor:
        asked.append((samples, output, share, broadcast, current, local))
        return samples.flip(0)[:share]

    role = RehearsalClient(RehearsalConfig(), SETTING, Classification, ranker=backwards)
    context = RoundContext(0, ("3", "1"), (2,), 0)  # outputs in another order than labels
    state = ClientState()
    for arrival in (of_classes(1, 3), NOTHING):
        state, _, _ = run_client(role, state, arrival, local, context, grow(initial_state(MODEL, 1, 0), 2, 1))
    assert [(samples.tolist(), output, share) for samples, output, share, *_ in asked] == [
        (of_classes(1).tolist(), 1, 3),
        (of_classes(3).tolist(), 0, 3),
    ]
    for _, _, _, broadcast, current, place in asked:
        assert broadcast.context == context
        assert broadcast.model in current.models
        assert torch.equal(current.samples, NOTHING)
        assert place is local
    assert state.memory.classes == (1, 3)
    wanted = [of_classes(label).flip(0)[:3].tolist() for label in (1, 3)]
    assert [ranked.tolist() for ranked in state.memory.ranked] == wanted


def test_a_curator_sees_memory_and_finished_samples_at_once_and_decides_the_memory() -> None:
    local, asked = make_local(SOURCE), []

    def reverse(
        memory: Memory, finished: Tensor, budget: int, broadcast: Broadcast, current: Current, local: ClientContext
    ) -> Memory:
        asked.append((memory, finished.tolist(), budget, broadcast.model in current.models, local))
        return Memory((1, 3, 4), (finished[-1:], NOTHING, memory.indices))

    role = RehearsalClient(MemoryConfig(), SETTING, Classification, curator=reverse)
    before = ClientState(memory=Memory((4,), (of_classes(4)[:2],)))
    memory = remembered(role, of_classes(1, 3), local, before)
    assert asked == [(before.memory, of_classes(1, 3).tolist(), 6, True, local)]
    assert memory.classes == (1, 3, 4)
    assert [kept.tolist() for kept in memory.ranked] == [[of_classes(1, 3)[-1]], [], of_classes(4)[:2].tolist()]


@pytest.mark.parametrize("hook", ["ranker", "curator"])
def test_nobody_is_asked_where_nothing_can_be_kept(hook: str) -> None:
    hooks: dict[str, Any] = {hook: never}
    role = RehearsalClient(RehearsalConfig(), Setting(0, SOURCE.image_shape, None), Classification, **hooks)
    memory = remembered(role, of_classes(1, 3), make_local(SOURCE))
    assert (memory.classes, len(memory)) == ((1, 3), 0)


def never(*arguments: object) -> Tensor:
    raise AssertionError("there is nothing to rank")


@pytest.mark.parametrize("method", ["finetune", "lwf", "ewc"])
def test_a_method_without_memory_keeps_a_history_and_infers_nothing_for_it(method: str) -> None:
    many = blobs(per_class=BLOCK)  # a block for each class
    local = make_local(many)
    role = Workshop(method, 0, 6).roles.client
    state = role.init()
    first, second = ((many.train.labels == label).nonzero().squeeze(1)[:8] for label in (0, 1))
    other = {**WIDE, "head.bias": WIDE["head.bias"] + 1}
    state, _, _ = run_client(role, state, first, local, CONTEXT, WIDE)
    state, _, measured = run_client(role, state, second, local, CONTEXT, other)
    assert measured.alarm
    assert (state.memory.classes, len(state.memory)) == ((0,), 0)
    blocks = {(digest, block) for digest, block in local.inference._cache}
    assert blocks == {(model_digest(WIDE), 0), (model_digest(other), 1)}  # the entropies of the newest arrivals


NOT_OFFERED = [
    ("joint", "detector=entropy"),
    ("joint", "entropy_jump=1.0"),
    ("joint", "herding=first"),
    ("finetune", "herding=first"),
    ("lwf", "herding_statistics=batch"),
    ("ewc", "herding=first"),
    ("fedcbdr", "herding=first"),
    ("re-fed", "herding_statistics=batch"),
]


@pytest.mark.parametrize(("method", "setting"), NOT_OFFERED)
def test_a_setting_that_would_change_nothing_is_refused_with_those_that_do(method: str, setting: str) -> None:
    key = setting.partition("=")[0]
    known = ", ".join(sorted(get_method(method).config.settings()))
    with pytest.raises(ConfigError, match=f"^method.{key}: unknown key; known here: {known}$"):
        load_config("digits", [f"method.name={method}", f"method.{setting}"])


def test_joint_trains_on_everything_that_ever_came() -> None:
    role, local, state = Workshop("joint", 0, 6).roles.client, make_local(SOURCE), ClientState()
    assert role.keeps_all
    for arrival in (of_classes(0), of_classes(1), NOTHING):
        state, reply, _ = run_client(role, state, arrival, local, CONTEXT, WIDE, participate=True)
    assert torch.equal(state.training, of_classes(0, 1))
    assert reply.report is not None
    assert reply.report.samples == 20
    assert len(state.memory) == 0
