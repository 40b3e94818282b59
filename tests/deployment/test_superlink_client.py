"""The server's link over a real SuperLink: nodes that lie, send too much or stop half-way cost nobody else anything."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid
from support.fleet import RawNode, status

from fcil.core.errors import FederationError
from fcil.core.net import free_port
from fcil.deployment.flower.auth_middleware import LARGEST_STRANGER
from fcil.deployment.flower.node import FleetNode
from fcil.deployment.flower.records import ANSWER, as_array, as_records
from fcil.deployment.flower.superlink_client import NodeRequest, SuperLinkClient

pytestmark = [
    pytest.mark.xdist_group("link"),  # they share a SuperLink
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),  # of a package of Flower's
]
LIMIT = 4 << 20


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLinkClient]:
    with SuperLinkClient(tmp_path_factory.mktemp("link"), "127.0.0.1", free_port(), None) as made:
        yield made


@pytest.fixture
def pair(superlink: SuperLinkClient) -> Iterator[tuple[RawNode, RawNode]]:
    """Give an honest node and one that may not be."""
    nodes = RawNode(superlink.address), RawNode(superlink.address)
    for node in nodes:
        node.enter()
    yield nodes
    for node in nodes:
        node.close()


class Exchange:
    """A request to each of some nodes, and what became of them, gathered in the background."""

    def __init__(self, superlink: SuperLinkClient, *nodes: RawNode, deadline: float = 20.0) -> None:
        requests = [NodeRequest(node.node.node_id, b"a request", {}) for node in nodes]
        self.found: dict[int, bytes | FederationError] = {}

        def gather() -> None:
            for number, answer in superlink.exchange(requests, "1", deadline, LIMIT):
                self.found[number] = answer

        self.thread = threading.Thread(target=gather)
        self.thread.start()

    def of(self, node: RawNode) -> bytes | FederationError:
        """Wait for the end, and return what came from a node."""
        self.thread.join(60)
        return self.found[node.node.node_id]


def request_of(node: RawNode) -> Any:
    """Wait for a node's request."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            return node.request()
        except ValueError:  # none has come yet
            time.sleep(0.05)
    raise AssertionError("no request came")


def test_each_answer_is_given_to_its_request_in_chunks_and_whole(
    superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]
) -> None:
    first, second = pair
    exchange = Exchange(superlink, first, second)
    content = os.urandom(LIMIT - 1000)
    second.answer(request_of(second), b"two")
    first.answer(request_of(first), content)
    assert exchange.of(first) == content
    assert exchange.of(second) == b"two"


def test_a_party_answers_as_its_node_and_leaves(superlink: SuperLinkClient, tmp_path: Path) -> None:
    asked: list[tuple[bytes, Mapping[str, bytes]]] = []
    parcel, content = os.urandom(3 << 20), os.urandom(2 << 20)

    def answer(request: bytes, parcels: Mapping[str, bytes]) -> bytes:
        asked.append((request, parcels))
        if request == b"broken":
            raise ValueError("an accident")
        return content

    told: list[str] = []
    stopped, before = threading.Event(), superlink.nodes()
    with FleetNode(tmp_path / "flower", superlink.address, None, None, told.append) as node:
        serving = threading.Thread(target=node.serve, args=(answer, stopped))
        serving.start()
        until = time.monotonic() + 30
        while not (came := superlink.nodes() - before) and time.monotonic() < until:
            time.sleep(0.05)
        (number,) = came
        first = superlink.exchange([NodeRequest(number, b"a request", {"model": parcel})], "1", 20.0, LIMIT)
        assert list(first) == [(number, content)]
        ((_, lost),) = superlink.exchange([NodeRequest(number, b"broken", {})], "2", 2.0, LIMIT)
        assert str(lost) == "it did not answer within 2 s"
        assert dict(superlink.exchange([NodeRequest(number, b"again", {})], "3", 20.0, LIMIT)) == {number: content}
        stopped.set()
        serving.join(30)
        assert not serving.is_alive()
        assert node.connected
        assert node.silent_since is None
    assert superlink.nodes() == before
    assert asked == [(b"a request", {"model": parcel}), (b"broken", {}), (b"again", {})]
    assert told == ["warning: a request is not answered: ValueError: an accident"]


def test_nobody_can_speak_for_another_node_or_for_the_server(
    superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]
) -> None:
    honest, mallory = pair
    exchange = Exchange(superlink, honest, mallory)
    request, other = request_of(mallory), request_of(honest)
    forged = as_records({ANSWER: as_array(b"forged")})
    for changed in (
        {"reply_to_message_id": "", "src_node_id": 1},  # as if the server had sent itself a message
        {"reply_to_message_id": "", "src_node_id": 1, "dst_node_id": honest.node.node_id},
        {"src_node_id": honest.node.node_id, "reply_to_message_id": other.message_id},
    ):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            mallory.announce(mallory.message(request, forged, **changed))
        assert status(refused.value) == 403
    mallory.answer(request, b"its own")
    honest.answer(other, b"true")
    assert (exchange.of(honest), exchange.of(mallory)) == (b"true", b"its own")


def test_an_answer_that_stops_half_way_keeps_nobody_waiting(
    superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]
) -> None:
    honest, mallory = pair
    exchange = Exchange(superlink, honest, mallory, deadline=4.0)
    request = request_of(mallory)
    message = mallory.message(request, as_records({ANSWER: as_array(b"the end never comes")}))
    mallory.announce(message)
    time.sleep(1.0)  # by now the link has looked for it
    honest.answer(request_of(honest), b"in time")
    assert exchange.of(honest) == b"in time"
    assert str(exchange.of(mallory)) == "it did not answer within 4 s"
    assert not mallory.finds(request, message.object_id)


def damaged(kind: bytes) -> tuple[bytes, str]:
    """Return a part that Flower takes but cannot read, and its name."""
    content = kind + b" " + b"" + b" 7\x00garbage"
    return content, get_object_id(content)


@pytest.mark.parametrize("kind", [b"Message", b"ArrayRecord", b"Array"])
def test_parts_that_are_no_message_are_refused_and_the_exchange_goes_on(
    kind: bytes, superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]
) -> None:
    honest, mallory = pair
    exchange = Exchange(superlink, honest, mallory)
    request = request_of(mallory)
    content, name = damaged(kind)
    message = mallory.message(request, as_records({}))
    message.metadata.__dict__["_message_id"] = name
    session = mallory.announce(message, ObjectTree(object_id=name))
    assert mallory.send_part(request, session, name, content)
    honest.answer(request_of(honest), b"fine")
    assert exchange.of(honest) == b"fine"
    assert str(exchange.of(mallory)).startswith("its answer is ")


def test_a_small_answer_that_unfolds_to_a_large_one_is_not_unfolded(
    superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]
) -> None:
    honest, mallory = pair
    exchange = Exchange(superlink, honest, mallory)
    request = request_of(mallory)
    message = mallory.message(request, as_records({ANSWER: as_array(os.urandom(1 << 16))}))
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    tree = get_object_tree(message)
    chain = [tree]
    while chain[-1].children:
        chain.append(chain[-1].children[0])
    array = next(node for node in chain if parts[node.object_id].startswith(b"Array "))
    head, _, body = parts.pop(array.object_id).partition(b"\x00")
    repeated = json.dumps({**json.loads(body), "arraychunk_ids": [0] * 100_000}).encode()  # 6.5 GB
    content = b" ".join([*head.split(b" ")[:2], str(len(repeated)).encode()]) + b"\x00" + repeated
    old, new = array.object_id, get_object_id(content)
    parts[new] = content
    for node in reversed(chain[: chain.index(array)]):  # its parents name it
        changed = parts.pop(node.object_id).replace(old.encode(), new.encode())
        child = chain[chain.index(node) + 1]
        child.object_id = new
        old, new = node.object_id, get_object_id(changed)
        parts[new] = changed
    tree.object_id = new
    message.metadata.__dict__["_message_id"] = new
    session = mallory.announce(message, tree)
    for name, part in parts.items():
        assert mallory.send_part(request, session, name, part)
    honest.answer(request_of(honest), b"fine")
    assert exchange.of(honest) == b"fine"
    assert str(exchange.of(mallory)) == f"its answer unfolds to more than {LIMIT} bytes"


def test_a_node_may_send_no_more_than_is_asked_for(superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]) -> None:
    honest, mallory = pair
    exchange = Exchange(superlink, honest, mallory, deadline=4.0)
    request = request_of(mallory)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        mallory.answer(request, os.urandom(20 << 20))
    assert status(refused.value) == 413
    honest.answer(request_of(honest), b"fine")
    assert exchange.of(honest) == b"fine"


def test_an_answer_over_the_limit_is_refused_with_the_limit(
    superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]
) -> None:
    _, mallory = pair
    exchange = Exchange(superlink, mallory)
    mallory.answer(request_of(mallory), os.urandom(LIMIT + (2 << 20)))
    assert str(exchange.of(mallory)) == f"its answer has more than {LIMIT} bytes"


def test_what_comes_too_late_does_not_stay(superlink: SuperLinkClient, pair: tuple[RawNode, RawNode]) -> None:
    honest, slow = pair
    exchange = Exchange(superlink, honest, slow, deadline=1.0)
    honest.answer(request_of(honest), b"in time")
    request = request_of(slow)
    exchange.thread.join(60)
    late = slow.answer(request, b"late")
    assert slow.finds(request, late.object_id)
    following = Exchange(superlink, honest)
    honest.answer(request_of(honest), b"the next round")
    assert following.of(honest) == b"the next round"
    assert not slow.finds(request, late.object_id)


def test_strangers_may_send_little_and_the_operators_interface_is_closed(superlink: SuperLinkClient) -> None:
    stranger = RawNode(superlink.address)
    url = f"http://{superlink.address}"
    signed_now = {TIMESTAMP_HEADER: now().isoformat()}
    large = httpx.post(f"{url}/v1/fleet/push-object", content=b"x" * (LARGEST_STRANGER + 1), headers=signed_now)
    assert large.status_code == 413
    assert httpx.post(f"{url}/v1/control/register-node").status_code == 403
    assert httpx.post(f"{url}/v1/fleet/../control/register-node").status_code == 403
    assert httpx.post(f"{url}/fcil/allowance/99999999").status_code == 403
    assert httpx.get(f"{url}/docs").status_code == 403
    stranger.close()


def test_a_link_whose_process_was_killed_says_so(tmp_path: Path) -> None:
    with SuperLinkClient(tmp_path, "127.0.0.1", free_port(), None) as superlink:
        os.kill(superlink.process.pid, signal.SIGKILL)
        with pytest.raises(FederationError, match=r"the SuperLink at 127.0.0.1:\d+ has ended"):
            superlink.nodes()


def test_a_call_whose_connection_is_cut_is_made_again(
    superlink: SuperLinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = superlink.grid._runtime_client._client
    send, cuts = client.send, [httpx.ReadError("cut"), httpx.ConnectError("cut")]

    def cut(*arguments: Any, **named: Any) -> httpx.Response:
        if cuts:
            raise cuts.pop()
        return send(*arguments, **named)

    before = superlink.nodes()
    monkeypatch.setattr(client, "send", cut)
    assert superlink.nodes() == before
    assert not cuts


def test_a_sign_of_life_on_a_link_that_is_being_closed_ends_in_silence(
    superlink: SuperLinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcil.deployment.flower.superlink_client.HEARTBEAT", 0.0)
    closing = copy(superlink)
    closing._stopped = threading.Event()
    closing.grid = HttpGrid(superlink.address, insecure=True, token="none")
    closing.grid._client = superlink._client(RuntimeHttpClient)
    closing.grid._client.close()  # as `close` does while a sign of life is under way
    closing._live()  # returns, and raises nothing
