"""The server's side of Flower: a SuperLink of our own, who is registered with it, and letters to its nodes.

The server's program is this process. Flower would start one for us, from an app that it installs; here the run that
Flower asks for is a formality, and its one task, the server's, is taken by this process.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fcil.errors import FederationError, reason
from fcil.flower.environment import end, last_words, start
from fcil.flower.superlink import HEADER, SECRET

POLL = 0.2  # seconds between looks for answers
PATIENCE = 60.0  # seconds for a SuperLink to come up
HEARTBEAT = 10.0  # seconds between signs of life of the server's task
APP = """[project]
name = "fcil"
version = "1.0.0"
[tool.flwr.app]
publisher = "fcil"
[tool.flwr.app.components]
serverapp = "fcil.flower:server"
clientapp = "fcil.flower:client"
"""


class Password:
    """Adds the secret that the guard of our SuperLink asks for."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request with the secret."""
        context.request.headers[HEADER.decode()] = self.secret
        return call_next(context)


class GuardedGrid(HttpGrid):
    """Flower's grid, which says the secret as well."""

    def __init__(self, address: str, certificate: bytes | None, token: str, secret: str) -> None:
        super().__init__(address, certificate is None, certificate, token=token)
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._client = RuntimeHttpClient.from_server_address(
            address,
            certificate is None,
            certificate,
            [version, RuntimeTokenHttpInterceptor(token=token), Password(secret)],
            retry_invoker=self._retry_invoker,
        )


@dataclass(frozen=True)
class Letter:
    """Bytes for a node, and things by digest that several nodes may get: Flower stores and carries each once."""

    node: int
    content: bytes
    parcels: Mapping[str, bytes]


class Link:
    """A SuperLink that this process owns; close it or use it in a `with`."""

    def __init__(self, folder: Path, host: str, port: int, certificates: Mapping[str, Path] | None) -> None:
        """Start it; `certificates` are ca, certificate and key, and none mean plain HTTP without node keys."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.secure = certificates is not None
        self.address = f"{_loopback(host)}:{port}"
        self._secret = secrets.token_hex(32)
        self._ca = certificates["ca"].read_bytes() if certificates else None
        options = ["--isolation", "process", "--host", host, "--port", str(port)]
        if certificates:
            names = {"ca": "--ssl-ca-certfile", "certificate": "--ssl-certfile", "key": "--ssl-keyfile"}
            options += [part for key, option in names.items() for part in (option, str(certificates[key]))]
            options += ["--enable-supernode-auth"]
        else:
            options += ["--insecure"]
        self.process = start("fcil.flower.superlink", options, folder, {SECRET: self._secret})
        self._stopped = threading.Event()
        try:
            self.control = self._client(ControlHttpClient)
            self.grid = self._begin()
        except BaseException:
            end(self.process)
            raise
        threading.Thread(target=self._live, daemon=True).start()

    def _client(self, kind: Any, *further: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name="fcil")
        words = [version, Password(self._secret), *further]
        return kind.from_server_address(self.address, not self.secure, self._ca, words)

    def _begin(self) -> GuardedGrid:
        """Start Flower's run, take its one task, and return the grid of that task."""
        content, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        fab = fab_to_proto(Fab("", content, {}))
        self._patiently(lambda: self.control.StartRun(StartRunRequest(fab=fab)))
        runtime = self._client(RuntimeHttpClient)
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        taken = self._patiently(lambda: _taken(runtime, wanted))
        runtime.close()
        grid = GuardedGrid(self.address, self._ca, taken.token, self._secret)
        found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(found.run))
        TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id  # messages are stamped with them
        TaskIdentity.node_id = found.context.node_id
        return grid

    def _patiently(self, ask: Any) -> Any:
        """Return what a call gives, once the SuperLink is there to answer it."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                found = ask()
                if found is not None:
                    return found
                why = "it has no task for the server"
            except httpx.TransportError as error:
                why = reason(error)
            if self.process.poll() is not None:
                raise FederationError(f"the SuperLink at {self.address} does not start: {_complaint(self.folder)}")
            if time.monotonic() > until:
                raise FederationError(f"the SuperLink at {self.address} does not answer: {why}")
            time.sleep(POLL)

    def _live(self) -> None:
        """Tell the SuperLink now and then that the server's task is alive."""
        while not self._stopped.wait(HEARTBEAT):
            try:
                self.grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError:
                continue  # who sends the next letter says so

    def register(self, public_key: str, name: str) -> int:
        """Admit a node by its public key in OpenSSH's format, and return its number at Flower."""
        key = public_key_to_bytes(load_ssh_public_key(public_key.encode()))  # type: ignore[arg-type]
        return int(self.control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """Admit a node no longer."""
        self.control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        self._check()
        return {int(node.node_id) for node in self.grid.get_nodes()}

    def exchange(
        self, letters: Sequence[Letter], group: str, deadline: float
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        """Send letters, and yield each node with its answer as it comes; who is late or fails comes with an error."""
        waiting: dict[str, int] = {}
        ends = time.monotonic() + deadline
        parcels = {digest: Array(np.frombuffer(content, np.uint8)) for digest, content in _parcels(letters)}
        messages = [_message(letter, parcels, group, deadline) for letter in letters]
        for letter, sent in zip(letters, self.grid.push_messages(messages), strict=True):
            if sent is None:
                yield letter.node, FederationError("Flower has not taken the message")
            else:
                waiting[sent] = letter.node
        del messages, parcels
        while waiting and time.monotonic() < ends:
            self._check()
            for sent in list(waiting):  # one by one, so that no two answers are in memory before they are looked at
                for reply in self.grid.pull_messages([sent]):
                    yield waiting.pop(sent), _content(reply)
            if waiting:
                time.sleep(POLL)
        for node in waiting.values():
            yield node, FederationError(f"it did not answer within {deadline:g} s")

    def _check(self) -> None:
        if self.process.poll() is not None:
            raise FederationError(f"the SuperLink at {self.address} has ended: {_complaint(self.folder)}")

    def close(self) -> None:
        """End the run at Flower and the SuperLink."""
        self._stopped.set()
        if self.process.poll() is None:
            try:
                output = PushTaskOutputRequest(sub_status="completed", details="")
                self.grid._runtime_client.PushTaskOutput(output)
            except httpx.HTTPError:
                pass  # it ends with the process
        self.grid.close()
        self.control.close()
        end(self.process)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _taken(runtime: RuntimeHttpClient, wanted: AcquireTaskRequest) -> Any:
    found = runtime.AcquireTask(wanted)
    return found if found.token else None


def _parcels(letters: Sequence[Letter]) -> list[tuple[str, bytes]]:
    """Return what goes with any of the letters, each once."""
    return list({digest: content for letter in letters for digest, content in letter.parcels.items()}.items())


def _message(letter: Letter, parcels: Mapping[str, Array], group: str, deadline: float) -> Message:
    own = ArrayRecord({digest: parcels[digest] for digest in letter.parcels})
    records = RecordDict({"letter": ConfigRecord({"content": letter.content}), "parcels": own})
    return Message(records, letter.node, "query", ttl=deadline + PATIENCE, group_id=group)


def _content(reply: Message) -> bytes | FederationError:
    """Return the bytes of an answer, or what is wrong with it."""
    if reply.has_error():
        return FederationError(f"Flower reports: {reply.error.reason or reply.error.code}")
    try:
        return bytes(reply.content["answer"]["content"].numpy())  # type: ignore[union-attr]
    except Exception as error:  # whatever a hostile node has put there
        return FederationError(f"its answer is not one of fcil: {reason(error)}")


def _loopback(host: str) -> str:
    """Return the address at which this process reaches what listens at a host."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _complaint(folder: Path) -> str:
    lines = [line for line in last_words(folder).splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'it said nothing'} (see {folder / 'flower.log'})"
