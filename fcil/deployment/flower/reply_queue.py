"""Answers stored at our SuperLink: matched to their requests and limited in size.

Flower's own `pull_messages` trusts the nodes. It returns messages that answer nothing, waits for hours for an answer
whose upload was only begun, and reads whatever was sent. Here an answer counts only for the request that it names, a
call never waits, and an answer over the limit is neither read to its end nor decompressed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, inflate_object_from_contents
from flwr.supercore.runtime import RuntimeHttpClient

from fcil.core.errors import FederationError, reason
from fcil.deployment.flower.records import ANSWER, unpack

PART = 1 << 20  # least bytes of a part of an answer, except for FEW of them; Flower's parts have five times as many
FEW = 16  # parts of an answer without data: the message and its records


@dataclass
class PartialAnswer:
    """An answer under way: its message id at Flower, the parts received, and the ids of those still missing."""

    name: str
    missing: list[str]
    found: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class ReplyQueue:
    """Fetches the answers to requests from a SuperLink."""

    def __init__(self, client: RuntimeHttpClient, node: Node, run: int) -> None:
        self.client = client
        self.node = node
        self.run = run
        self._arriving: dict[str, PartialAnswer] = {}  # by the request that is answered
        self._late: dict[str, float] = {}  # requests given up on, and until when an answer may come

    def look(self, requests: Collection[str], limit: int) -> Iterator[tuple[str, bytes | FederationError]]:
        """Yield each request that has been answered, with its answer or an error."""
        self._sweep()
        fresh = [request for request in requests if request not in self._arriving]
        if fresh:
            self._receive(fresh)
        for request in [request for request in self._arriving if request in requests]:
            partial = self._arriving[request]
            answer = self._complete(partial, limit)  # one by one, so that few answers are in memory at a time
            if answer is not None:
                del self._arriving[request]
                self._remove(partial.name, request)
                yield request, answer

    def give_up(self, requests: Collection[str], seconds: float) -> None:
        """Stop waiting for answers; late ones are removed from the SuperLink for some more seconds."""
        for request in requests:
            partial = self._arriving.pop(request, None)
            if partial is not None:
                self._remove(partial.name, request)
            else:
                self._remove(request)
                self._late[request] = time.monotonic() + seconds

    def _receive(self, requests: Collection[str]) -> None:
        """Find the requests whose answers have arrived or are under way."""
        found = self.client.PullMessages(PullAppMessagesRequest(message_ids=requests))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            request = message.metadata.reply_to_message_id
            if request in requests:
                self._arriving[request] = PartialAnswer(message.metadata.message_id, _parts(tree))
            else:
                self._remove(message.metadata.message_id)  # nobody asked for it

    def _complete(self, partial: PartialAnswer, limit: int) -> bytes | FederationError | None:
        """Return an answer once it is complete, an error, or None while parts are missing."""
        if len(partial.missing) + len(partial.found) > FEW + limit // PART:
            return FederationError("its answer is in too many parts")
        while partial.missing:
            wanted = PullObjectRequest(node=self.node, run_id=self.run, object_id=partial.missing[0])
            part = self.client.PullObject(wanted)
            if not part.object_found:
                return FederationError("its answer did not come to its end")
            if not part.object_available:
                return None
            partial.size += len(part.object_content)
            if partial.size > limit + PART:  # the records come on top
                return FederationError(f"its answer has more than {limit} bytes")
            partial.found[partial.missing.pop(0)] = part.object_content
        return read_answer(partial.name, partial.found, limit)

    def _sweep(self) -> None:
        """Remove late answers."""
        now = time.monotonic()
        self._late = {request: until for request, until in self._late.items() if until > now}
        for request in list(self._late):
            try:  # each by itself: Flower fails over one that it has forgotten
                found = self.client.PullMessages(PullAppMessagesRequest(message_ids=[request]))
            except httpx.HTTPStatusError:
                del self._late[request]
                continue
            for message in found.messages_list:
                self._remove(message.metadata.message_id)
                self._late.pop(request, None)

    def _remove(self, *messages: str) -> None:
        """Free the storage of messages at the SuperLink; a request is stored until its node fetches it."""
        for name in messages:
            self.client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=self.run, message_object_id=name)
            )


def _parts(tree: ObjectTree) -> list[str]:
    """Return the ids of a message's parts, the message itself first, which nodes send last."""
    return list(dict.fromkeys(reversed([part.object_id for part in iterate_object_tree(tree)])))


def read_answer(name: str, parts: dict[str, bytes], limit: int) -> bytes | FederationError:
    """Return the answer in a message's parts, or an error."""
    try:
        if _unfolded_size(parts) > limit:
            return FederationError(f"its answer unfolds to more than {limit} bytes")
        message: Any = inflate_object_from_contents(name, parts)
        if not isinstance(message, Message):
            return FederationError(f"its answer is a {type(message).__name__}, and no message")
        if message.has_error():
            return FederationError(f"Flower reports: {message.error.reason or message.error.code}")
        return unpack(message.content)[ANSWER]
    except Exception as error:  # whatever a hostile node has put there
        return FederationError(f"its answer is not one of fcil: {type(error).__name__}: {reason(error)}")


def _unfolded_size(parts: dict[str, bytes]) -> int:
    """Return the bytes of all arrays once assembled; an array may name the same chunk any number of times."""
    total, array = 0, inflatable_class_registry["Array"]
    for content in parts.values():
        kind, chunks, _ = get_object_head_values_from_object_content(content)
        if kind == "Array":
            listed = json.loads(get_object_body(content, array))["arraychunk_ids"]
            total += sum(len(parts[chunks[place]]) for place in listed)
    return total
