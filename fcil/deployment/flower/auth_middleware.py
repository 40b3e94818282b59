"""Authentication and size limits in front of our SuperLink.

Flower serves three interfaces on one port: for nodes, for the operator (who registers nodes and starts runs) and for
the server's program. The last two need no password, so anybody who reaches the port could register a node. Here they
need a secret that only the owning process has.

The interface for nodes is open, since its requests are signed. But Flower reads a request before it checks the
signature, stores as much as a node sends, and accepts any message from a node. So here a stranger's request is refused
unread (where nodes register themselves, on loopback only, it may have a few bytes), and a node only answers, in its own
name and no larger than the current exchange allows.

A signature covers the time at which it was made, and nothing else of the request. So its age is checked as soon as the
headers are there, and may be short; a slow body has all the time that the node's pace leaves it.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import json
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fcil.deployment.flower.limits import LIMITS, ConnectionLimits

HEADER = "x-fcil-link-secret"
FLEET = "/v1/fleet/"  # the interface for nodes; each request is signed with the node's key
OBJECT, MESSAGES = f"{FLEET}push-object", f"{FLEET}push-messages"
ACTIVATE = f"{FLEET}activate-node"
ALLOWANCE = "/fcil/allowance/"  # followed by the bytes that each node may send from now on
LARGEST = 32 << 20  # bytes of a node's request; Flower cuts what is longer into parts of 5 MiB
LARGEST_OTHER = 1 << 20  # the same for requests without data
LARGEST_STRANGER = 16 << 10  # the same without the signature of a registered node
STATE = "fcil.connection"  # key of a request's state with its connection
# Flower's answer to a node that it does not admit, and ours to one that is not registered.
REFUSED, STRANGER = "Failed to activate SuperNode", "It is not registered"
UNREGISTERED = {"code": int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED), "detail": f"{REFUSED}. {STRANGER}."}

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Provable(Protocol):
    """A connection that learns which party uses it."""

    def prove(self, node: int | None) -> None: ...

    def owe(self, size: int) -> None: ...

    def refuse(self) -> None: ...


class RequestRefusedError(Exception):
    """A request is answered with a status and a few words, and its connection closed."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class AuthMiddleware:
    """Admits nodes to their own interface, within limits, and everything else only with the secret."""

    def __init__(
        self,
        inner: Application,
        secret: str,
        registered: Callable[[bytes], int | None],
        open_to_all: bool = False,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        """Wrap the application `inner`; `registered` returns the number of the node with a public key.

        `open_to_all`: nodes register themselves, so others' requests reach the application too.
        """
        self.inner = inner
        self.secret = secret.encode()
        self.registered = registered
        self.open_to_all = open_to_all
        self.limits = limits
        self.allowance = 0  # bytes that each node may send
        self.spent: dict[int, int] = {}  # by node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            try:
                await self._serve(str(scope.get("path", "")), scope, receive, send)
            except RequestRefusedError as refused:
                _connection(scope).refuse()
                await _answer(send, refused.status, str(refused).encode(), last=True)

    async def _serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > self.limits.target_bytes:
            raise RequestRefusedError(414, "the address is too long")
        if hmac.compare_digest(_header(scope, HEADER), self.secret):
            _connection(scope).prove(None)
            await self._serve_owner(path, scope, receive, send)
        elif path.startswith(FLEET):
            await self._serve_node(path, scope, receive, send)
        else:
            raise RequestRefusedError(403, "closed")

    async def _serve_owner(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path.startswith(ALLOWANCE):
            self.allowance, self.spent = int(path.removeprefix(ALLOWANCE)), {}
            await _answer(send, 204)
        else:
            await self.inner(scope, receive, send)

    async def _serve_node(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        node = self._signer(path, scope)
        if node is not None:
            _connection(scope).prove(node)
            send = _counted(_connection(scope), send)
        if path == OBJECT and node is not None:
            body = await self._part(node, scope, receive)
        else:
            body = await self._body(scope, receive, LARGEST_STRANGER if node is None else LARGEST_OTHER)
        if path == MESSAGES and not _answers_as(node, body):
            raise RequestRefusedError(403, "only answers, and each in its own name")
        await self.inner(scope, _replayed(body, receive), send)

    async def _part(self, node: int, scope: Scope, receive: Receive) -> bytes:
        """Return a part of an answer, or refuse it if it exceeds the allowance of its node.

        Its size is reserved before it is read, since other parts of the node may be read at the same time.
        """
        spent = self.spent  # kept by reference: a new exchange replaces the dict
        before, declared, body = spent.get(node, 0), _declared(scope), b""
        rest = min(LARGEST, self.allowance - before)
        reserved = rest if declared is None else min(rest, declared)
        spent[node] = before + reserved
        try:
            body = await self._body(scope, receive, reserved)
        finally:
            spent[node] -= reserved - len(body)
        return body

    async def _body(self, scope: Scope, receive: Receive, most: int) -> bytes:
        """Return the body of a request; one that is too large, too slow or cut off is refused, its rest unread."""
        if (_declared(scope) or 0) > most:
            raise RequestRefusedError(413, "more than is taken")
        began, parts, size, more = time.monotonic(), [], 0, True
        while more:
            left = began + self.limits.grace + size / self.limits.pace - time.monotonic()
            try:
                event = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                raise RequestRefusedError(408, "too slow") from None
            part: bytes = event.get("body", b"")
            size, more = size + len(part), bool(event.get("more_body", False))
            if size > most or event["type"] == "http.disconnect":
                raise RequestRefusedError(413, "more than is taken")
            parts.append(part)
        return b"".join(parts)

    def _signer(self, path: str, scope: Scope) -> int | None:
        """Return the registered node that signed the request's time just now; Flower itself checks the rest.

        Anybody else is refused, or None where nodes register themselves.
        """
        self._check_age(scope)
        try:
            key = b64decode(_header(scope, FLEET_HTTP_PUBLIC_KEY_HEADER), validate=True)
            node = self.registered(key)
            if node is not None:
                signature = b64decode(_header(scope, FLEET_HTTP_SIGNATURE_HEADER), validate=True)
                if verify_signature(bytes_to_public_key(key), _header(scope, TIMESTAMP_HEADER), signature):
                    return node
        except (ValueError, TypeError, binascii.Error):
            node = None
        if self.open_to_all:
            return None
        if node is None and path == ACTIVATE:
            raise RequestRefusedError(412, json.dumps(UNREGISTERED))
        raise RequestRefusedError(401, "not signed by a registered party")

    def _check_age(self, scope: Scope) -> None:
        """Refuse a request whose time of signature is too far from now, or missing."""
        try:
            signed = datetime.fromisoformat(_header(scope, TIMESTAMP_HEADER).decode("ascii"))
            age = (datetime.now(UTC) - signed).total_seconds()
        except (ValueError, TypeError):
            raise RequestRefusedError(401, "not signed") from None
        if not -self.limits.ahead < age < self.limits.behind:
            raise RequestRefusedError(401, "signed too long ago or in the future")


class _Nobody:
    """Stands for the connection where there is none to tell, as in tests of the application alone."""

    def prove(self, node: int | None) -> None:
        pass

    def owe(self, size: int) -> None:
        pass

    def refuse(self) -> None:
        pass


def _connection(scope: Scope) -> Provable:
    found: Provable = scope.get("state", {}).get(STATE) or _Nobody()
    return found


def _counted(connection: Provable, send: Send) -> Send:
    """Return a `send` that tells the connection how much it has to deliver."""

    async def counted(event: Event) -> None:
        connection.owe(len(event.get("body", b"")))
        await send(event)

    return counted


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


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the application a body that was read already."""
    waiting = [body]

    async def replay() -> Event:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


async def _answer(send: Send, status: int, body: bytes = b"", last: bool = False) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    headers += [(b"connection", b"close")] if last else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
