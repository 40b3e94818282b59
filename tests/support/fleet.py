"""A node that speaks Flower's interface by itself: it can send what no SuperNode would."""

from __future__ import annotations

from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fcil.deployment.flower.records import ANSWER, as_array, as_records
from fcil.deployment.flower.superlink_client import SuperLinkClient


class RawNode:
    """A node without a SuperNode; without the certificate of a CA it speaks plain HTTP."""

    def __init__(self, address: str, ca: bytes | None = None) -> None:
        private, self.public = generate_key_pairs()
        self.key = public_key_to_bytes(self.public)
        words = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, self.public),
        ]
        self.client = FleetHttpClient.from_server_address(address, ca is None, ca, words)
        self.node = Node()

    def register_at(self, superlink: SuperLinkClient, name: str) -> None:
        """Let the operator register it, as a link with TLS wants."""
        superlink.register(self.public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode(), name)

    def enter(self, registered: bool = False) -> int:
        """Register, unless the operator has done it, and come in; return its number."""
        if not registered:
            self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self.key))
        came = self.client.ActivateNode(ActivateNodeRequest(public_key=self.key, heartbeat_interval=1800))
        self.node = Node(node_id=came.node_id)
        return int(came.node_id)

    def request(self) -> Any:
        """Return what is known of the request that waits for it."""
        (found,) = self.client.PullMessages(PullMessagesRequest(node=self.node)).messages_list
        return found.metadata

    def message(self, asked: Any, content: RecordDict, **changed: Any) -> Message:
        """Return an answer to a request, with some of its metadata changed."""
        known = {
            "run_id": asked.run_id,
            "message_id": "",
            "src_node_id": self.node.node_id,
            "dst_node_id": SUPERLINK_NODE_ID,
            "reply_to_message_id": asked.message_id,
            "group_id": asked.group_id,
            "created_at": now().timestamp(),
            "ttl": 10.0,
            "message_type": "query",
        }
        made = make_message(Metadata(**{**known, **changed}), content)
        made.metadata.__dict__["_message_id"] = made.object_id
        return made

    def announce(self, message: Message, tree: ObjectTree | None = None) -> str:
        """Send a message without its parts, and return the session in which these may be sent."""
        tree = tree or get_object_tree(message)
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(make_message(message.metadata, RecordDict()))],
            message_object_trees=[tree],
        )
        return str(self.client.PushMessages(request).session_id)

    def send_part(self, asked: Any, session: str, name: str, content: bytes) -> bool:
        """Send a part of a message."""
        request = PushObjectRequest(
            node=self.node, run_id=asked.run_id, session_id=session, object_id=name, object_content=content
        )
        return bool(self.client.PushObject(request).stored)

    def answer(self, asked: Any, content: bytes) -> Message:
        """Answer a request as an honest node does."""
        message = self.message(asked, as_records({ANSWER: as_array(content)}))
        session = self.announce(message)
        for name, part in get_all_nested_objects(message).items():
            assert self.send_part(asked, session, name, part.deflate())
        return message

    def finds(self, asked: Any, name: str) -> bool:
        """Say whether the link still has a part."""
        request = PullObjectRequest(node=self.node, run_id=asked.run_id, object_id=name)
        return bool(self.client.PullObject(request).object_found)

    def close(self) -> None:
        """Leave without a word."""
        self.client.close()


def status(error: BaseException | None) -> int:
    """Return the code with which a request was refused."""
    assert isinstance(error, httpx.HTTPStatusError)
    return error.response.status_code
