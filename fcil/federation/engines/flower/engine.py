"""Flower nodes as workers: a job goes out as a message, and what many jobs need only to those who lack it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from flwr.app import Message as Envelope
from flwr.app import MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fcil.core.errors import FederationError
from fcil.core.messages import CodecError, Message, Missing, ModelParcel, decode
from fcil.federation.client import Done, Job
from fcil.federation.engines.base import Publication, SharedSamples, Workplace
from fcil.federation.engines.flower.records import ANSWER, ERRAND, JOB, PROCESS, Errand, Part, Task, pack, unpack
from fcil.federation.engines.flower.runtime import Runtime
from fcil.federation.engines.pool import Pool

FIRST_LOOK, LAST_LOOK = 0.01, 0.1  # seconds between looks at the answers; the longer it takes, the rarer
PATIENCE = 60.0  # seconds until a grid that was given has a node


@dataclass
class Sent:
    """A job under way: who has it, and which parts it asked for so far."""

    node: int
    job: Job
    asked: tuple[str, ...] = ()


class FlowerEngine(Pool):
    """Runs a round's participants on the nodes of a grid; without one, on a simulation that it starts here."""

    def __init__(self, place: Workplace, grid: Grid | None = None) -> None:
        super().__init__(place)
        self.recipe = place.recipe
        self.held = place.local.samples
        self.grid = grid
        self.runtime: Runtime | None = None
        self.nodes: list[int] = []
        self.under_way: dict[str, Sent] = {}  # by the id of the message
        self.damaged = False  # a process of our own simulation has died
        self.lost: list[int] = []  # nodes to which a message could not be sent
        self.samples: Part | None = None
        self.models: dict[str, Part] = {}

    def publish(self, published: Publication) -> None:
        self.nodes = self._find_nodes()
        self.under_way, self.lost = {}, []  # a round that its caller gave up is nobody's any more
        if self.samples is None:
            self.samples = Part.of(SharedSamples.of(self.held))
            self.recipe_text = self.recipe.text()
        self.broadcast = published.broadcast
        self.models = {digest: Part.of(ModelParcel(digest, model)) for digest, model in published.models.items()}

    def idle(self) -> list[int]:
        if self.damaged:
            if self.under_way:
                return []
            self._renew()
        busy = {sent.node for sent in self.under_way.values()} | set(self.lost)
        return [node for node in self.nodes if node not in busy]

    def submit(self, worker: int, job: Job) -> None:
        self._send(Sent(worker, job))

    def collect(self, timeout: float | None) -> list[tuple[int, Done | None]]:
        until = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_LOOK
        while True:
            found = self._answers()
            if found or not self.under_way or (until is not None and time.monotonic() >= until):
                return found
            if self.runtime is not None:
                self.runtime.check()
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)

    def close(self) -> None:
        if self.runtime is not None:
            self.runtime.close(at_once=bool(self.under_way))
            self.runtime = self.grid = None
        self.nodes, self.under_way, self.lost = [], {}, []

    def _renew(self) -> None:
        """Start the simulation again: Flower keeps a process that died among those that it gives jobs to."""
        self.close()
        self.damaged = False
        self.nodes = self._find_nodes()

    def _find_nodes(self) -> list[int]:
        """Return the nodes that there are; those of a grid that was given may come and go between rounds."""
        if self.grid is None:
            self.runtime = Runtime(self.workers, self.recipe.device)
            self.grid = self.runtime.grid()
        until = time.monotonic() + PATIENCE
        while not (nodes := list(self.grid.get_node_ids())):
            if time.monotonic() > until:
                raise FederationError(f"no Flower node has come within {PATIENCE:.0f} seconds; start SuperNodes")
            time.sleep(LAST_LOOK)
        return nodes

    def _send(self, sent: Sent) -> None:
        """Send a job with the parts that it asked for; one that cannot be sent is lost."""
        assert self.grid is not None
        assert self.samples is not None
        errand = Errand(
            self.recipe_text, self.samples.digest, {name: part.digest for name, part in self.models.items()}
        )
        known = self._known()
        task = {ERRAND: errand, JOB: Task(self.broadcast, sent.job)}
        content = pack(task, [known[digest] for digest in sent.asked])
        number = next(iter(self.grid.push_messages([Envelope(content, sent.node, MessageType.TRAIN)])), None)
        if number is None:
            self.lost.append(sent.node)
        else:
            self.under_way[number] = sent

    def _answers(self) -> list[tuple[int, Done | None]]:
        """Return who has finished, and send the others what they lack."""
        found: list[tuple[int, Done | None]] = [(node, None) for node in self.lost]
        self.lost = []
        if not self.under_way:
            return found
        assert self.grid is not None
        for message in self.grid.pull_messages(list(self.under_way)):
            sent = self.under_way.pop(message.metadata.reply_to_message_id)
            answer = _read(message)
            self._learn(message)
            if isinstance(answer, Missing) and self._can_help(sent, answer):
                # All that was asked for so far: the process that answers next need not be the one that asked.
                self._send(Sent(sent.node, sent.job, (*sent.asked, *answer.digests)))
            else:
                found.append((sent.node, answer if isinstance(answer, Done) else None))
        return found

    def _learn(self, message: Envelope) -> None:
        """Note which process of our own simulation has answered, or that one has died."""
        if self.runtime is None:
            return
        if not message.has_error():
            self.runtime.processes.add(cast(int, message.content.config_records[PROCESS]["id"]))
        elif message.error.code == ErrorCode.UNKNOWN:  # rather than the app's own failure
            self.damaged = True

    def _known(self) -> dict[str, Part]:
        assert self.samples is not None
        return {part.digest: part for part in (self.samples, *self.models.values())}

    def _can_help(self, sent: Sent, missing: Missing) -> bool:
        """Say whether a node asks for parts that there are and that it was not sent with the same job."""
        return all(digest in self._known() and digest not in sent.asked for digest in missing.digests)


def _read(message: Envelope) -> Done | Missing | None:
    """Return what a node answered; None for an error, Flower's or its own."""
    if message.has_error():
        return None
    try:
        answer = decode(unpack(message.content)[ANSWER], Message)
    except (CodecError, KeyError):
        return None
    return answer if isinstance(answer, Done | Missing) else None
