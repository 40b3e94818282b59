"""Who knows what: the server has no samples, no client's state and no seed, and only the proxy sees what it rebuilt."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from support.parties import BRIEF_GLFC, federation, patterns
from support.rounds import aggregated

from fcil.core.messages import Message, Reply, Report, derive_seed, encode
from fcil.core.messages.types import message_fields
from fcil.data.datasets.dataset import Source, Split
from fcil.data.samples import Samples
from fcil.data.scenario.scenario import Scenario
from fcil.experiment.checkpoint import FILE, PREVIOUS, PROXY, load_checkpoint
from fcil.experiment.config import load_config
from fcil.experiment.run import Run
from fcil.federation.simulated_clients import SimulatedClients
from fcil.federation.simulation import Simulation, SimulationState
from fcil.methods import Method, Roles, Setting, base, get_method, methods
from fcil.methods.client import ClientState
from fcil.methods.lga import SpreadState
from fcil.methods.proxy_role import ProxyState
from fcil.methods.server import AveragingServer, Stateless
from fcil.models.client_context import ClientContext
from fcil.models.inference_cache import Inference
from fcil.testing import Trial

SEED = 7_823_461_905_113_579_246  # a number that does not come up by chance
SECRET = derive_seed(SEED, "secret")
PRIVATE = (Scenario, Source, Split, Samples, ClientContext, Inference, SimulatedClients, ClientState)
CLIENT_SEEDS = {derive_seed(SEED, "client", number, client) for number in range(2) for client in range(5)}
PROXY_SEEDS = {derive_seed(SEED, "proxy", number) for number in range(2)}
UNKNOWN_TO_THE_SERVER = {SEED, SECRET, *CLIENT_SEEDS, *PROXY_SEEDS}


def reachable(*roots: Any) -> Iterator[Any]:
    """Yield every object that can be reached; of functions what they are bound to, of classes and modules nothing."""
    seen: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, (type, ModuleType, BuiltinFunctionType)):
            continue
        seen[id(found)] = found  # which keeps it alive, so that its id is not given to another
        yield found
        if isinstance(found, FunctionType):
            waiting += [found.__closure__, found.__defaults__, found.__kwdefaults__]
        elif isinstance(found, MethodType):
            waiting += [found.__self__, found.__func__]
        else:
            waiting += gc.get_referents(found)
            waiting += list(getattr(found, "__dict__", {}).values())


def kinds_among(*roots: Any) -> set[str]:
    return {type(found).__name__ for found in reachable(*roots) if isinstance(found, PRIVATE)}


def numbers_among(*roots: Any) -> set[int]:
    found = {one for one in reachable(*roots) if type(one) in (int, str, bytes)}
    return {number for number in UNKNOWN_TO_THE_SERVER if found & {number, str(number), *forms(number)}}


def forms(number: int) -> tuple[bytes, ...]:
    """Return the bytes as which a number may be written."""
    return str(number).encode(), f"{number:x}".encode(), number.to_bytes(8, "little"), number.to_bytes(8, "big")


def numbers_in(content: bytes) -> set[int]:
    return {number for number in UNKNOWN_TO_THE_SERVER if any(form in content for form in forms(number))}


@dataclass(frozen=True)
class Played:
    """A run with a proxy, and its final state."""

    simulation: Simulation
    state: SimulationState


@pytest.fixture(scope="module")
def glfc() -> Played:
    made = federation("glfc", seed=SEED, hyper=BRIEF_GLFC, scenario={"rounds_per_task": 1})
    return Played(made.simulation, made.run()[0])


def test_the_search_finds_what_it_looks_for(glfc: Played) -> None:
    assert kinds_among(glfc.simulation) == {
        "Scenario",
        "Split",
        "Samples",
        "ClientContext",
        "Inference",
        "SimulatedClients",
        "ClientState",
    }
    assert numbers_among(glfc.simulation) >= {SEED, SECRET}
    assert numbers_in(str(SEED).encode() + SECRET.to_bytes(8, "big")) == {SEED, SECRET}


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_coordinator_holds_no_data_no_seed_and_no_secret(method: str) -> None:
    server = federation(method, seed=SEED).simulation.server
    assert kinds_among(server, server.start()) == set()
    assert numbers_among(server, server.start()) == set()


class Curious(AveragingServer[Stateless]):
    """A server that keeps all it is built from."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(Stateless())
        self.setting = setting


def test_a_method_cannot_tell_its_server_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = get_method("finetune")

    def build(config: Any, setting: Setting) -> Roles:
        return Roles(plain.build(config, setting).client, Curious(setting))

    monkeypatch.setitem(base.METHODS._members, "curious", Method("curious", "", plain.config, build))
    made = federation("curious", seed=SEED)
    role = made.simulation.server.role
    assert isinstance(role, Curious)
    assert numbers_among(made.roles.server) == {SECRET}, "as it is built for those who know it"
    assert numbers_among(made.simulation.server) == set()


def test_nor_does_it_once_rounds_were_played(glfc: Played) -> None:
    server, state = glfc.simulation.server, glfc.state.server
    assert kinds_among(server, state) == set()
    assert numbers_among(server, state) == set()
    assert numbers_in(encode(state)) == set()


def test_nor_does_it_where_participants_vote() -> None:
    made = federation("glfc", seed=SEED, hyper={"selection": "votes"})
    server, state = made.simulation.server, made.run()[0].server
    assert kinds_among(server, state) == set()
    assert numbers_among(server, state) == set()
    assert numbers_in(encode(state)) == set()


def test_the_proxy_knows_the_secret_it_shares_with_clients_and_no_more(glfc: Played) -> None:
    proxy = glfc.simulation.proxy
    assert proxy is not None
    assert kinds_among(proxy, glfc.state.proxy) == set()
    assert numbers_among(proxy, glfc.state.proxy) == {SECRET}


def test_nor_do_they_know_more_where_participants_upload_spreads() -> None:
    made = federation("lga", seed=SEED, hyper={**BRIEF_GLFC, "radius": "participants"}, scenario={"rounds_per_task": 1})
    state = made.run()[0]
    assert isinstance(state.proxy, SpreadState)
    assert state.proxy.count > 0
    assert kinds_among(made.simulation.proxy, state.proxy) == set()
    assert numbers_among(made.simulation.proxy, state.proxy) == {SECRET}
    server = made.simulation.server
    assert kinds_among(server, state.server) == set()
    assert numbers_among(server, state.server) == set()
    assert numbers_in(encode(state.server)) == set()


# --- uploads ------------------------------------------------------------------------------------------------------


def uploads_of(made: Trial) -> list[Message]:
    """Play a round and return what the proxy was given."""
    given: list[Message] = []
    role = made.simulation.proxy.role  # type: ignore[union-attr]
    honest = role.round

    def listening(state: Any, uploads: list[Message], *rest: Any) -> Any:
        given.extend(uploads)
        return honest(state, uploads, *rest)

    role.round = listening  # type: ignore[method-assign]
    next(made.simulation.rounds(made.simulation.start()))
    return given


def test_uploads_reach_the_proxy_without_a_sender_and_in_an_order_that_tells_nothing() -> None:
    made = federation("glfc", hyper=BRIEF_GLFC)
    given = uploads_of(made)
    assert len(given) > 3, "several clients send several gradients each"
    for upload in given:
        assert set(message_fields(type(upload))) == {"gradient"}
        assert all(value.is_floating_point() for value in upload.gradient.values())  # type: ignore[attr-defined]
    server = made.simulation.server
    opened = server.open(server.grow(server.start(), ["0", "1"]), None)
    report, clients = Report(opened.state.model, 1), list(range(len(given)))

    def closed(senders: list[int]) -> list[bytes]:
        answers = [Reply(sender, report, (upload,)) for sender, upload in zip(senders, given, strict=True)]
        result = aggregated(server, opened, server.orders(clients, clients), answers)
        return [encode(upload) for upload in result.uploads]

    assert closed(clients) == closed(clients[::-1]) == [encode(upload) for upload in given]


# --- on disk ------------------------------------------------------------------------------------------------------


def test_what_the_proxy_rebuilt_lies_in_its_own_file_and_not_in_the_checkpoint(tmp_path: Path) -> None:
    brief = [f"method.{key}={value}" for key, value in BRIEF_GLFC.items()]
    scenario = ["tasks=1", "rounds_per_task=2", "initial_clients=2", "participants=2", "memory=4"]
    small = ["model.width=2", "train.epochs=1", "run.engine=serial", f"seed={SEED}"]
    config = load_config("digits", [*brief, *small, *(f"scenario.{setting}" for setting in scenario)])
    with Run.start(config, tmp_path / "run", lambda _: patterns()) as run:
        assert len(list(run.rounds())) == 2
        state = run.state
    assert isinstance(state.proxy, ProxyState)
    assert state.proxy.probes is not None
    images = [image.numpy().tobytes() for image in state.proxy.probes.images]
    assert len(images) > 3
    (newest,) = sorted((tmp_path / "run").glob(f"{PROXY}*2.fcil"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert all(image in files[newest.name] for image in images)
    assert {FILE, PREVIOUS} < files.keys()
    for name, content in files.items():
        if not name.startswith(PROXY):
            assert not any(image in content for image in images), name
    assert state.model["head.weight"].numpy().tobytes() in files[FILE], "what does lie there is found"
    kept = encode(load_checkpoint(tmp_path / "run").server)
    assert numbers_in(kept) == set()
