"""The server's side of Flower: a SuperLink process of our own, its registered nodes, and requests to them.

Flower would start the server's program from an app that it installs. Here this process is that program: it starts a
Flower run for the sake of form and takes the only task of it, the server's.
"""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Array, Message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fcil.core.errors import FederationError, reason
from fcil.core.net import check_loopback
from fcil.core.pulse import PULSE
from fcil.deployment.flower.auth_middleware import ALLOWANCE, HEADER
from fcil.deployment.flower.process import end, keep_log, log_tail, start
from fcil.deployment.flower.records import REQUEST, as_array, as_records
from fcil.deployment.flower.reply_queue import ReplyQueue
from fcil.deployment.flower.superlink_process import SECRET

POLL = 0.2  # seconds between two polls for answers
PATIENCE = 60.0  # seconds for a SuperLink to come up, or to answer; and for which a request can be answered late
GRACE = PATIENCE - 5.0  # seconds for which late answers are looked for
HEARTBEAT = 10.0  # seconds between signs of life of the server's task
LEAVING = 5.0  # seconds for which the last of them is awaited
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)}  # glibc: buffers of connections go back to the system when they end
APP = """[project]
name = "fcil"
version = "1.0.0"
[tool.flwr.app]
publisher = "fcil"
[tool.flwr.app.components]
serverapp = "fcil.deployment.flower:server"
clientapp = "fcil.deployment.flower:client"
"""


class OwnerInterceptor:
    """Adds the secret of the middleware to each call, and retries while the SuperLink process runs.

    Flower's own retries do not end, even if the process has ended.
    """

    def __init__(self, secret: str, check: Callable[[], None]) -> None:
        self.secret = secret
        self.check = check  # raises if the process has ended

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request with the secret."""
        headers = httpx.Headers({**context.request.headers, HEADER: self.secret})
        until = time.monotonic() + PATIENCE
        while True:
            context.request.headers = headers.copy()  # a copy: other interceptors add headers and fail if they exist
            try:
                return call_next(context)
            except httpx.TransportError as error:
                self.check()
                if time.monotonic() > until:
                    host = context.request.url.netloc.decode()
                    raise FederationError(f"the SuperLink at {host} does not answer: {reason(error)}") from error
            time.sleep(POLL)


@dataclass(frozen=True)
class NodeRequest:
    """An encoded request to a node, and models by digest; Flower stores each model once for all nodes."""

    node: int
    content: bytes
    parcels: Mapping[str, bytes]


class SuperLinkClient:
    """Starts a SuperLink process and talks to it; close it or use it in a `with`."""

    def __init__(self, folder: Path, host: str, port: int, certificates: Mapping[str, Path] | None) -> None:
        """Start the process.

        Without `certificates` (ca, certificate, key) it speaks plain HTTP without node keys, on loopback only.
        """
        if certificates is None:
            check_loopback(f"{host}:{port}", "--address")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        keep_log(folder)
        self.secure = certificates is not None
        name = connect_host(host)
        self.address = f"{f'[{name}]' if ':' in name else name}:{port}"
        self._secret = secrets.token_hex(32)
        self._ca = certificates["ca"].read_bytes() if certificates else None
        options = ["--isolation", "process", "--host", host, "--port", str(port)]
        if certificates:
            names = {"ca": "--ssl-ca-certfile", "certificate": "--ssl-certfile", "key": "--ssl-keyfile"}
            options += [part for key, option in names.items() for part in (option, str(certificates[key]))]
            options += ["--enable-supernode-auth"]
        else:
            options += ["--insecure"]
        further = {SECRET: self._secret, **MEMORY}
        self.process = start("fcil.deployment.flower.superlink_process", options, folder, further)
        self._stopped = threading.Event()
        try:
            self.control = self._client(ControlHttpClient)
            self.grid = self._begin()
            self.replies = ReplyQueue(self.grid._runtime_client, self.grid.node, self.grid.run.run_id)
        except BaseException:
            end(self.process)
            raise
        self._living = threading.Thread(target=self._live, daemon=True)
        self._living.start()

    def _client(self, kind: Any, *further: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name="fcil")
        words = [version, OwnerInterceptor(self._secret, self._check), *further]
        return kind.from_server_address(self.address, not self.secure, self._ca, words)

    def _begin(self) -> HttpGrid:
        """Start Flower's run, take its one task, and return the grid of that task."""
        content, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        fab = fab_to_proto(Fab("", content, {}))
        self.control.StartRun(StartRunRequest(fab=fab))
        token = self._task()
        grid = HttpGrid(self.address, not self.secure, self._ca, token=token)
        grid._client = self._client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token=token))
        found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(found.run))
        TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id  # messages are stamped with them
        TaskIdentity.node_id = found.context.node_id
        return grid

    def _task(self) -> str:
        """Return the token of the run's only task, the server's."""
        until = time.monotonic() + PATIENCE
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        with self._client(RuntimeHttpClient) as runtime:
            while not (token := str(runtime.AcquireTask(wanted).token)):
                if time.monotonic() > until:
                    raise FederationError(f"the SuperLink at {self.address} has no task for the server")
                time.sleep(POLL)
        return token

    def _live(self) -> None:
        """Send the heartbeats of the server's task."""
        client = self.grid._runtime_client  # once: a grid that is closed would connect again
        while not self._stopped.wait(HEARTBEAT):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, FederationError):
                continue  # the next request reports it
            except RuntimeError:  # httpx's, for a call on a client that was closed meanwhile
                return

    def register(self, public_key: str, name: str) -> int:
        """Admit a node by its public key in OpenSSH's format, and return its number at Flower."""
        key = public_key_to_bytes(load_ssh_public_key(public_key.encode()))  # type: ignore[arg-type]
        with self._calling():
            return int(self.control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """Stop admitting a node."""
        with self._calling():
            self.control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        with self._calling():
            return {int(node.node_id) for node in self.grid.get_nodes()}

    def exchange(
        self, requests: Sequence[NodeRequest], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        """Send requests and yield each node with its answer, or with an error if it fails or exceeds the deadline.

        An answer of more than `limit` bytes is an error.
        """
        with self._calling():
            ends = time.monotonic() + deadline
            # Twice: a node may still be sending a late answer to the previous request.
            self._allow(2 * limit)
            waiting = self._send(requests, group, deadline)
            for node in {request.node for request in requests}.difference(waiting.values()):
                yield node, FederationError("Flower has not taken the message")
            try:
                over = False
                while waiting and not over:
                    PULSE.beat()
                    over = time.monotonic() >= ends  # then poll once more
                    for sent, answer in self.replies.look(waiting.keys(), limit):
                        yield waiting.pop(sent), answer
                    time.sleep(POLL if waiting and not over else 0)
                for node in waiting.values():
                    yield node, FederationError(f"it did not answer within {deadline:g} s")
            finally:
                with suppress(httpx.HTTPError, FederationError):  # the SuperLink is going down
                    self.replies.give_up(waiting, GRACE)

    def _send(self, requests: Sequence[NodeRequest], group: str, deadline: float) -> dict[str, int]:
        """Send requests, and return their nodes by message id."""
        parcels = {digest: as_array(content) for digest, content in _parcels(requests)}
        messages = [_message(request, parcels, group, deadline) for request in requests]
        sent = self.grid.push_messages(messages)
        return {name: request.node for request, name in zip(requests, sent, strict=True) if name is not None}

    def _allow(self, size: int) -> None:
        """Set how many bytes each node may send from now on."""
        self.control._client.post(
            f"{self.control._base_url}{ALLOWANCE}{size}", headers={HEADER: self._secret}
        ).raise_for_status()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Turn HTTP errors of the SuperLink into a FederationError."""
        try:
            yield
        except httpx.HTTPError as error:
            self._check()
            raise FederationError(f"the SuperLink at {self.address} fails: {reason(error)}") from error

    def _check(self) -> None:
        if self.process.poll() is not None:
            raise FederationError(f"the SuperLink at {self.address} has ended: {_complaint(self.folder)}")

    def reload_certificate(self) -> None:
        """Let the SuperLink show new connections the certificate that the files have now."""
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """End the SuperLink."""
        self._stopped.set()
        self._living.join(LEAVING)  # a call under way on a client that is closed would leave its connection open
        self.grid.close()
        self.control.close()
        end(self.process)

    def __enter__(self) -> SuperLinkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parcels(requests: Sequence[NodeRequest]) -> list[tuple[str, bytes]]:
    """Return the models beside all requests, each once."""
    return list({digest: content for request in requests for digest, content in request.parcels.items()}.items())


def _message(request: NodeRequest, parcels: Mapping[str, Array], group: str, deadline: float) -> Message:
    own = {digest: parcels[digest] for digest in request.parcels}
    records = as_records({**own, REQUEST: as_array(request.content)})
    return Message(records, request.node, "query", ttl=deadline + PATIENCE, group_id=group)


def connect_host(host: str) -> str:
    """Return the host to connect to for a server that listens at `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _complaint(folder: Path) -> str:
    lines = [line for line in log_tail(folder).splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'it said nothing'} (see {folder / 'flower.log'})"
