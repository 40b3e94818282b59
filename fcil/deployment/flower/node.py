"""A party's side of Flower: a node of the server's SuperLink, in this process.

Flower's own nodes run the app that the server sends them, each in a process of 130 MB. This one fetches requests, has
them answered by the fcil that is installed here, and sends the answers. No code from the server runs at a site.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fcil.core.allocator import give_back
from fcil.core.errors import FederationError, reason
from fcil.core.pulse import PULSE
from fcil.deployment.flower.bounds import MOST, Allowance, bound
from fcil.deployment.flower.process import keep_log
from fcil.deployment.flower.records import ANSWER, REQUEST, as_array, as_records, unpack
from fcil.deployment.transport.base import Handler

POLL, RESTING, ASLEEP = 0.5, 3.0, 8.0  # seconds between two polls for a request, and after a while without a round
WHILE, LONG = 5.0, 60.0  # seconds
HEARTBEAT = 10  # seconds, the least that Flower takes; a node without a sign for two of them counts as gone
BEAT = 6.0  # seconds between two heartbeats, so that a late one does no harm
FIRST, LONGEST = 0.5, 10.0  # seconds before a request is repeated that the server has not answered, first and at most
BUSY = frozenset({502, 503, 504})  # status codes of a server that is starting or overloaded
UNAUTHORIZED, FORBIDDEN = 401, 403  # of a node that the server does not know, and of a request that is over
LEAVING = 5.0  # seconds that the server has to take note that this node leaves
LOG = logging.getLogger("flwr")
T = TypeVar("T")


class _EndedError(Exception):
    """The node is to leave while the server does not answer."""


class FleetNode:
    """Answers the requests of one server; close it or use it in a `with`."""

    def __init__(
        self, folder: Path, server: str, key: Path | None, ca: Path | None, say: Callable[[str], None]
    ) -> None:
        """Without a key and a CA certificate it makes a key for itself and speaks plain HTTP."""
        folder.mkdir(parents=True, exist_ok=True)
        keep_log(folder)
        self.say = say
        private, public = generate_key_pairs() if key is None else _pair(key)
        self.public, self.own_key = public_key_to_bytes(public), key is None
        signs: list[Any] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, public),
        ]
        self.client = FleetHttpClient.from_server_address(server, ca is None, ca.read_bytes() if ca else None, signs)
        bound(self.client._client)
        self.connected = False  # True once the server has admitted this node
        self.silent_since: float | None = None  # the time since which the server does not answer; None while it does
        self.complaint = ""  # why the server has not admitted this node, or has ended the connection
        self._node = Node()
        self._worked = 0.0  # when the last request with a model was answered, as those of rounds are
        self._stopped = threading.Event()
        self._over = threading.Event()  # the connection cannot go on, or is closed
        self._living: threading.Thread | None = None  # sends heartbeats

    # --- the loop ------------------------------------------------------------------------------------------------

    def serve(self, handler: Handler, stopped: threading.Event) -> None:
        """Answer requests until `stopped` is set or the server no longer knows this node."""
        self._stopped = stopped
        try:
            self._enter()
            self._living = threading.Thread(target=self._live, daemon=True)
            self._living.start()
            self._worked, rests = time.monotonic(), False
            while not self._leaves():
                PULSE.beat()
                if self._take(handler):
                    continue
                quiet = time.monotonic() - self._worked
                if quiet >= WHILE and not rests:
                    give_back()
                rests = quiet >= WHILE
                stopped.wait(ASLEEP if quiet >= LONG else RESTING if rests else POLL)
        except _EndedError:
            pass
        except (httpx.HTTPError, ValueError) as error:
            self.complaint = _words(error)
            LOG.warning("the connection ends: %s", self.complaint)

    def _leaves(self) -> bool:
        return self._stopped.is_set() or self._over.is_set()

    def _enter(self) -> None:
        """Have the server admit this node."""
        if self.own_key:
            self._ask(self.client.RegisterNode, RegisterNodeFleetRequest(public_key=self.public))
        request = ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT)
        self._node = Node(node_id=self._ask(self.client.ActivateNode, request).node_id)
        self.connected = True

    def _ask(self, call: Callable[[Any], T], request: Any) -> T:
        """Return the server's answer to a request, which is repeated for as long as the server cannot be reached."""
        pause = FIRST
        while True:
            PULSE.beat()
            try:
                answer = call(request)
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in BUSY:
                    raise
                self._silent(error)
            else:
                self.silent_since = None
                return answer
            if self._stopped.wait(pause * random.uniform(0.8, 1.2)) or self._over.is_set():
                raise _EndedError
            pause = min(2 * pause, LONGEST)

    def _silent(self, error: Exception) -> None:
        """Take note that the server has not answered."""
        if self.silent_since is None:
            self.silent_since = time.time()
            LOG.warning("no answer from the server: %s", _words(error))

    # --- signs of life -------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Send heartbeats until the node leaves."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        pause = BEAT
        while not self._over.wait(pause):
            try:
                known = self.client.SendNodeHeartbeat(request).success
            except (httpx.HTTPError, RuntimeError, ValueError) as error:  # RuntimeError: the client is closed
                known = not isinstance(error, httpx.HTTPStatusError) or error.response.status_code >= 500
                self._silent(error)
                pause = FIRST if pause == BEAT else min(2 * pause, BEAT / 2)  # soon, before this node counts as gone
            else:
                self.silent_since, pause = None, BEAT
            if not known:
                self.complaint = "the server does not know this node any more"
                self._over.set()

    # --- requests and answers ------------------------------------------------------------------------------------

    def _take(self, handler: Handler) -> bool:
        """Fetch a request and answer it; return False if there is none, or none that can be answered."""
        try:
            found = self._ask(self.client.PullMessages, PullMessagesRequest(node=self._node))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != FORBIDDEN:
                raise
            return False
        if not found.messages_list:
            return False
        try:
            self._answer(message_from_proto(found.messages_list[0]), found.message_object_trees[0], handler)
        except _EndedError:
            raise
        except Exception as error:  # the server gets no answer and asks again, or goes on without
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == UNAUTHORIZED:
                raise  # the server has started anew meanwhile
            LOG.error("a request is not answered: %r", error)
            self.say(f"warning: a request is not answered: {type(error).__name__}: {reason(error)}")
            return False  # and so there is a pause
        return True

    def _answer(self, told: Message, tree: ObjectTree, handler: Handler) -> None:
        """Fetch the parts of a request, have it answered, and send the answer."""
        run, allowance = told.metadata.run_id, Allowance(MOST)

        def pull(request: PullObjectRequest) -> PullObjectResponse:
            part = self._ask(self.client.PullObject, request)
            allowance.spend(len(part.object_content) if part.object_available else 0)
            return part

        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(pull, self._node, run),
            lambda name: self._confirm(run, name),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id  # not a part of what it is the digest of
        parcels = unpack(message.content)
        request = parcels.pop(REQUEST)
        message.content = None  # type: ignore[assignment]
        content = as_records({ANSWER: as_array(handler(request, parcels))})
        self._send(Message(content, reply_to=message))
        if parcels:
            self._worked = time.monotonic()

    def _confirm(self, run: int, name: str) -> None:
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=name)
        self._ask(self.client.ConfirmMessageReceived, request)

    def _send(self, answer: Message) -> None:
        """Send an answer: what it consists of, then the parts that the server lacks."""
        answer.metadata.__dict__["_message_id"] = answer.object_id
        with no_object_id_recompute():
            told = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[get_object_tree(answer)],
            )
            lacking = self._ask(self.client.PushMessages, told)
            push = lambda request: self._ask(self.client.PushObject, request)  # noqa: E731
            push_objects(
                get_all_nested_objects(answer),
                make_push_object_fn_protobuf(push, self._node, answer.metadata.run_id, lacking.session_id),
                object_ids_to_push=set(lacking.objects_to_push),
            )

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the server, if it answers."""
        self._over.set()
        if self.connected and self.silent_since is None:
            self.client._client.timeout = httpx.Timeout(LEAVING)
            try:
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
            except (httpx.HTTPError, ValueError) as error:
                LOG.info("the server has not taken note that this node leaves: %s", _words(error))
        if self._living is not None:
            self._living.join(LEAVING)  # a call under way on a client that is closed would leave its connection open
        self.client.close()

    def __enter__(self) -> FleetNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pair(key: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """Return a party's keys."""
    private = load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{key}: not a key for elliptic curves; make keys with `fcil federation keys`")
    return private, private.public_key()


def _words(error: Exception) -> str:
    """Return the server's own words where it has sent some, in one line."""
    if isinstance(error, httpx.HTTPStatusError):
        told = FlowerError.from_json(error.response.text)
        if told is not None:
            return " ".join(filter(None, (f"[code: {told.code}] {told.message}", told.public_details)))
    return " ".join(str(error).split()) or type(error).__name__
