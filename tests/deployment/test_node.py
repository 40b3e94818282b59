"""A party's node at the server: what it does while the server does not answer, and how often it asks."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT
from flwr.proto.message_pb2 import ObjectTree

from fcil.deployment.flower import bounds
from fcil.deployment.flower import node as module
from fcil.deployment.flower.auth_middleware import REFUSED, UNREGISTERED
from fcil.deployment.flower.node import ASLEEP, BEAT, HEARTBEAT, POLL, RESTING, FleetNode
from fcil.deployment.flower.reconnect import GONE, Attempt
from fcil.deployment.flower.records import REQUEST

NOTHING = SimpleNamespace(messages_list=[])
SINCE = 1_790_000_000.0


class Server:
    """Stands for the server: each call gets the next of its answers, or raises it; the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self, _: object) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Pauses(threading.Event):
    """An event whose waits are noted down and end at once; it is set after some of them."""

    def __init__(self, most: int, act: Callable[[float], None] = lambda _: None) -> None:
        super().__init__()
        self.most, self.act = most, act
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self.act(timeout)
        if len(self.seconds) >= self.most:
            self.set()
        return self.is_set()


def refusal(code: int, text: str = "") -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://server")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(code, text=text, request=request))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetNode]:
    """Give a node that its server has admitted, whose threads do nothing."""
    made = FleetNode(tmp_path, "127.0.0.1:1", None, None, print)
    made.client = SimpleNamespace(  # type: ignore[assignment]
        RegisterNode=Server(None), ActivateNode=Server(SimpleNamespace(node_id=7)), PullMessages=Server(NOTHING)
    )
    monkeypatch.setattr(made, "_live", lambda: None)
    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda *_: 1.0))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0, time=lambda: SINCE))
    yield made


def test_a_request_is_repeated_ever_more_rarely_until_the_server_answers(node: FleetNode) -> None:
    silent = []
    node._stopped = Pauses(99, lambda _: silent.append(node.silent_since))
    gone = httpx.ConnectError("refused")
    assert (
        node._ask(Server(gone, httpx.ReadTimeout("late"), refusal(503), gone, gone, gone, gone, "yes"), None) == "yes"
    )
    assert node._stopped.seconds == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert silent == [SINCE] * 7, "since the first failure"
    assert node.silent_since is None


def test_a_node_that_is_told_to_leave_does_not_wait_for_the_server(node: FleetNode) -> None:
    node.client.PullMessages = Server(httpx.ConnectError("refused"))
    stopped = Pauses(2)
    node.serve(lambda *_: b"", stopped)
    assert len(stopped.seconds) == 2
    assert node.connected
    assert node.complaint == ""


def test_a_refusal_ends_the_connection_with_the_servers_words(node: FleetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.client.ActivateNode = Server(refusal(412, '{"code": 1, "detail": "Failed to activate SuperNode."}'))
    node.serve(lambda *_: b"", Pauses(9))
    assert not node.connected
    assert node.complaint == "[code: 1] Failed to activate SuperNode."
    node.client.ActivateNode = Server(SimpleNamespace(node_id=7))
    node.client.PullMessages = Server(refusal(401))
    node.serve(lambda *_: b"", Pauses(9))
    assert (node.connected, node.complaint) == (True, "refused")
    one = SimpleNamespace(messages_list=["a request"], message_object_trees=["its parts"])
    node.client.PullMessages, node.complaint = Server(one), ""
    monkeypatch.setattr(module, "message_from_proto", lambda _: None)
    monkeypatch.setattr(node, "_answer", lambda *_: Server(refusal(401))(None))
    node.serve(lambda *_: b"", Pauses(9))
    assert node.complaint == "refused", "a server that has started anew is no failure of a request"


def test_a_node_asks_often_until_no_round_has_come_for_a_while(
    node: FleetNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, returned = [0.0], []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module, "give_back", lambda: returned.append(clock[0]))
    message = SimpleNamespace(metadata=SimpleNamespace(), content=None)
    monkeypatch.setattr(module, "pull_and_inflate_object_from_tree", lambda *_, **__: message)
    monkeypatch.setattr(module, "message_from_proto", lambda _: SimpleNamespace(metadata=SimpleNamespace(run_id=1)))
    monkeypatch.setattr(module, "Message", lambda *_, **__: None)
    monkeypatch.setattr(node, "_send", lambda _: None)
    contents = [{REQUEST: b"are there news?"}, {REQUEST: b"a round", "a model": b"model"}]
    monkeypatch.setattr(module, "unpack", lambda _: contents.pop(0))
    stopped = Pauses(36, lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    one = SimpleNamespace(messages_list=["a request"], message_object_trees=[SimpleNamespace(object_id="its parts")])
    node.client.PullMessages = Server(*[NOTHING] * 30, one, NOTHING, NOTHING, one, NOTHING)  # type: ignore[method-assign]
    node.serve(lambda *_: b"", stopped)
    often, rarely = [POLL] * 10, [RESTING] * 19
    assert stopped.seconds == [*often, *rarely, *[ASLEEP] * 3, *[POLL] * 4], "a question alone wakes nobody"
    assert returned == [5.0], "memory is given back once per rest"


def test_heartbeats_say_that_the_server_is_silent_and_that_it_has_forgotten_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FleetNode(tmp_path, "127.0.0.1:1", None, None, print)
    known, unknown = SimpleNamespace(success=True), SimpleNamespace(success=False)
    seen: list[bool] = []
    node._over = Pauses(9, lambda _: seen.append(node.silent_since is not None))
    node.client.SendNodeHeartbeat = Server(known, httpx.ReadTimeout("late"), refusal(503), known, unknown)  # type: ignore[method-assign]
    node._live()
    assert seen == [False, False, True, True, False, False]
    assert node._over.seconds == [BEAT, BEAT, 0.5, 1.0, BEAT, BEAT]
    assert 2 * HEARTBEAT > 2 * BEAT + HEARTBEAT_CALL_TIMEOUT, "one heartbeat that is lost does no harm"
    assert node.complaint == "the server does not know this node any more"


def test_a_party_that_was_killed_stays_away_until_the_server_has_noticed() -> None:
    assert Attempt(False, f"[code: 2004] {REFUSED}.").counted
    assert not Attempt(False, str(UNREGISTERED["detail"])).counted, "a new server knows nobody for a moment"
    assert not Attempt(True).counted
    assert GONE > 2 * HEARTBEAT


def behind(node: FleetNode, answer: Callable[[httpx.Request], httpx.Response]) -> list[str]:
    """Let an HTTP server answer a node's requests, and return the list of addresses that it is asked for."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return answer(request)

    node.client._client._transport, node.client._client._mounts = httpx.MockTransport(handle), {}
    return asked


def test_a_server_cannot_send_a_party_elsewhere_or_answers_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LARGEST", 1000)

    def served(answer: Callable[[httpx.Request], httpx.Response]) -> tuple[list[str], str]:
        with FleetNode(tmp_path, "127.0.0.1:1", None, None, print) as node:
            asked = behind(node, answer)
            node.serve(lambda *_: b"", Pauses(9))
            return asked, node.complaint

    asked, complaint = served(lambda _: httpx.Response(307, headers={"location": "http://other:1/"}))
    assert [address.startswith("http://127.0.0.1:1/") for address in asked] == [True], "a signature goes along"
    assert "307" in complaint
    sent: list[int] = []

    def endless() -> Iterator[bytes]:
        while len(sent) < 1000:
            sent.append(1)
            yield bytes(300)

    for code in (200, 500):
        sent.clear()
        assert served(lambda _, code=code: httpx.Response(code, content=endless()))[1] == (  # type: ignore[misc]
            "the server sends more than 1000 bytes at once"
        )
        assert len(sent) == 4
    packed = {"content-encoding": "gzip"}
    bomb = gzip.compress(bytes([8, 7]))  # any answer, but for a field that is unknown
    assert "Invalid protobuf" in served(lambda _: httpx.Response(200, headers=packed, content=iter([bomb])))[1]


def request_of(node: FleetNode, part: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the server send a request whose only part is as given, and return what is said."""
    said: list[str] = []
    told = SimpleNamespace(metadata=SimpleNamespace(run_id=1))
    monkeypatch.setattr(module, "message_from_proto", lambda _: told)
    monkeypatch.setattr(node, "say", said.append)
    one = SimpleNamespace(messages_list=["a request"], message_object_trees=[ObjectTree(object_id="0" * 64)])
    node.client.PullMessages, node.client.PullObject = Server(one), Server(part)  # type: ignore[method-assign]
    return said


def test_a_request_that_cannot_be_answered_is_not_asked_for_without_a_pause(
    node: FleetNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    part = SimpleNamespace(object_found=True, object_available=True, object_content=bytes(11))
    said, stopped = request_of(node, part, monkeypatch), Pauses(3)
    polls = node.client.PullMessages
    node.client.PullMessages = lambda request: stopped.set() if len(said) > 9 else polls(request)  # type: ignore
    node.serve(lambda *_: b"", stopped)
    assert stopped.seconds == [POLL] * 3
    assert said == ["warning: a request is not answered: ValueError: the server sends more than 10 bytes at once"] * 3
