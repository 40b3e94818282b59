"""A party's side of Flower: a SuperNode process of our own, whose requests this process answers.

Flower's nodes usually run the app that the server sends them. Ours do not: the SuperNode runs its apps in `process`
isolation, and this process, with the fcil that is installed here, takes its tasks. So no code from the server runs at
a site, and no process is started per request.
"""

from __future__ import annotations

import logging
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fcil.core.net import free_port
from fcil.core.pulse import PULSE
from fcil.deployment.flower.process import LOG, end, keep_log, log_tail, start
from fcil.deployment.flower.records import ANSWER, REQUEST, as_array, as_records, unpack
from fcil.deployment.flower.supernode_process import ANSWERED, UNANSWERED
from fcil.deployment.transport.base import Handler

POLL, RESTING = 0.1, 1.0  # seconds between two polls for a task, and after a while without one
WHILE = 5.0  # seconds
HEARTBEAT = 10.0  # seconds between heartbeats of a task
LEAVING = 5.0  # seconds for which the last of them is awaited
SILENT = (b"Connection attempt failed", UNANSWERED.encode())  # in the log while the server does not answer
HEARD = (b"Connection successful", ANSWERED.encode())
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class SuperNodeClient:
    """Starts a SuperNode process and answers its requests; close it or use it in a `with`."""

    def __init__(
        self, folder: Path, server: str, key: Path | None, ca: Path | None, say: Callable[[str], None]
    ) -> None:
        """Start the process; without a key and a CA certificate it speaks plain HTTP."""
        self.folder = folder
        self.say = say
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_bytes(b"")
        keep_log(folder)
        self._secret = secrets.token_bytes(32)
        secret_file = folder / "executor.secret"
        secret_file.touch(mode=0o600)
        secret_file.write_bytes(self._secret)
        self.address = f"127.0.0.1:{free_port()}"
        options = ["--isolation", "process", "--superlink", server, "--superexec-auth-secret-file", str(secret_file)]
        options += ["--host", "127.0.0.1", "--port", self.address.rpartition(":")[2]]
        options += ["--root-certificates", str(ca)] if ca else ["--insecure"]
        options += ["--auth-supernode-private-key", str(key)] if key else []
        self.answers = self._sent = self._heard = 0
        self._admitted = False
        self._silent_since: float | None = None
        self.process: subprocess.Popen[bytes] = start("fcil.deployment.flower.supernode_process", options, folder, {})

    def serve(self, handler: Handler, stopped: threading.Event) -> None:
        """Answer requests until `stopped` is set or the SuperNode ends."""
        middleware = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods={ACQUIRE})
        client = self._client(middleware)
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        answered = time.monotonic()
        while not stopped.is_set() and self.process.poll() is None:
            PULSE.beat()
            try:
                taken = client.AcquireTask(wanted)
            except httpx.HTTPError:  # it is not up yet, or going down
                time.sleep(POLL)
                continue
            if taken.token:
                self._answer(taken.token, handler)
                answered = time.monotonic()
            else:
                stopped.wait(POLL if time.monotonic() - answered < WHILE else RESTING)
        client.close()

    def _client(self, *words: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="fcil")
        return RuntimeHttpClient.from_server_address(self.address, True, None, [version, *words])

    def _answer(self, token: str, handler: Handler) -> None:
        """Fetch the request of a task, have it answered, and send the answer."""
        client = self._client(RuntimeTokenHttpInterceptor(token))
        done = threading.Event()
        living = threading.Thread(target=_live, args=(client, done), daemon=True)
        living.start()
        status, context = "failed", None
        try:
            message, context, _, _ = pull_task_input(client)
            parcels = unpack(message.content)
            request = parcels.pop(REQUEST)
            records = as_records({ANSWER: as_array(handler(request, parcels))})
            push_message(client, Message(records, reply_to=message), context)
            status = "completed"
            self.answers += 1
        except Exception as error:  # the server gets no answer and asks again, or goes on without
            logging.getLogger("flwr").error("a request is not answered: %r", error)
            self.say(f"warning: a request is not answered: {type(error).__name__}: {error}")
        finally:
            done.set()
            try:
                push_task_output(client, context, status, "")
            except Exception as error:
                logging.getLogger("flwr").error("the end of a task is not told: %r", error)
            living.join(LEAVING)  # a call under way on a client that is closed would leave its connection open
            client.close()

    @property
    def ended(self) -> bool:
        """True once the SuperNode has ended."""
        return self.process.poll() is not None

    @property
    def connected(self) -> bool:
        """True once the server has admitted this node."""
        self._listen()
        return self._admitted

    @property
    def silent_since(self) -> float | None:
        """The time since which the server does not answer this node; None while it does."""
        self._listen()
        return self._silent_since

    def _listen(self) -> None:
        """Read new complete lines of the SuperNode's log."""
        with (self.folder / LOG).open("rb") as log:
            log.seek(self._heard)
            lines = log.read().rpartition(b"\n")[0]
        self._heard += len(lines) + 1 if lines else 0
        for line in lines.split(b"\n"):
            if any(sign in line for sign in SILENT):
                self._silent_since = self._silent_since or time.time()
            elif any(sign in line for sign in HEARD):
                self._silent_since = None
        self._admitted = self._admitted or b"SuperNode ID:" in lines
        self._sent += lines.count(b"Sent successfully")

    def complaint(self) -> str:
        """Return the last error in the SuperNode's log, in one line."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", log_tail(self.folder))
        said = text.rpartition("Exit Code:")[2].partition("For more information")[0]
        return " ".join(said.split())

    def flush(self, patience: float = 15.0) -> None:
        """Wait until the SuperNode has sent the last answer, or has ended."""
        until = time.monotonic() + patience
        while time.monotonic() < until and not self.ended:
            self._listen()
            if self._sent >= self.answers:
                return
            time.sleep(POLL)

    def close(self) -> None:
        """End the SuperNode."""
        end(self.process)

    def __enter__(self) -> SuperNodeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _live(client: RuntimeHttpClient, done: threading.Event) -> None:
    """Send the heartbeats of a task until it is done."""
    while True:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RuntimeError):
            return
        if done.wait(HEARTBEAT):
            return
