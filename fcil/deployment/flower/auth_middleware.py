"""Authentication and size limits in front of our SuperLink.

Flower serves three interfaces on one port: for nodes, for the operator (who registers nodes and starts runs) and for
the server's program. The last two need no password, so anybody who reaches the port could register a node. Here they
need a secret that only the owning process has.

The interface for nodes is open, since its requests are signed. But Flower reads a request before it checks the
signature, stores as much as a node sends, and accepts any message from a node. So here a stranger may send little, and
a node only answers, in its own name and no larger than the current exchange allows.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

HEADER = "x-fcil-link-secret"
FLEET = "/v1/fleet/"  # the interface for nodes; each request is signed with the node's key
OBJECT, MESSAGES = f"{FLEET}push-object", f"{FLEET}push-messages"
ALLOWANCE = "/fcil/allowance/"  # followed by the bytes that each node may send from now on
LARGEST = 32 << 20  # bytes of a node's request; Flower cuts what is longer into parts of 5 MiB
LARGEST_OTHER = 1 << 20  # the same for requests without data
LARGEST_STRANGER = 16 << 10  # the same without the signature of a registered node

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class AuthMiddleware:
    """Admits nodes to their own interface, within limits, and everything else only with the secret."""

    def __init__(self, inner: Application, secret: str, registered: Callable[[bytes], int | None]) -> None:
        """Wrap the application `inner`; `registered` returns the number of the node with a public key."""
        self.inner = inner
        self.secret = secret.encode()
        self.registered = registered
        self.allowance = 0  # bytes that each node may send
        self.spent: dict[int, int] = {}  # by node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif hmac.compare_digest(_header(scope, HEADER), self.secret):
            await self._serve_owner(path, scope, receive, send)
        elif path.startswith(FLEET):
            await self._serve_node(path, scope, receive, send)
        else:
            await _answer(send, 403, b"closed")

    async def _serve_owner(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path.startswith(ALLOWANCE):
            self.allowance, self.spent = int(path.removeprefix(ALLOWANCE)), {}
            await _answer(send, 204)
        else:
            await self.inner(scope, receive, send)

    async def _serve_node(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        node = self._signer(scope)
        if path == OBJECT and node is not None:
            body = await self._part(node, scope, receive)
        else:
            body = await _body(scope, receive, LARGEST_STRANGER if node is None else LARGEST_OTHER)
        if body is None:
            await _answer(send, 413, b"more than is taken")
        elif path == MESSAGES and not _answers_as(node, body):
            await _answer(send, 403, b"only answers, and each in its own name")
        else:
            await self.inner(scope, _replayed(body, receive), send)

    async def _part(self, node: int, scope: Scope, receive: Receive) -> bytes | None:
        """Return a part of an answer, or None if it exceeds the allowance of its node.

        Its size is reserved before it is read, since other parts of the node may be read at the same time.
        """
        spent = self.spent  # kept by reference: a new exchange replaces the dict
        before, declared, body = spent.get(node, 0), _declared(scope), None
        rest = min(LARGEST, self.allowance - before)
        reserved = rest if declared is None else min(rest, declared)
        spent[node] = before + reserved
        try:
            body = await _body(scope, receive, reserved)
        finally:
            spent[node] -= reserved - len(body or b"")
        return body

    def _signer(self, scope: Scope) -> int | None:
        """Return the registered node that signed the request's timestamp, or None; Flower itself checks the rest."""
        try:
            key = b64decode(_header(scope, FLEET_HTTP_PUBLIC_KEY_HEADER), validate=True)
            node = self.registered(key)
            if node is None:
                return None
            signature = b64decode(_header(scope, FLEET_HTTP_SIGNATURE_HEADER), validate=True)
            signed = verify_signature(bytes_to_public_key(key), _header(scope, TIMESTAMP_HEADER), signature)
        except (ValueError, TypeError, binascii.Error):
            return None
        return node if signed else None


def _answers_as(node: int | None, body: bytes) -> bool:
    """Return True if all messages in a request are answers in the name of the node that signed it."""
    try:
        messages = PushMessagesRequest.FromString(body).messages_list
    except DecodeError:
        return False
    return all(one.metadata.reply_to_message_id and one.metadata.src_node_id == node for one in messages)


def _header(scope: Scope, name: str) -> bytes:
    wanted = name.lower().encode()
    found: bytes = next((value for key, value in scope.get("headers", ()) if key == wanted), b"")
    return found


def _declared(scope: Scope) -> int | None:
    """Return the declared length of a request; uvicorn reads no more than that."""
    found = _header(scope, "content-length")
    return int(found) if found.isdigit() else None


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """Return the body of a request, or None if it is larger than `most` or was cut off; the rest is not read."""
    if (_declared(scope) or 0) > most:
        return None
    parts, size, more = [], 0, True
    while more:
        event = await receive()
        part: bytes = event.get("body", b"")
        size, more = size + len(part), bool(event.get("more_body", False))
        if size > most or event["type"] == "http.disconnect":
            return None
        parts.append(part)
    return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the application a body that was read already."""
    waiting = [body]

    async def replay() -> Event:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


async def _answer(send: Send, status: int, body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})
